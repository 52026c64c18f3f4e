"""A group of ranks that does not go on: who sits in it, how far each has come, and for how long that has been so."""

from dataclasses import dataclass

from perfwatch_probes import readings as r

APART_SECONDS = 1.5  # between two looks that are compared
SAID_SECONDS = 3.0  # a look that is older than this is said to be
UNHEARD = ("dead", "unresponsive", "missing")  # states of a member that RAS does not reach


@dataclass(frozen=True)
class Seat:
    """One rank's place in one group. ``rank`` is that of the whole job, where it can be told; ``pid`` is ours to look at."""

    rank: int | None
    pid: int | None
    reached: int  # operations that it has called
    host: str = ""
    state: str = "running"
    launched: tuple[tuple[str, int], ...] = ()  # by kind, where RAS tells: those it has called at all

    @property
    def name(self) -> str:
        """As a person would say it."""
        where = "" if self.pid is not None or not self.host else f" on {self.host}"
        return f"rank {self.rank}{where}" if self.rank is not None else f"a rank{where}"


@dataclass(frozen=True)
class Standing:
    """A group whose members have not gone on for ``seconds``. ``behind`` and ``ahead`` are empty where all are level."""

    group: str
    source: str  # nccl_ras or flight_recorder
    at: float  # of the last look
    seconds: float  # between the looks that agree, and from then on for as long as nothing has moved
    looks_seconds: float  # of these, the time between the looks
    seats: tuple[Seat, ...]
    behind: tuple[Seat, ...] = ()
    ahead: tuple[Seat, ...] = ()
    operation: str = ""  # what those ahead wait in, where it is known
    frame: r.Frame | None = None  # from where it was called
    lost: tuple[Seat, ...] = ()  # members that the service cannot reach any more
    crossed: bool = False  # some are ahead in one kind of collective, others in another

    @property
    def reach(self) -> str:
        """``rank 0 at 3212, rank 1 at 3193``."""
        return ", ".join(f"{seat.name} at {seat.reached}" for seat in self.seats[:8])

    def unchanged(self, at: float) -> str:
        """For how long it was seen to stand, how old the newest look is, and what makes it hold until now."""
        ago = at - self.at
        old = f"{ago:.1f} s ago" if ago >= SAID_SECONDS else ""
        since = ", and no rank has moved since" if self.seconds > self.looks_seconds else ""
        if self.looks_seconds < APART_SECONDS:
            return f"asked {old or 'just now'}{since}"
        return (
            f"unchanged for {self.looks_seconds:.1f} s{f' when last asked, {old}' if old else ''}{since if old else ''}"
        )
