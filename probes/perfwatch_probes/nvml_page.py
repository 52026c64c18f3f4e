"""What the sampler asks the driver right now, in memory that the watcher sees without asking.

A call that never comes back cannot say so. Its beginning stands here until it ends.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

_ENTRY = struct.Struct("=d12s64s")  # since when (CLOCK_MONOTONIC; 0: nothing is asked), what, of which card
_SINCE = struct.Struct("=d")


@dataclass(frozen=True)
class Asked:
    """A call that has not come back yet. ``since``: CLOCK_MONOTONIC, seconds."""

    since: float
    call: str
    uuid: str


class Page:
    """One page shared between the process that made it and those forked from it later."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._clock = clock

    def __call__(self, call: str, uuid: str = "") -> "Page":
        """Mark the beginning of a call; leaving the ``with`` block marks its end."""
        _ENTRY.pack_into(self._memory, 0, self._clock(), call.encode(), uuid.encode())
        return self

    def __enter__(self) -> None:
        """The call is made inside."""

    def __exit__(self, *_: object) -> Literal[False]:
        self.clear()
        return False

    def clear(self) -> None:
        """Nothing is asked."""
        _SINCE.pack_into(self._memory, 0, 0.0)

    def asked(self) -> Asked | None:
        """What is being asked now, if anything."""
        since, call, uuid = _ENTRY.unpack_from(self._memory, 0)
        return Asked(since, _text(call), _text(uuid)) if since else None


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode(errors="replace")
