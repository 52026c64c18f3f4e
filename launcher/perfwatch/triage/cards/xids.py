"""What the numbers mean under which the driver announces errors (Xid), and which of them end or stop a job.

Source: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors), Ampere and newer.
"""

import re
from dataclasses import dataclass, replace

from perfwatch.triage.cards.whose import with_wholes
from perfwatch.triage.case import Case
from perfwatch_probes import readings as r

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
SAME_SECONDS = 5.0  # NVML's event and the line in the kernel's log are of one error
_IN_LOG = re.compile(r"Xid \((?P<bus>[^)]*)\): (?P<xid>\d{1,9})")
# ``PCI:0000:1b:00`` in the log is ``00000000:1B:00.0`` in NVML.
_ADDRESS = re.compile(r"(?P<domain>[0-9a-f]+):(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})\b", re.IGNORECASE)


@dataclass(frozen=True)
class Announced:
    """One error that the driver announced while we watched."""

    xid: int
    at: float
    card: str
    source: str
    located: bool = True  # False: ``card`` is an address on the bus, and no card that was read says that it has it
    pid: int | None = None  # of the process that was on the card, as the host counts

    @property
    def kind(self) -> str:
        """hardware, program or corrected; a number that is not in the table counts as hardware."""
        return XIDS.get(self.xid, (HARDWARE, ""))[0]

    def shown(self) -> str:
        """``Xid 79 (the card has fallen off the bus)``."""
        meaning = XIDS.get(self.xid, ("", "not in our table"))[1]
        return f"Xid {self.xid} ({meaning})"


def announced(case: Case) -> tuple[Announced, ...]:
    """Every error since the session began, oldest first: from NVML's events, and from the kernel log if those are missing."""
    found = [
        Announced(seen.reading.xid, seen.at, seen.reading.uuid, seen.reading.source)
        for seen in case.history.every(r.GpuEvent)
    ]
    cards = {address: uuid for (uuid,) in case.history.entities(r.Gpu) if (address := _address_of(case, uuid))}
    for seen in case.history.every(r.KernelMessage):
        match = _IN_LOG.search(seen.reading.text) if seen.reading.kind == "xid" else None
        if match is None or seen.reading.logged_ago_seconds > seen.at:
            continue  # logged before the session
        at, uuid = seen.at - seen.reading.logged_ago_seconds, cards.get(_address(match["bus"]))
        one = Announced(int(match["xid"]), at, uuid or match["bus"], "kernel_log", uuid is not None, seen.reading.pid)
        # On one card, as far as it is known.
        alike = (other for other in found if other.card == one.card or other.located != one.located)
        same = next((o for o in alike if o.xid == one.xid and abs(o.at - at) <= SAME_SECONDS), None)
        if same is None:
            found.append(one)
        elif same.pid is None:
            found[found.index(same)] = replace(same, pid=one.pid)
    return tuple(sorted(found, key=lambda one: one.at))


def of_job(case: Case, one: Announced) -> bool:
    """True if an error may be of a card that the job used, and of a process of its own; other jobs use the machine as well."""
    used = used_cards(case)
    if used is not None and one.card not in used:
        return not one.located and not all(_address_of(case, uuid) for uuid in used)
    holder = case.history.latest(r.GpuProcess, one.card, one.pid) if one.pid is not None else None
    return holder is None or holder.reading.local_pid is None or holder.reading.local_pid in case.job.members


def used_cards(case: Case) -> frozenset[str] | None:
    """The cards that processes of the job were seen to use or may use, and what these are parts of; None: not known."""
    bound = [seen.reading for seen in case.history.every(r.GpuBinding)]
    used = {uuid for one in bound if one.cuda is not False for uuid in one.uuids or one.visible}
    if not used and (not bound or any(one.cuda is not False for one in bound)):
        return None
    return with_wholes(case.history, used)


def _address_of(case: Case, uuid: str) -> tuple[int, ...]:
    seen = case.history.latest(r.Gpu, uuid)
    return _address(seen.reading.pci_bus) if seen is not None else ()


def _address(text: str) -> tuple[int, ...]:
    """Domain, bus and device; empty where the text names none."""
    match = _ADDRESS.search(text)
    return tuple(int(part, 16) for part in match.groups()) if match else ()
