"""What the TCP connections of a process carry: the same sums read twice, whatever else the machine sends."""

from collections.abc import Sequence
from dataclasses import dataclass

from perfwatch.triage.history import History, Seen
from perfwatch.triage.moving.thresholds import TRAFFIC_SECONDS
from perfwatch_probes import readings as r

# Bytes a second, all connections or interfaces together, that still count as nothing: NCCL's and gloo's own keep-alives.
SILENT_BYTES_PER_SECOND = 50_000.0
CARRIES_BYTES = 5_000_000  # what NCCL's and gloo's own greetings and keep-alives do not add up to: tens of kilobytes
KEEP_ALIVE_BYTES = 1_000  # one of them may be under way at the moment of the look
LOST = 2  # sent again so often: a single loss happens


@dataclass(frozen=True)
class Flow:
    """What went over connections, both ways."""

    bytes_per_second: float
    queued_bytes: int  # written, and not confirmed by the other end
    retransmits: int  # within the window
    carried_bytes: int = 0  # both ways, since the connections were opened
    # Written and not confirmed at each look, while nothing else was confirmed: no keep-alive is under way so long.
    standing_bytes: int = 0

    @property
    def lost(self) -> bool:
        """True if what is sent does not reach the other end: the kernel sends it again and again."""
        return self.queued_bytes > 0 and self.retransmits >= LOST

    @property
    def delivered(self) -> bool:
        """True if large tensors went over them, and all that was sent has been confirmed: nothing is left for the network to deliver."""
        return self.carried_bytes >= CARRIES_BYTES and self.owes_nothing

    @property
    def owes_nothing(self) -> bool:
        """True if nothing is under way: what was sent has been confirmed, nothing is sent again, and nothing comes."""
        under_way = self.queued_bytes > KEEP_ALIVE_BYTES or self.standing_bytes > 0
        return not under_way and self.retransmits < LOST and self.silent

    @property
    def silent(self) -> bool:
        """True if nothing but keep-alives goes over them."""
        return self.bytes_per_second <= SILENT_BYTES_PER_SECOND

    def shown(self) -> str:
        """For a line of evidence."""
        parts = [f"{self.bytes_per_second / 1024:.1f} KiB/s"]
        parts += [f"{self.queued_bytes:,} bytes written and not confirmed"] if self.queued_bytes else []
        parts += [f"sent again {self.retransmits} times"] if self.retransmits else []
        return ", ".join(parts)


def flow(history: History, pid: int, seconds: float) -> Flow | None:
    """Over the last ``seconds``; None where the same connections were not read twice."""
    return _between(history.series(r.Traffic, pid, seconds=max(seconds, TRAFFIC_SECONDS)))


def newest_flow(history: History, pid: int) -> Flow | None:
    """Between the last two looks: whether anything comes now, whatever came before them."""
    return _between(history.series(r.Traffic, pid, seconds=TRAFFIC_SECONDS)[-2:])


def _between(looks: Sequence[Seen[r.Traffic]]) -> Flow | None:
    if len(looks) < 2 or looks[0].reading.connections != looks[-1].reading.connections:
        return None
    first, last = looks[0].reading, looks[-1].reading
    moved = last.received_bytes - first.received_bytes + last.sent_bytes - first.sent_bytes
    return Flow(
        max(0, moved) / (looks[-1].at - looks[0].at),
        last.queued_bytes,
        max(0, last.retransmits - first.retransmits),
        last.received_bytes + last.sent_bytes,
        min(one.reading.queued_bytes for one in looks) if last.sent_bytes == first.sent_bytes else 0,
    )
