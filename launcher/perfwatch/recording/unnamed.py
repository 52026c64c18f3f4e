"""Files without a name until they are complete, so that a process that is killed leaves none of them behind.

Linux makes such a file with O_TMPFILE (open(2)): it is gone once it is closed, and ``linkat`` names it. File systems without it
(NFS, overlayfs before Linux 6.1) get a hidden name for as short a time as possible.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from perfwatch.recording.session import PRIVATE_FILE

HIDDEN = ".perfwatch.new"


def unnamed(folder: Path) -> int:
    """Open an empty private file on the disk of this folder. It ends with its descriptor."""
    with contextlib.suppress(OSError):  # what else is wrong, the second way says as well
        return _temporary(folder)
    descriptor = _named(folder)
    (folder / HIDDEN).unlink()
    return descriptor


@contextlib.contextmanager
def replacement(path: Path) -> Iterator[int]:
    """Open a new file for writing, which replaces ``path`` in one step when the block succeeds. Otherwise nothing stays.

    A reader sees the old file or the new one, never half of either.
    """
    folder, hidden = path.parent, path.parent / HIDDEN
    try:
        try:
            descriptor, has_name = _temporary(folder), False
        except OSError:
            descriptor, has_name = _named(folder), True
        try:
            yield descriptor
            if not has_name:
                _give_name(descriptor, folder)
        finally:
            os.close(descriptor)
        hidden.rename(path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise


def _temporary(folder: Path) -> int:
    return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, PRIVATE_FILE)


def _named(folder: Path) -> int:
    hidden = folder / HIDDEN
    hidden.unlink(missing_ok=True)  # of a writer that was killed
    return os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)


def _give_name(descriptor: int, folder: Path) -> None:
    directory = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(HIDDEN, dir_fd=directory)
        # With a folder's descriptor Python calls linkat, which follows the link in /proc to the file itself.
        os.link(f"/proc/self/fd/{descriptor}", HIDDEN, dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)
