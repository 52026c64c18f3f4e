"""Calls between ranks as cards, stacks and lines of text show them: whether a rank is in one, in which, and what travels for it.

mpi4py is compiled: a call into it has no frame of its own, so only the text of the program's line shows it. A rank that waits there
for others spins at a full core. That it runs is no progress, and that it stays in one line is no standstill: many exchanges look so.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from perfwatch.triage.cards.gpu import Regime, regimes
from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch.triage.moving.thresholds import TRAFFIC_SECONDS
from perfwatch.triage.moving.work import SILENT_BYTES_PER_SECOND, Flow, flow, newest_flow
from perfwatch.triage.ranks.groups import WaitGraph
from perfwatch.triage.shares.own_work import has_several, mpi_calls
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import Node
from perfwatch.triage.waits.threads import may_act, other_threads
from perfwatch.triage.words.code import calling_line
from perfwatch.triage.words.frames import any_tag, collective_name, short_name, tags, tags_of
from perfwatch_probes import readings as r
from perfwatch_probes.readings import SourceLine, Stack

MEBIBYTE = 2**20
NEW_GROUP = "new_group"
BEGUN = "a send or receive"  # of which only the handle is seen
RECEIVES = frozenset({"recv", "irecv", "recv_object_list"})
SENDS = frozenset({"send", "isend", "send_object_list"})
POINT_TO_POINT = RECEIVES | SENDS | {"batch_isend_irecv", BEGUN}

ON_CARD = "gpu"  # of a call that only the card shows


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
    hidden: bool = False  # what the card of some rank does for it is hidden by the work of other jobs on it
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


# mpi4py


def exchange(case: Case, chain: Chain, only: frozenset[str] | None = None) -> SourceLine | None:
    """The line of a rank among several that is in an exchange (``only``: one of these); None where it is not, or that was not read."""
    if not has_several(case.job) or chain.end.kind != "native" or chain.end.node.stack is None:
        return None
    line = calling_line(case.history, chain.end.node.stack)
    calls = mpi_calls(line, case.job) if line is not None else frozenset()
    return line if (calls if only is None else calls & only) else None


# What travels between the ranks: over their connections, RDMA ports and NVLink


def has_arrived(flow: Flow | None, on_cards: bool) -> bool:
    """True if nothing is under way over the ranks' connections, and what is exchanged goes over these: gloo has nothing else."""
    return flow is not None and (flow.delivered if on_cards else flow.owes_nothing)


def carried(case: Case, seconds: float) -> Flow | None:
    """What went over the ranks' connections, of what they carried the least; RDMA ports and NVLink count in the rate.

    None: not every rank's were read twice.
    """
    flows = [flow(case.history, rank.pid, seconds) for rank in case.ranks]
    known = [one for one in flows if one is not None]
    if not known or len(known) < len(flows):
        return None
    rates = (*(one.bytes_per_second for one in known), *_rates(case, ("rdma",), seconds))
    return Flow(
        sum(rates) + _nvlink_bytes_per_second(case, seconds),
        sum(one.queued_bytes for one in known),
        sum(one.retransmits for one in known),
        min(one.carried_bytes for one in known),
        sum(one.standing_bytes for one in known),
    )


def _travelling(case: Case, seconds: float) -> float | None:
    """Bytes a second over the last ``seconds``, all interfaces (the loopback too) and cards together; None: not known."""
    rates = _rates(case, ("netdev", "rdma"), seconds)
    return sum(rates) + _nvlink_bytes_per_second(case, seconds) if rates else None


def between_ranks(case: Case) -> float | None:
    """Bytes a second over the ranks' own connections lately; where these were not read, all that travels. None: not known."""
    own = carried(case, WINDOW_SECONDS)
    return _travelling(case, WINDOW_SECONDS) if own is None else own.bytes_per_second


def travels(case: Case) -> bool | None:
    """True if anything goes over the ranks' own connections now; None: those of no rank, or not yet of all, were read twice.

    Of very many ranks on one machine only the first are read: what all of them wait in goes over theirs, too.
    """
    read = [rank.pid for rank in case.ranks if case.history.latest(r.Traffic, rank.pid) is not None]
    flows = [newest_flow(case.history, pid) for pid in read]
    known = [one.bytes_per_second for one in flows if one is not None]
    return None if not known or len(known) < len(flows) else sum(known) > SILENT_BYTES_PER_SECOND


def _rates(case: Case, kinds: tuple[str, ...], seconds: float) -> list[float]:
    """Of each interface or port of these kinds, in each direction, as far as they were read twice."""
    history = case.history
    newest = ((key, history.latest(r.Network, *key)) for key in history.entities(r.Network))
    keys = [key for key, interface in newest if interface is not None and interface.reading.kind in kinds]
    directions: tuple[Callable[[r.Network], float], ...] = (lambda one: one.received_bytes, lambda one: one.sent_bytes)
    rates = (
        (history.rate(r.Network, *key, of=of, seconds=span) for span in (seconds, TRAFFIC_SECONDS))
        for key in keys
        for of in directions
    )
    return [known[0] for each in rates if (known := [rate for rate in each if rate is not None])]


def _nvlink_bytes_per_second(case: Case, seconds: float) -> float:
    """The busiest card's, in its busier direction; 0 where no card tells."""
    cards = [card for rank in case.ranks for card in regimes(case.history, rank.pid, seconds)]
    return max((card.nvlink_mib_per_second or 0.0 for card in cards), default=0.0) * MEBIBYTE
