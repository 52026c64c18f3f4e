"""Why nsys left a raw recording (.qdstrm) and no report: its importer is a separate program, with libraries of its own.

A container often has nsys but not libdw, or only the part of nsys that records (the target, without the host).
"""

import re
from pathlib import Path

from perfwatch.captures.nsight.finding import Run, Tool

LDD_SECONDS = 10.0
_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)
_PACKAGES = {"libdw.so.1": "libdw1", "libelf.so.1": "libelf1", "libssh.so": "libssh-4", "libssh.so.4": "libssh-4"}


def advice_for_raw(tool: Tool, said: str, run: Run) -> str:
    """One sentence: what the importer lacks, and that the raw file can be imported elsewhere.

    Args:
        tool: the nsys that recorded.
        said: what ``nsys stop`` printed.
        run: runs ldd on the importer.
    """
    keep = "the raw recording is kept: nsys-ui on another machine opens it, or: QdstrmImporter -i FILE"
    if find_importer(Path(tool.path)) is None:
        return f"nsys {tool.version_text} has no importer (QdstrmImporter) beside it; {keep}"
    missing, fix = missing_libraries(tool, run)
    if missing:
        fix = f" ({fix})" if fix else ""
        return f"nsys could not import it: QdstrmImporter lacks {', '.join(missing[:5])}{fix}; {keep}"
    last = said.strip().splitlines()[-1:] or ["it said nothing"]
    return f"nsys could not import it: {last[0][:200]}; {keep}"


def missing_libraries(tool: Tool, run: Run) -> tuple[list[str], str]:
    """What the importer lacks, and the command that brings it as far as that is known; nothing where there is no importer."""
    importer = find_importer(Path(tool.path))
    if importer is None:
        return [], ""
    listed = run(("ldd", str(importer)), LDD_SECONDS, None)
    missing = sorted(set(_MISSING.findall(listed.output.decode(errors="replace"))))
    packages = sorted({_PACKAGES.get(name, "") for name in missing} - {""})
    return missing, f"apt-get install {' '.join(packages)}" if packages else ""


def find_importer(nsys: Path) -> Path | None:
    """The importer that belongs to this nsys, in the folder of the host beside that of the target; None without one."""
    try:
        home = nsys.resolve().parent
    except OSError:
        return None
    for folder in (home, home.parent):
        for found in sorted((*folder.glob("QdstrmImporter"), *folder.glob("host-linux-*/QdstrmImporter"))):
            return found
    return None
