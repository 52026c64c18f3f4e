"""What the numbers mean under which the driver announces errors (Xid), and which of them end or stop a job.

Source: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors), Ampere and newer.
"""

import re
from dataclasses import dataclass

from perfwatch.probes import readings as r
from perfwatch.triage.case import Case

HARDWARE, PROGRAM, CORRECTED = "hardware", "program", "corrected"

# number: (class, meaning). hardware: the card, its link or its driver; program: the kernel that ran there; corrected: only a note.
XIDS: dict[int, tuple[str, str]] = {
    8: (HARDWARE, "the card stopped processing"),
    13: (PROGRAM, "graphics engine exception, mostly an access out of bounds"),
    31: (PROGRAM, "memory page fault: an illegal address was accessed"),
    32: (HARDWARE, "invalid or corrupted push buffer stream"),
    38: (HARDWARE, "driver firmware error"),
    43: (PROGRAM, "the card stopped processing after a fault of the program"),
    45: (PROGRAM, "work was removed because the program ended or failed"),
    46: (HARDWARE, "the card stopped processing"),
    48: (HARDWARE, "double-bit memory error"),
    61: (HARDWARE, "internal micro-controller error"),
    62: (HARDWARE, "internal micro-controller halted"),
    63: (CORRECTED, "a memory row is marked for remapping"),
    64: (HARDWARE, "a memory row could not be remapped"),
    69: (PROGRAM, "graphics engine class error"),
    74: (HARDWARE, "NVLink error"),
    79: (HARDWARE, "the card has fallen off the bus"),
    92: (CORRECTED, "many single-bit memory errors"),
    94: (HARDWARE, "contained memory error: the job that used it must end"),
    95: (HARDWARE, "uncontained memory error"),
    109: (HARDWARE, "context switch timed out"),
    110: (HARDWARE, "security fault"),
    119: (HARDWARE, "the card's system processor does not answer"),
    120: (HARDWARE, "the card's system processor failed"),
    121: (CORRECTED, "chip-to-chip link error, corrected"),
    140: (HARDWARE, "memory error that could not be corrected"),
    143: (HARDWARE, "the card could not be initialised"),
    149: (HARDWARE, "NVLink error"),
}
# Follow from another fault, or from the end of the program itself: they explain nothing.
CONSEQUENCES = frozenset({43, 45})
_IN_LOG = re.compile(r"Xid \((?P<bus>[^)]*)\): (?P<xid>\d+)")


@dataclass(frozen=True)
class Announced:
    """One error that the driver announced while we watched."""

    xid: int
    at: float
    card: str
    source: str

    @property
    def kind(self) -> str:
        """hardware, program or corrected; a number that is not in the table is the hardware's until it is known."""
        return XIDS.get(self.xid, (HARDWARE, ""))[0]

    def shown(self) -> str:
        """``Xid 79 (the card has fallen off the bus)``."""
        meaning = XIDS.get(self.xid, ("", "not in our table"))[1]
        return f"Xid {self.xid} ({meaning})"


def announced(case: Case) -> tuple[Announced, ...]:
    """Every error since the session began, oldest first: from NVML's events, and from the kernel log where those are missing."""
    found = [
        Announced(seen.reading.xid, seen.at, seen.reading.uuid, seen.reading.source)
        for seen in case.history.every(r.GpuEvent)
    ]
    for seen in case.history.every(r.KernelMessage):
        match = _IN_LOG.search(seen.reading.text) if seen.reading.kind == "xid" else None
        if match is None or seen.reading.logged_ago_seconds > seen.at:
            continue  # it was logged before we came
        xid, at = int(match["xid"]), seen.at - seen.reading.logged_ago_seconds
        if not any(one.xid == xid for one in found):
            found.append(Announced(xid, at, match["bus"], "kernel_log"))
    return tuple(sorted(found, key=lambda one: one.at))
