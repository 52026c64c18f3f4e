"""Waits until one of several descriptors is readable. ``select()`` refuses descriptors from 1024 on; ``poll()`` takes any."""

import errno
import os
import select
from typing import Protocol

LONGEST_SECONDS = 86_400.0  # the kernel takes at most 24 days of milliseconds


class HasFileno(Protocol):
    """An open file, socket or pipe."""

    def fileno(self) -> int:
        """The descriptor."""


def readable(seconds: float | None, *files: int | HasFileno) -> set[int]:
    """The descriptors that have data, have reached their end or have failed; empty after so many seconds.

    Args:
        seconds: how long to wait, at most a day; None: until one is readable.
        files: descriptors, or objects that have one.

    Raises OSError for a descriptor that is not open.
    """
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    found = poll.poll(None if seconds is None else min(max(seconds, 0.0), LONGEST_SECONDS) * 1000)
    if any(event & select.POLLNVAL for _, event in found):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return {descriptor for descriptor, _ in found}
