"""Calls between ranks as cards, stacks and lines of text show them: whether a rank is in one, in which, and how that reads.

mpi4py is compiled: a call into it has no frame of its own, so only the text of the program's line shows it. A rank that waits there
for others spins at a full core. That it runs is no progress, and that it stays in one line is no standstill: many exchanges look so.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from perfwatch.triage.cards.gpu import Regime
from perfwatch.triage.case import Case
from perfwatch.triage.ranks.groups import WaitGraph
from perfwatch.triage.shares.own_work import has_several, mpi_calls
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import Node
from perfwatch.triage.waits.threads import may_act, other_threads
from perfwatch.triage.words.code import calling_line
from perfwatch.triage.words.frames import any_tag, collective_name, short_name, tags, tags_of
from perfwatch_probes.readings import SourceLine, Stack

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
