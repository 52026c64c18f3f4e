"""The end of a file that another user may have put there: neither a pipe of that name nor an endless device may hold us."""

import os
import stat
from pathlib import Path


def tail(path: Path, most_bytes: int) -> bytes:
    """The last so many bytes of a plain file.

    Raises OSError, or ValueError where it is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise ValueError(f"{path.name} is not a regular file")
        file.seek(max(0, state.st_size - most_bytes))
        return file.read(most_bytes)
