"""Many small files as one readable text, in the format of Prometheus' ``ttar``: a header of path and lines before each.

``NULLBYTE`` stands for a zero byte, and ``EOF`` ends a file whose last line has no newline.

    python -m tests.ttar pack FOLDER > FILE      all files and links below the folder
    python -m tests.ttar unpack FILE FOLDER
"""

import sys
from collections.abc import Iterator
from pathlib import Path

LINK, PATH, LINES = "SymlinkTo: ", "Path: ", "Lines: "
RULE = "# ttar " + "- " * 36


def pack(folder: Path) -> str:
    """The text of all files and links below a folder."""
    parts = []
    for path in sorted(folder.rglob("*")):
        head = f"{PATH}{path.relative_to(folder)}\n"
        if path.is_symlink():
            parts.append(f"{head}{LINK}{path.readlink()}\n")
        elif path.is_file():
            text = path.read_bytes().decode().replace("\0", "NULLBYTE")
            text = text if text.endswith("\n") or not text else f"{text}EOF\n"
            parts.append(f"{head}{LINES}{text.count(chr(10))}\n{text}")
    return f"{RULE}\n".join(parts)


def files(text: str) -> Iterator[tuple[str, str, bool]]:
    """Path, content and whether it is a link, of each file of a packed text."""
    lines = iter(text.split("\n"))
    for line in lines:
        if not line.startswith(PATH):
            continue
        path, header = line.removeprefix(PATH), next(lines)
        if header.startswith(LINK):
            yield path, header.removeprefix(LINK), True
            continue
        content = "".join(f"{next(lines)}\n" for _ in range(int(header.removeprefix(LINES))))
        yield path, content.removesuffix("EOF\n").replace("NULLBYTE", "\0"), False


def unpack(text: str, folder: Path) -> Path:
    """Write the files of a packed text below a folder."""
    for path, content, link in files(text):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if link:
            target.symlink_to(content)
        else:
            target.write_bytes(content.encode())
    return folder


def main(action: str, path: str, folder: str = "") -> None:
    """Pack or unpack."""
    if action == "pack":
        sys.stdout.write(pack(Path(path)))
    else:
        unpack(Path(path).read_text(), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
