"""Counts the guests that SIGKILL does not end, for each user.

A guest that waits for an answer of a FUSE file system is in state D until that file system answers, and any user can mount one.
The daemon watches each job in a process of its own, and a stuck guest outlives that process. So the count is in memory that this
process shares with all processes that are forked from it.

The bound: while 8 guests of one real uid are stuck, or 64 of all users, no guest of that uid is asked anything. Each process has
one call under way at most. So the number can exceed 8 by the number of processes that watch jobs of this user.
"""

import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from perfwatch_probes.deadline import PROCESS_NAME, still_there
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.stat import parse_pairs

MOST_OF_ONE, MOST = 8, 64
# A process that was killed needs some milliseconds to end; one that needs longer is stuck.
GRACE_SECONDS, _PAUSE_SECONDS = 0.2, 0.005
_SLOT = struct.Struct("=IId")  # pid, uid, monotonic time of the kill
_FREE = bytes(_SLOT.size)


class StuckGuests:
    """Guests that were killed and may still exist, in memory that is shared across fork.

    A slot is written without a lock and never cleared. If two processes write to one slot at the same time, one guest is not counted.

    Args:
        most_of_one: stuck guests of one uid.
        most: stuck guests of all users.
    """

    def __init__(self, most_of_one: int = MOST_OF_ONE, most: int = MOST) -> None:
        self._most_of_one, self._most = most_of_one, most
        self._slots = mmap.mmap(-1, most * _SLOT.size)
        self._gone: set[bytes] = {_FREE}  # slots of which this process knows that they can be used again

    def of(self, uid: int) -> "OfUser":
        """The count for the guests of one user."""
        return OfUser(self, uid)

    def add(self, pid: int, uid: int) -> None:
        """Count a guest that was killed; it counts until it is gone."""
        taken = {offset for offset, _ in self._present()}
        for number in range(self._most):
            offset = (pid + number) % self._most * _SLOT.size
            if offset not in taken:
                _SLOT.pack_into(self._slots, offset, pid, uid, time.monotonic())
                return

    def admit(self, uid: int) -> None:
        """Raise Unavailable if one more guest of this user would be one too many. Waits for guests that were killed just now."""
        ends = time.monotonic() + GRACE_SECONDS
        while True:
            present = [slot for _, slot in self._present()]
            stuck = [slot for slot in present if slot[1] == uid]
            if len(stuck) < self._most_of_one and len(present) < self._most:
                return
            now = time.monotonic()
            if now > ends or all(now - at > GRACE_SECONDS for _, _, at in present):
                break
            time.sleep(_PAUSE_SECONDS)
        pids = [pid for pid, _, _ in stuck or present]
        raise Unavailable(
            f"readers of files of uid {uid} are stuck in the kernel (state D): pids {pids}",
            "find the mount or driver that does not answer: cat /proc/PID/stack of those pids as root",
        )

    def _present(self) -> Iterator[tuple[int, tuple[int, int, float]]]:
        """The guests that are still there, each with the offset of its slot."""
        everything = self._slots[:]
        slots = [(offset, everything[offset : offset + _SLOT.size]) for offset in range(0, len(everything), _SLOT.size)]
        unknown = [(offset, slot) for offset, slot in slots if slot not in self._gone]
        if not unknown:
            return
        self._gone &= {slot for _, slot in slots} | {_FREE}
        for offset, slot in unknown:
            pid, uid, at = _SLOT.unpack(slot)
            if _is_there(pid):
                yield offset, (pid, uid, at)
            else:
                self._gone.add(slot)


@dataclass(frozen=True)
class OfUser:
    """The count for the guests of one user: a ``Ledger`` of ``perfwatch_probes.deadline``."""

    stuck: StuckGuests
    uid: int

    def admit(self) -> None:
        """Raise Unavailable if as many as we can afford are stuck."""
        self.stuck.admit(self.uid)

    def add(self, pid: int) -> None:
        """Count a guest that was killed."""
        self.stuck.add(pid, self.uid)


def _is_there(pid: int) -> bool:
    """True if the process exists and is a guest. A dead child of ours is reaped."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # takes no lock of the process
            told = parse_pairs(file.read(4096).decode("utf-8", "replace"))
        if told["Name"] != PROCESS_NAME:
            return False  # another process has the number now
        if told["State"][0] not in "ZX":
            return True
        if int(told["PPid"]) == os.getpid():
            still_there([pid])
    except (OSError, KeyError, ValueError, IndexError):
        pass
    return False


STUCK_GUESTS = StuckGuests()
