"""Limits that a test lowers for itself, as a user's shell or a container does."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def room_for(files: int) -> Iterator[None]:
    """Within it this process can have so many more files open, and no more."""
    free = [os.dup(0) for _ in range(files + 1)]
    for descriptor in free:
        os.close(descriptor)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_files() -> dict[int, str]:
    """The descriptors of this process, and what each leads to."""
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    links = ((number, Path(f"/proc/self/fd/{number}")) for number in numbers)
    return {
        number: os.readlink(link) for number, link in links if link.is_symlink()
    }  # the folder's own is closed by now
