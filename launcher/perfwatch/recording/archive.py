"""One redacted archive of a session, to send to someone; and the way back from an archive to a session.

Only the files that a session is made of go in, each line parsed and redacted again: links, captures and whatever else
lies in the folder stay behind. The same session gives the same bytes.
"""

import gzip
import io
import os
import re
import signal
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from perfwatch.errors import SessionUnreadable
from perfwatch.recording.compression import is_compressed
from perfwatch.recording.damage import DAMAGED
from perfwatch.recording.recording import load_session
from perfwatch.recording.redaction import REDACTED, redact_tree
from perfwatch.recording.session_lines import Room, session_lines
from perfwatch_probes.bounds import ARCHIVE_HEADER_BYTES, MOST_MEMBERS, SESSION_BYTES

_OURS = re.compile(r"session\.json|events\.jsonl|(?:readings|stacks)(?:-\d+)?\.jsonl")
_KINDS = {
    "command": "command lines",
    "environment": "environment variables",
    "text": "messages",
    "exception": "messages",
}
OTHER = "other texts"
LARGEST_UNPACKED_BYTES = SESSION_BYTES  # with what is passed over, and headers: to get past them they are unpacked
_READ_AT_ONCE = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


@dataclass(frozen=True)
class Bundled:
    """What went into an archive, and what did not: names left out, lines that could not be parsed.

    redacted: how many different texts have something redacted in them, by what they are.
    """

    names: tuple[str, ...]
    left_out: tuple[str, ...]
    dropped_lines: int
    redacted: dict[str, int]


def bundle(folder: Path, output: IO[bytes], progress: Callable[[int, int], None]) -> Bundled:
    """Write the archive of a session.

    Args:
        folder: the session.
        output: where the .tar.gz goes.
        progress: called with the bytes of the files that are done, and of all.

    Raises:
        SessionUnreadable: not a session, or larger than any that perfwatch writes.
    """
    created = load_session(folder).created
    names: list[str] = []
    left_out: list[str] = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        ours = _OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
        if ours:
            names.append(entry.name)
        elif not entry.name.startswith("."):  # those are the writer's own, of a session that is still written
            left_out.append(entry.name)
    sizes = {name: (folder / name).lstat().st_size for name in names}
    total = sum(sizes.values())
    Room(folder).take(total)  # before anything is read
    room = Room(folder)
    done = dropped = 0
    kept: dict[str, set[str]] = {}
    with (
        gzip.GzipFile(filename="", fileobj=output, mode="wb", mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in names:
            with tempfile.TemporaryFile() as redacted:
                for line in session_lines(folder / name, room):
                    try:
                        after = redact_tree(msgspec.json.decode(line))
                        encoded = msgspec.json.encode(after)
                        redacted.write(encoded + b"\n")
                    except DAMAGED:
                        dropped += 1
                        continue
                    if REDACTED.encode() in encoded:
                        for text, kind in _redacted_in(after):
                            kept.setdefault(kind, set()).add(text)
                done += sizes[name]
                progress(done, total)
                archive.addfile(_header(f"{folder.name}/{name}", redacted.tell(), created), _rewound(redacted))
    counts = {kind: len(texts) for kind, texts in sorted(kept.items())}
    return Bundled(tuple(names), tuple(left_out), dropped, counts)


def _redacted_in(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Each text in a JSON-like value in which something is redacted, and what it is; a command line is one text."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _redacted_in(one, key if key in _KINDS else name)
    elif isinstance(value, list) and not all(isinstance(one, str) for one in value):
        for one in value:
            yield from _redacted_in(one, key)
    else:
        text = " ".join(value) if isinstance(value, list) else value
        if isinstance(text, str) and REDACTED in text:
            yield text, _KINDS.get(key, OTHER)


@contextmanager
def opened(path: Path, largest_bytes: int = LARGEST_UNPACKED_BYTES) -> Iterator[Path]:
    """The session folder at ``path``: itself, or an archive of one, unpacked for as long as the context lasts.

    Raises:
        SessionUnreadable: an archive that is damaged, too large or not of a session.
    """
    if not path.is_file():
        yield path
        return
    with _signals_unwind(), tempfile.TemporaryDirectory(prefix="perfwatch-") as place:
        folder = Path(place) / path.name.removesuffix(".tar.gz")
        folder.mkdir(mode=0o700)
        try:
            with (
                path.open("rb") as packed,
                _plain(packed) as plain,
                tarfile.open(fileobj=_Bounded(plain, largest_bytes), mode="r|", tarinfo=_Member) as archive,
            ):
                _unpack(archive, folder)
        except PermissionError:
            raise
        except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError, RecursionError) as error:
            if path.name.endswith((".tar.gz", ".tgz", ".tar")):
                raise SessionUnreadable(
                    f"{path} is not an archive of a session: {error}", "perfwatch bundle SESSION makes one"
                ) from None
            if (path.parent / "session.json").is_file():
                raise SessionUnreadable(
                    f"{path} is a part of a session: name its folder", f"perfwatch replay {path.parent}"
                ) from None
            program = path.suffix == ".py"
            what = (
                f"for a job that runs: perfwatch attach {path.name}" if program else "for a log: perfwatch autopsy FILE"
            )
            raise SessionUnreadable(
                f"{path} is not a session, nor an archive of one",
                f"perfwatch sessions lists them; {what}",
            ) from None
        yield folder


def _plain(packed: IO[bytes]) -> IO[bytes] | gzip.GzipFile:
    """An archive as it was before gzip; some browsers have unpacked it so far already."""
    return gzip.GzipFile(fileobj=packed) if is_compressed(packed) else packed


class _Signalled(BaseException):
    """A signal that ends the process."""


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """End by SIGTERM or SIGHUP as by Ctrl-C: what was unpacked is removed first. Outside the main thread nothing changes."""

    def unwind(number: int, _: object) -> None:
        raise _Signalled(number)

    ending = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ending = []
    for number in ending:
        signal.signal(number, unwind)
    try:
        yield
    except _Signalled as signalled:
        signal.signal(signalled.args[0], signal.SIG_DFL)
        os.kill(os.getpid(), signalled.args[0])
        raise
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


class _Member(tarfile.TarInfo):
    """A member of an archive. What ``tarfile`` would read at once, or collect over the whole archive, is refused."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Member":
        """One block of 512 bytes."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in (tarfile.XGLTYPE, tarfile.GNUTYPE_SPARSE):
            raise tarfile.ReadError("it has global headers or sparse files")
        if header.type in _READ_AT_ONCE and header.size > ARCHIVE_HEADER_BYTES:
            raise tarfile.ReadError(f"it has a header of {header.size} bytes")
        return header

    def _proc_gnusparse_10(self, *_: object) -> None:
        """The map of a sparse file, which has any length."""
        raise tarfile.ReadError("it has sparse files")


class _Bounded(io.RawIOBase):
    """Reads no more than so many bytes of a file, and raises OSError beyond."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, most_bytes: int) -> None:
        self._file, self._room, self._most = file, most_bytes, most_bytes

    def read(self, size: int = -1) -> bytes:
        """As a file does."""
        data = self._file.read(size)
        self._room -= len(data)
        if self._room < 0:
            raise OSError(f"more than {self._most} bytes unpacked")
        return data


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Only regular files with our names, wherever in the archive they lie."""
    for number, member in enumerate(archive):
        if number >= MOST_MEMBERS:
            raise tarfile.ReadError(f"it has more than {MOST_MEMBERS} members")
        archive.members = []  # type: ignore[attr-defined]  # it would keep all of them
        name = os.path.basename(member.name)
        content = archive.extractfile(member) if member.isreg() and _OURS.fullmatch(name) else None
        if content is None:
            continue
        with (folder / name).open("xb") as file:
            while chunk := content.read(2**20):
                file.write(chunk)


def _header(name: str, size: int, created: float) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode, header.mtime = size, 0o600, int(created)
    return header


def _rewound(file: IO[bytes]) -> io.BufferedIOBase | IO[bytes]:
    file.seek(0)
    return file
