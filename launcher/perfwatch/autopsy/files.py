"""Which files are meant by what a user gives: files, what lies in folders, and standard input in the place of one.

Folders are looked through in a child: a mount may be dead.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import msgspec

from perfwatch.autopsy.kinds import HEAD_BYTES, SESSION, kind_of
from perfwatch.errors import UsageError
from perfwatch_probes.guest import opened

MOST_FILES = 8192  # 512 ranks with a dump, a log and a few more files each
MOST_ENTRIES = 200_000  # that are looked at
MOST_DEPTH = 12  # folders in each other; torchrun's logs are 4 deep
LEFT_ALONE = (".git", "__pycache__", "node_modules", ".venv", "site-packages")
DASH = "-"
SESSION_FILE = "session.json"
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
MOST_INPUT_BYTES = 2**30
PIECE_BYTES = 2**20


class Found(msgspec.Struct, frozen=True):
    """Files in the order of their paths; what was left out, and why."""

    files: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()


def find_files(paths: list[str]) -> Found:
    """Regular files at and below these absolute paths; links in folders are not followed, also where one takes the place of a folder."""
    files: dict[str, None] = {}
    left_out: list[tuple[str, str]] = []
    for path in paths:
        try:
            if os.path.isdir(path):
                for one in _below(path, left_out, os.open(path, FOLDER)):
                    files.setdefault(one)
                    if len(files) >= MOST_FILES:
                        left_out.append((path, f"more than {MOST_FILES} files: the rest was left out"))
                        break
            elif os.path.isfile(path):
                files.setdefault(path)
            elif os.path.lexists(path):
                left_out.append((path, "neither a file nor a folder"))
            else:
                left_out.append((path, "no such file or folder"))
        except OSError as error:
            left_out.append((path, error.strerror or str(error)))
    return Found(tuple(files), tuple(left_out))


def is_there(path: str) -> bool:
    """True if there is anything of this name, be it a link that leads nowhere. Runs in a guest."""
    return os.path.lexists(path)


def _below(path: str, left_out: list[tuple[str, str]], folder: int, depth: int = 0) -> Iterator[str]:
    """Depth first, by name; numbers in names count as numbers. folder: a descriptor of it, closed at the end."""
    try:
        if depth >= MOST_DEPTH:
            left_out.append((path, f"deeper than {MOST_DEPTH} folders"))
            return
        with os.scandir(folder) as listing:
            entries = [entry for entry, _ in zip(listing, range(MOST_ENTRIES), strict=False)]
        if any(entry.name == SESSION_FILE for entry in entries) and is_session(f"/proc/self/fd/{folder}"):
            yield os.path.join(path, SESSION_FILE)  # its other files are read with it
            return
        folders = []
        for entry in sorted(entries, key=lambda one: natural(one.name)):
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in LEFT_ALONE:
                    folders.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                yield os.path.join(path, entry.name)
        for name in folders:
            inner = os.path.join(path, name)
            try:
                descriptor = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            except OSError as error:
                left_out.append((inner, error.strerror or str(error)))
                continue
            yield from _below(inner, left_out, descriptor, depth + 1)
    except OSError as error:
        left_out.append((path, error.strerror or str(error)))
    finally:
        os.close(folder)


def is_session(folder: str) -> bool:
    """True if a folder is a recording of perfwatch. Raises OSError."""
    try:
        descriptor = opened(os.path.join(folder, SESSION_FILE), follow=False)
    except (FileNotFoundError, ValueError):
        return False
    try:
        return kind_of(os.read(descriptor, HEAD_BYTES)) == SESSION
    finally:
        os.close(descriptor)


def named_above(path: str, paths: Sequence[str]) -> str:
    """Which of the paths that the user named a file was found by: the nearest one."""
    return max((one for one in paths if path == one or path.startswith(f"{one.rstrip('/')}/")), key=len, default=path)


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key by which ``dump_2`` comes before ``dump_10``."""
    parts: list[tuple[int, str]] = []
    digits = ""
    for letter in f"{name}\0":
        if letter.isascii() and letter.isdigit() and len(digits) < 18:
            digits += letter
            continue
        if digits:
            parts.append((int(digits), ""))
            digits = ""
        parts.append((-1, letter))
    return parts


@contextmanager
def spooled(paths: Sequence[str], stream: BinaryIO) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The paths with a private file in place of ``-``, and by path how it is to be shown."""
    if DASH not in paths:
        yield list(paths), {}
        return
    if stream.isatty():
        raise UsageError("standard input is a terminal", "kubectl logs POD --previous | perfwatch autopsy -")
    with tempfile.NamedTemporaryFile(prefix="perfwatch-stdin-") as file:
        left = MOST_INPUT_BYTES
        while left > 0 and (piece := stream.read(min(left, PIECE_BYTES))):
            file.write(piece)
            left -= len(piece)
        file.flush()
        path = os.path.abspath(file.name)
        yield [path if one == DASH else one for one in dict.fromkeys(paths)], {path: "standard input"}
