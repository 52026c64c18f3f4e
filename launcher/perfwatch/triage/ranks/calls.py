"""Calls between ranks as cards, stacks and lines of text show them: whether a rank is in one, in which, and how that reads.

mpi4py is compiled: a call into it has no frame of its own, so only the text of the program's line shows it. A rank that waits there
for others spins at a full core. That it runs is no progress, and that it stays in one line is no standstill: many exchanges look so.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from perfwatch.triage.cards.gpu import Regime
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.history import History
from perfwatch.triage.patience import STRUCTURAL_SECONDS
from perfwatch.triage.ranks.groups import SHOWN, WaitGraph
from perfwatch.triage.roles.job import Job
from perfwatch.triage.rule import Cause
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import Node
from perfwatch.triage.waits.threads import may_act, other_threads
from perfwatch.triage.words.code import calling_line
from perfwatch.triage.words.frames import any_tag, collective_name, short_name, show, tags, tags_of
from perfwatch.triage.words.vocabulary import MPI_COLLECTIVES, MPI_COMMON, MPI_POINT_TO_POINT
from perfwatch.verdict import Culprit, Evidence, Finding, Link
from perfwatch_probes.readings import SourceLine, Stack

COMPARE = "compare the named lines: which condition sends the ranks apart?"
RUNS = ("python", "native")  # what a thread that spins for its card looks like, where the card itself does not tell
NEW_GROUP = "new_group"
BEGUN = "a send or receive"  # of which only the handle is seen
RECEIVES = frozenset({"recv", "irecv", "recv_object_list"})
SENDS = frozenset({"send", "isend", "send_object_list"})
POINT_TO_POINT = RECEIVES | SENDS | {"batch_isend_irecv", BEGUN}

ON_CARD = "gpu"  # of a call that only the card shows
EXCHANGES = MPI_COLLECTIVES | MPI_POINT_TO_POINT
# What mpirun and its like leave in a rank's environment: Open MPI, MVAPICH, MPICH's hydra and Slurm's PMI-2, PMIx.
STARTED_BY_MPI = ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
# ``comm``, ``self.world``, ``MPI.COMM_WORLD``, ``subcomm``, ``row_comm``; ``req`` and ``requests`` of what was begun before.
_RECEIVER = re.compile(r"(?:^|_)(?:\w*comm|world|communicator|mpi|reqs?|requests?)(?:_|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Call:
    """The call that a rank is in: its name, and the line of the program where that is known."""

    name: str
    place: tuple[str, str, int] | None = None

    def differs_from(self, other: "Call") -> bool:
        """True if these cannot be one call. A card that spins in a collective does not say in which one."""
        return ON_CARD not in (self.name, other.name) and self != other


@dataclass
class Calls:
    """All ranks' calls, by pid, and what recorders and RAS say of them."""

    by_pid: dict[int, Call] = field(default_factory=dict)
    ranks: WaitGraph | None = None
    mismatched: bool = False
    counted_seconds: float | None = None  # for how long the counts have stood
    needed: dict[Call, frozenset[int]] = field(default_factory=dict)
    ended: frozenset[int] = frozenset()  # pids of ranks that have ended
    exchange: bool = False  # some rank sends or receives
    ranks_seen: frozenset[int] = frozenset()  # pids of ranks that live
    by_rank: dict[int, int] = field(default_factory=dict)  # their pids by rank
    travels: bool | None = None  # data travels between the ranks; None: not known
    come: dict[frozenset[int], bool] = field(default_factory=dict)  # of a set of ranks: are all of them in calls

    def have_come(self, pids: frozenset[int]) -> bool:
        """True if all of these ranks are in some call."""
        if pids not in self.come:
            self.come[pids] = all(pid in self.by_pid for pid in pids)
        return self.come[pids]

    @property
    def edges(self) -> dict[int, tuple[int, ...]]:
        """By rank: the ranks that it waits for, where recorders or RAS say so."""
        return self.ranks.edges if self.ranks is not None else {}

    @property
    def together(self) -> bool:
        """True if recorders or RAS say that all ranks are in one call."""
        return self.ranks is not None and not self.ranks.edges and bool(self.ranks.together or self.ranks.level)


@dataclass(frozen=True)
class Place:
    """Where one rank is: in which call, as far as that is known, and at which line."""

    rank: int | None
    pid: int
    call: str
    line: str | None = None
    host: str | None = None

    @classmethod
    def of(cls, chain: Chain, call: str = "") -> "Place":
        """Where its stack shows it."""
        return cls(chain.start.rank, chain.start.pid, call, show(chain.start.frame or chain.end.node.frame))

    def __str__(self) -> str:
        """``all_reduce 12 at step (train.py:7)``."""
        return f"{self.call} at {self.line}" if self.line else self.call

    @property
    def culprit(self) -> Culprit:
        """As it is reported."""
        return Culprit(pid=self.pid, rank=self.rank, frame=self.line, host=self.host)


def holds_a_call(card: Regime) -> bool:
    """True if a kernel that waits, and moves nothing, is on a card: that of a collective."""
    return ((card.kind == "spin" and not card.computes) or card.polls) and not card.is_no_collective


def leaves(chain: Chain) -> bool:
    """True if a rank is done and destroys its process group."""
    return chain.start.stack is not None and any_tag(tags(chain.start.stack), "group_destroy")


def over(chain: Chain) -> bool:
    """True if a rank's program is over: its main thread is in the interpreter's shutdown, and makes no further call."""
    return chain.start.stack is not None and any_tag(tags(chain.start.stack), "exit")


def makes_group(chain: Chain) -> bool:
    """True if a rank that waits for others to appear makes a group with them, of a job that has met: a call like any other."""
    return chain.end.kind == "rendezvous" and in_new_group(chain.end.node.stack)


def in_new_group(stack: Stack | None) -> bool:
    """True if a thread makes a group, other than the first one of its job."""
    frames = stack.frames if stack is not None else ()
    meets = {short_name(frame.function) for frame in frames if "rendezvous" in tags_of(frame.function, frame.file)}
    return NEW_GROUP in meets and "init_process_group" not in meets


def call_of(chain: Chain) -> str:
    """The call that the end of a chain is in."""
    if makes_group(chain):
        return NEW_GROUP
    stack = chain.end.node.stack
    return (collective_name(stack) if stack is not None else None) or chain.awaited


def one_sided(names: Collection[str]) -> bool:
    """True if no rank answers another: all receive, or all send. Of handles it is not told; where all wait, none answers."""
    calls = set(names)
    return calls <= RECEIVES or calls <= SENDS or calls == {BEGUN}


def may_join_beside(case: Case, node: Node) -> bool:
    """True if another thread of a rank that is in a call rests, and may send, receive or join the others when it wakes."""
    return any(may_act(case.history, other) for other in other_threads(case.history, case.job, node))


# How it reads


def rank_of(chain: Chain) -> int:
    """Its rank in the job; -1 where it has none."""
    return -1 if chain.start.rank is None else chain.start.rank


def silent(chains: Iterable[Chain]) -> float:
    """For how long the ends of all of these chains have been silent."""
    return min((chain.end.silent_seconds or 0.0 for chain in chains), default=0.0)


def numbered(ranks: Collection[int | str]) -> str:
    """``rank 3``, ``ranks 0, 2``; of many the first."""
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, list(ranks)[:SHOWN]))}{more}"


def listed(chains: Collection[Chain], one: str = "waits", several: str = "wait") -> str:
    """``ranks 0, 2 wait``."""
    return f"{numbered(list(map(rank_of, chains)))} {one if len(chains) == 1 else several}"


def waits_as(case: Case, chain: Chain, call: str = "") -> str:
    """How a rank waits that is in a collective (``call``), as records, counts or its peers tell, whatever it seems to do."""
    if chain.end.kind == "gpu":
        return f"for {chain.awaited}"
    if chain.end.kind not in RUNS:
        return f"in {chain.awaited}"
    where = call or "a collective"
    return f"for its GPU, in {where}" if cards_of(case.history, chain.start.pid).uuids else f"in {where}"


def links(case: Case, chains: Iterable[Chain], calls: Mapping[int | None, str]) -> tuple[Link, ...]:
    """The wait chains of ranks. One whose call is known waits in it, also if its thread spins for its card."""
    found: list[Link] = []
    for chain in chains:
        end, call = (chain.end.node.pid, chain.end.node.tid), calls.get(chain.start.rank)
        spins = chain.end.kind in RUNS and call is not None
        told = waits_as(case, chain, call or "").partition(" ")[2]
        found += (
            msgspec.structs.replace(link, waits_for=told) if spins and (link.pid, link.tid) == end else link
            for link in chain.links
        )
    return tuple(found)


def hang_between(
    case: Case,
    cause: Cause,
    chains: Sequence[Chain],
    summary: str,
    *,
    evidence: tuple[Evidence, ...],
    places: Sequence[Place] = (),
    culprits: Sequence[Place] | None = None,
    refuted: Mapping[str, str] | None = None,
    advice: tuple[str, ...] = (COMPARE,),
    owner: str = "",
    patience: float = STRUCTURAL_SECONDS,
    stood: float | None = None,
    ceiling: float = 1.0,
) -> Finding:
    """A hang of several ranks; the first chain shows that nothing moves.

    Args:
        places: of ranks of which it is known what they are in.
        culprits: in the order in which they are named; else the places, or where the chains end.
        refuted: by cause, why it is none of that.
    """
    blamed = [place.culprit for place in (places if culprits is None else culprits)]
    if culprits is None and not places:
        blamed = [one for chain in chains for one in chain.culprits()]
    return hung(
        case,
        cause,
        chains[0],
        owner=owner,
        summary=summary,
        patience=patience,
        silent=stood,
        ceiling=ceiling,
        evidence=evidence,
        but=refuted,
        next=advice,
        culprits=blamed,
        links=links(case, chains, {place.rank: place.call for place in places}),
    )


# mpi4py


def mpi_calls(line: SourceLine, job: Job) -> frozenset[str]:
    """The methods of a communicator or a request that a line calls, by name.

    A name that much else has as well (``send``, ``wait``) counts only on what is called as these are, in a job of MPI.
    """
    parts = [call.rpartition(".") for call in line.calls]
    plain = {name for _, _, name in parts if name in EXCHANGES}
    common = {name for owner, _, name in parts if name in MPI_COMMON and _RECEIVER.search(owner.rpartition(".")[2])}
    return frozenset(plain | common if common and _is_of_mpi(job) else plain)


def exchange(case: Case, chain: Chain, only: frozenset[str] | None = None) -> SourceLine | None:
    """The line of a rank among several that is in an exchange (``only``: one of these); None where it is not, or that was not read."""
    if not _has_several(case.job) or chain.end.kind != "native" or chain.end.node.stack is None:
        return None
    line = calling_line(case.history, chain.end.node.stack)
    calls = mpi_calls(line, case.job) if line is not None else frozenset()
    return line if (calls if only is None else calls & only) else None


def waits_for_ranks(history: History, job: Job, stack: Stack) -> bool:
    """True if a rank of a job of MPI is at a line of its own that is an exchange with other ranks."""
    line = calling_line(history, stack) if _is_of_mpi(job) else None
    return line is not None and bool(mpi_calls(line, job))


def _is_of_mpi(job: Job) -> bool:
    """True if mpirun or the like started several ranks; a single one exchanges with none."""
    return _has_several(job) and all(
        any(name in rank.process.environment for name in STARTED_BY_MPI) for rank in job.ranks
    )


def _has_several(job: Job) -> bool:
    return max(len(job.ranks), job.world_size or 1) > 1
