"""Ranks that others wait for: what keeps one away, whether that may end by itself, and how that is reported.

A rank that has not come stands or works elsewhere, has ended, or cannot be seen from here: then only the others' counts tell about it. Of
a job on many hosts ``AbsentRanks`` knows what became of each host, which no recording of one machine does. No process has looked at the
ranks that it blames, so it does so only where they can be nowhere else.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from perfwatch.text import listed as listed_hosts
from perfwatch.triage.case import Case
from perfwatch.triage.graph.decide import fate_of
from perfwatch.triage.graph.model import Prospect
from perfwatch.triage.graph.thresholds import COUNTS_TIMES
from perfwatch.triage.hang import named, silent_seconds, who
from perfwatch.triage.independence import MAY_COME, ONE_SOURCE
from perfwatch.triage.moving.loops import loop_of
from perfwatch.triage.moving.motion import moves
from perfwatch.triage.moving.work import moves_data
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.ranks.calls import (
    RUNS,
    Place,
    exchange,
    hang_between,
    in_collective,
    leaves,
    listed,
    may_join_beside,
    over,
    rank_of,
    silent,
)
from perfwatch.triage.ranks.groups import FEW, SHOWN, UNHEARD, Seat, WaitGraph, counted_apart, growing
from perfwatch.triage.roles.job import Member
from perfwatch.triage.roles.placement import rank_ranges
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import ENOUGH_SAMPLES, at_training
from perfwatch.triage.shares.thresholds import LASTS
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.locks import awaited as what_it_awaits
from perfwatch.triage.waits.node import ENDLESS_SECONDS, Node
from perfwatch.triage.waits.threads import OTHERS_MOVE, other_threads
from perfwatch.triage.words.code import retries
from perfwatch.triage.words.frames import show
from perfwatch.triage.words.vocabulary import MPI_COLLECTIVES
from perfwatch.verdict import Abstention, Evidence, Finding, Level, Missing, Outcome, doing
from perfwatch_probes.readings import Process, Stack, Thread

STALLED = Cause("stalled_collective", "hung", "user_code", (Process, Thread, Stack))
SETTLED = ("dead", "stopped", "traced", "cycle")  # ends that no work beside them releases
CERTAIN_ENDS = ("dead", "stopped", "lock", "cycle", "gil")
OTHER_WORK = ("pickling", "save", "load", "compile", "import", "http", "group_destroy", "exit")
GONE_SECONDS = 2.0  # of a rank of this host that RAS does not hear from, and of which there is no process here
SINCE = 0.9  # of the others' wait: as it began, this one may have been in the end of its step
MOSTLY = 0.9  # of the samples; a nonblocking dump tears about 3 %
NAME_ALL = "name every host of the job: perfwatch fleet --hosts ..."
LAST_WORDS = "look for the last words of the rank in the job's log"


# Does it come by itself?


def at_rest(case: Case) -> bool:
    """True if no rank here is seen at work, and at least one of them waits for others in a collective, or for a call of theirs.

    To ask a rank's flight recorder leaves a line on the job's standard error that looks like a failure. So no rank is asked that may
    be at work: not while the job starts, makes steps, evaluates or saves, nor while one rank is late.
    """
    if not case.ranks or any(one.kind == "moving" for one in case.progress.values()) or growing(case):
        return False
    if counted_apart(case) is not None:
        return True
    elsewhere = {pid: chain for pid, chain in case.chains.items() if not in_collective(case, chain)}
    return len(elsewhere) < len(case.chains) and all(
        case.progress[pid].kind == "still" and chain.end.still is True and not wakes_soon(case, chain.end)
        for pid, chain in elsewhere.items()
    )


def works(case: Case, chain: Chain, others_waited: float) -> bool:
    """True if a rank that is elsewhere does something that may end: it moves, is at other work, wakes soon, or others work for it.

    A loop that only sleeps and asks again is no work; whether it lasts, the patience of the ranks that wait tells. One of a thread
    or process that it waits for is work at a pace of its own.
    """
    end = chain.end
    fate = fate_of(case, chain.start.pid)
    if fate is not None and fate.prospect is Prospect.LIVE and end.still:
        return True
    if brings_no_batch(case, chain, others_waited):
        return False
    wakes, moved = wakes_soon(case, end), moves(case.history, end.node.pid, end.node.tid)
    if end.kind == "sleep" and wakes and (end.node.motion.ran_ago_seconds or 0.0) >= SINCE * others_waited:
        return True  # one sleep that is over soon, and no try since the others wait
    if end.still and not wakes and end.node.stack is not None:
        return end.kind not in SETTLED and moved.recurrent
    recent = case.profile(case.job.members[chain.start.pid], seconds=WINDOW_SECONDS)
    if recent.samples < ENOUGH_SAMPLES or recent.share_where(at_training) or recent.seen(*OTHER_WORK):
        return True
    if end.kind in ("sleep", "file_poll"):
        beside = (end.node.pid, end.node.tid) != (chain.start.pid, chain.start.tid)
        return beside or end.node.motion.distinct > 1 or moved.recurrent
    return end.kind != "python" or moves_data(case.history, chain.end.node)


@dataclass(frozen=True)
class Stay:
    """How a rank stays away: how long it may, for how long it has, how sure it is at most that it does not come, and what shows it."""

    patience: float
    seconds: float
    ceiling: float = 1.0
    evidence: tuple[Evidence, ...] = ()
    holder: Chain | None = None  # the rank that has the lock for which it waits, and waits in the collective itself


def stay(case: Case, waiting: list[Chain], absent: list[Chain]) -> Stay:
    """How the first of the absent ranks stays away from those that wait.

    It stays whatever time may bring if its program is over, its end settles that, it sleeps for too long, or waits for those that wait
    for it. Else it may ask for one thing after the other, and the others wait for all of them; a loop that sleeps and asks again waits
    for one. If it runs something that reaches its end one day, as far as its source tells, it may come.
    """
    end, waited, holder = absent[0].end, silent(waiting), _holder_waits(case, waiting, absent[0])
    beside = end.detail == OTHERS_MOVE
    settled = (end.kind in CERTAIN_ENDS and not beside) or over(absent[0]) or outlasts(case, end) or holder is not None
    if settled or waits_for_all(case, waiting, absent):
        return Stay(STRUCTURAL_SECONDS, max(waited, end.silent_seconds or 0.0), holder=holder)
    since: list[float | None] = [waited]
    if end.still and end.kind not in ("sleep", "file_poll"):
        since += [end.silent_seconds, moves(case.history, end.node.pid, end.node.tid).ago_seconds]
        if end.node.wait is not None and (end.node.wait.remaining_seconds or 0.0) > ENDLESS_SECONDS:
            since.append(
                end.node.motion.ran_ago_seconds
            )  # no rhythm has so long a timeout: the kernel knows when it began
    loads = brings_no_batch(case, absent[0], waited)
    computes = bool(loads) or (end.kind == "python" and not loop_of(case.history, end.node).may_turn_for_ever)
    rests = (end.kind == "sleep" and not end.still) or (end.kind == "lock" and beside)
    ceiling = MAY_COME if computes or rests or end.kind in ("file_poll", "rendezvous") else 1.0
    patience = temporal(case) * (
        COUNTS_TIMES if computes else 1.0
    )  # nothing of it is flat: others wait, and it may come
    return Stay(patience, min(one for one in since if one is not None), ceiling, loads)


def brings_no_batch(case: Case, chain: Chain, others_waited: float) -> tuple[Evidence, ...]:
    """What shows that a rank has been in its own loader alone since the others wait, if that is a good part of the patience.

    A loop over data that gives no batch (each sample is filtered out) reads all the while and looks like training; the ranks that
    wait in a collective prove that no step was made.
    """
    if chain.end.kind not in RUNS or others_waited < LASTS * temporal(case):
        return ()
    since = case.profile(case.job.members[chain.start.pid], seconds=SINCE * others_waited)
    trained = since.seen("forward", "backward", "optimizer", "collective")
    if since.samples < ENOUGH_SAMPLES or since.share("loader") < MOSTLY or trained:
        return ()
    looked = f"{since.share('loader'):.0%} of {since.samples} samples, none in a forward or backward pass"
    claim = "is in its loader all the while"
    return (case.saw("stack", f"pid {chain.start.pid}", claim, looked, "a batch, and then a step"),)


def waits_for_all(case: Case, waiting: list[Chain], absent: list[Chain]) -> bool:
    """True if ranks wait for others to appear (a key in the store, a new group) that all wait for them: no time heals that.

    A thread beside one of them that rests may set the key yet.
    """
    everybody = [*waiting, *absent]
    asks = all(chain.end.kind == "rendezvous" for chain in absent)
    if not asks or not case.job.covered or len(everybody) < len(case.job.ranks):
        return False
    return not any(may_join_beside(case, chain.start) for chain in everybody)


def _holder_waits(case: Case, waiting: list[Chain], absent: Chain) -> Chain | None:
    """The rank that has the file's lock for which an absent one waits, and waits in the collective itself; no thread beside it acts."""
    if absent.end.kind != "file_lock":
        return None
    held = (chain for chain in waiting if chain.start.pid in absent.end.others)
    return next((chain for chain in held if not may_join_beside(case, chain.end.node)), None)


def is_unread(case: Case, chain: Chain) -> bool:
    """True if it is not known what a rank does: neither its stack nor what it is blocked in."""
    node = chain.end.node
    seen = node.stack is not None or node.wait is not None or case.profile(case.job.members[chain.start.pid]).samples
    return not seen and chain.end.kind not in ("dead", "stopped")


def others_train(case: Case, pid: int) -> bool:
    """True if a rank is done and another one is not: it has more to wait for than the end of this one's threads."""
    others = [chain for other, chain in case.chains.items() if other != pid]
    if leaves(case.chains[pid]):
        return any(not leaves(chain) for chain in others)
    return case.job.covered and any(in_collective(case, chain) and not over(chain) for chain in others)


def left_over(case: Case, chain: Chain) -> list[Node]:
    """The program's own threads that go on while the interpreter waits for all that are not daemons."""
    end = chain.end.node
    frames = end.stack.frames if end.stack is not None else ()
    if not any(frame.function == "_shutdown" and frame.file.endswith("/threading.py") for frame in frames):
        return []
    return [one for one in other_threads(case.history, case.job, end) if one.frame is not None][:FEW]


# Has it ended?


def missed(case: Case, graph: WaitGraph | None) -> list[Member]:
    """Ranks that have ended and may be waited for, those first that failed; only these where the groups tell who is waited for."""
    gone = [rank for rank in case.job.ranks if not rank.alive]
    gone.sort(key=lambda one: (one.ended is not None and one.ended.exit_code == 0, not _failed(one)))
    if graph is None or not graph.edges or any(seat.rank is None for seat in graph.ends):
        return gone
    targets = {rank for edges in graph.edges.values() for rank in edges}
    return [rank for rank in gone if rank.rank in targets]


def lost(gone: Sequence[Member], absent: Collection[Chain], graph: WaitGraph | None, at_work: bool) -> Member | None:
    """The rank whose end keeps the others waiting; None where that may be one that lives.

    One that was killed or has failed mostly does. One that came to its end may be in no group that goes on: its work is done, and
    the others wait for one that still evaluates, or stands.

    Args:
        gone: as ``missed``.
        absent: ranks that live and have not come either.
        graph: where it shows who waits for whom, the ranks that have ended are among those.
        at_work: whether one of the absent ones does something that may end.
    """
    if not gone or not absent or (graph is not None and graph.edges) or _failed(gone[0]):
        return gone[0] if gone else None
    ended = gone[0].ended
    return None if at_work or (ended is not None and ended.exit_code == 0) else gone[0]


def _failed(rank: Member) -> bool:
    return rank.ended is not None and bool(rank.ended.exit_code or rank.ended.signal)


# How it is reported


def calls_of(graph: WaitGraph | None, waiting: Sequence[Chain]) -> tuple[str, list[Place]]:
    """What ranks wait in, as the recorders name it, or else as the stacks do: of the first of which it is known, and of each."""
    known = graph.calls if graph is not None else {}
    stands = waiting[0].awaited if waiting[0].end.kind == "collective" else "the collective that the others are in"
    op = next((name for chain in waiting if (name := known.get(rank_of(chain)))), stands)
    return op, [Place.of(chain, known.get(rank_of(chain), op)) for chain in waiting]


def unseen(case: Case, waiting: list[Chain], graph: WaitGraph, seat: Seat) -> Outcome:
    """The rank at the end is on another machine, may not be looked at, or is gone: only the others' counts tell about it.

    What it does is not known: it may write a checkpoint. So it gets the whole hang timeout.
    """
    if not waiting:
        return None
    gone, (op, places) = seat.state in UNHEARD, calls_of(graph, waiting)
    patience = STRUCTURAL_SECONDS if gone else temporal(case)
    why = f"never joined {op}: it has called less often than the others, and no count grows"
    why += ", and RAS does not hear from it" if gone else ""
    advice = f"perfwatch attach on {seat.host or 'the node of that rank'}: its own stack says why"
    if gone and not seat.host and seat.pid is None and len(case.ranks) < (case.job.world_size or 0):
        patience = GONE_SECONDS
        why = f"is gone, and never joined {op}: no process of it is here any more, and RAS does not hear from it"
        advice = "no process of that rank is here any more: look at what it printed last, and for the OOM killer in the kernel log"
    elif seat.pid in case.chains:
        advice = f"sudo $(command -v perfwatch) attach {seat.pid}: its own stack says why"
    return hang_between(
        case,
        STALLED,
        waiting,
        f"{seat.name} {why}; {listed(waiting)} for it",
        patience=patience,
        stood=graph.seconds,
        evidence=graph.evidence(case),
        places=places,
        culprits=(Place(seat.rank, seat.pid or 0, "", host=seat.host or None),),
        advice=(advice,),
    )


def ended(case: Case, waiting: Chain, gone: Member, graph: WaitGraph | None) -> Finding:
    """A rank of this host has ended, and another one waits for it."""
    op, places = calls_of(graph, [waiting])
    return hang_between(
        case,
        STALLED,
        [waiting],
        f"rank {gone.rank} (pid {gone.pid}) is gone and rank {waiting.start.rank} waits for it in {op}",
        stood=None if graph is None else max(graph.seconds, silent_seconds(case, waiting)),
        evidence=(_has_ended(case, gone), *(graph.evidence(case) if graph is not None else ())),
        places=places,
        culprits=(Place(gone.rank, gone.pid, ""),),
        advice=("dmesg | grep -i 'killed process'",),
    )


def left_behind(case: Case, gone: Sequence[Member]) -> Finding | None:
    """Ranks stay in a collective of MPI after another one has ended; it may be one of a communicator that this one was not in."""
    waiting = [chain for chain in case.still_chains if exchange(case, chain, MPI_COLLECTIVES)]
    line = exchange(case, waiting[0], MPI_COLLECTIVES) if waiting and gone else None
    if line is None:
        return None
    place = line.text.strip()[:80]
    return hang_between(
        case,
        STALLED,
        waiting,
        f"rank {gone[0].rank} (pid {gone[0].pid}) is gone and {listed(waiting)} for it: {place}",
        patience=temporal(case),
        ceiling=Level.HIGH,
        evidence=(_has_ended(case, gone[0]),),
        places=[Place.of(chain, place) for chain in waiting],
        culprits=(Place(gone[0].rank, gone[0].pid, ""),),
        advice=("look at what that rank printed last: did it leave a loop earlier than the others?",),
    )


def _has_ended(case: Case, gone: Member) -> Evidence:
    return case.saw("process", f"rank {gone.rank}", "is gone", f"pid {gone.pid} has ended", "alive")


def why_absent(case: Case, absent: Chain, left: list[Node], roots: list[Node], holder: Chain | None) -> str:
    """What keeps a rank away: a wait, of others too, or that it is done and its process only waits for threads of its own."""
    end = absent.end
    if holder is not None:
        has = f"rank {holder.start.rank}, which waits at {show(holder.start.frame)} itself"
        return f"{who(absent)} {doing(absent.awaited)}: that is {has}"
    if end.kind == "sleep" and end.node.stack is not None and retries(case.history, end.node.stack):
        return f"{who(absent)} backs off and tries again and again"
    if not over(absent):
        also = "".join(f", and {named(one, absent.end.node.pid)} for {what_it_awaits(one)}" for one in roots[:2])
        return f"{who(absent)} {doing(absent.awaited)}{also}"
    until = f"thread {left[0].name or left[0].tid} at {show(left[0].frame)} to end" if left else absent.awaited
    return f"its program is over, and {who(absent)} {doing(until)}"


# Jobs on many hosts


class AskedHost(Protocol):
    """What became of one host that was asked: ``silent``, ``no_job`` and ``answered`` are the states that matter here."""

    @property
    def host(self) -> str:
        """Its name."""

    @property
    def state(self) -> str:
        """What became of it."""

    @property
    def reason(self) -> str:
        """Why it did not answer."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were seen there."""

    @property
    def unclear(self) -> bool:
        """True if ranks of the job may be there that were not seen."""


@dataclass(frozen=True)
class _Where:
    """What became of the ranks that were seen nowhere. ``host``: the one that can have them."""

    hosts: tuple[str, ...]
    does: str
    told: str
    next: str
    host: str | None = None
    ceiling: float = Level.HIGH  # the culprits were not seen


@dataclass(frozen=True)
class AbsentRanks:
    """The rule, with what is known of the hosts.

    Attributes:
        reports: what became of each host that was asked.
        complete: whether these are all hosts of the job: then a rank that is on none of them has ended.
        advice: how every process of a host can be looked at.
    """

    reports: Sequence[AskedHost]
    complete: bool = False
    advice: str = ""

    @property
    def rule(self) -> Rule:
        """As the catalogue has it."""
        return Rule(STALLED, self._judge)

    def _judge(self, case: Case) -> Outcome:
        """Fires when all that is seen waits for ranks on a host that is silent, or that are on no host of the job any more."""
        ranks = case.job.absent
        waiting = [chain for chain in case.still_chains if chain.end.kind in ("collective", "gpu")]
        if not ranks or not waiting or len(waiting) < len(case.ranks) or len(case.ranks) < len(case.job.ranks):
            return None
        lost, victims = rank_ranges(ranks), rank_ranges(chain.start.rank or 0 for chain in waiting)
        where, unclear = self._where(len(ranks)), [report.host for report in self.reports if report.unclear]
        if where is None or unclear:
            reason, advice = "was seen on no host that was asked: another host has it, or it has ended", NAME_ALL
            if unclear:
                reason = f"may be on {listed_hosts(unclear)}, where not every process could be looked at"
                advice = f"{self.advice}; what hinders a look is told of each host"
            missing = Missing(witness="ranks", reason=f"rank {lost} {reason}", advice=advice)
            return Abstention(cause=STALLED.name, missing=(missing,))
        reasons = {report.host: report.reason or "no answer" for report in self.reports}
        return hang_between(
            case,
            STALLED,
            waiting,
            f"rank {lost} was seen nowhere and {where.told}; rank {victims} waits for it in {waiting[0].awaited}",
            owner="node",
            patience=temporal(case),
            ceiling=where.ceiling,
            evidence=tuple(
                case.saw("host", host, where.does, reasons[host], "answers, with its ranks") for host in where.hosts[:3]
            ),
            culprits=[Place(rank, 0, "", host=where.host) for rank in islice(ranks, SHOWN)],
            refuted={"straggling_rank": "no rank that is seen has moved; a look at the absent one would tell"},
            advice=(where.next,),
        )

    def _where(self, absent: int) -> _Where | None:
        """None where they may do well on a host that was not asked.

        A host may be listed and run no process of the job (a login node, a spare one). That says nothing about ranks.
        """
        mute, without = (
            tuple(report.host for report in self.reports if report.state == state) for state in ("silent", "no_job")
        )
        most = max((len(report.ranks) for report in self.reports), default=0)  # that any host has
        fits = absent <= most * len(mute)
        if mute and (fits or self.complete):
            host = mute[0] if len(mute) == 1 and fits and not without else None
            console = f"look at {mute[0]}, and at what its console says: it may be down, or out of memory"
            return _Where(mute, "does not answer", f"{listed_hosts(mute)} does not answer", console, host)
        has_none = f"{listed_hosts(without)} has no process of this job"
        if self.complete:
            told = "all hosts of the job have answered: it has ended" + (f" ({has_none})" if without else "")
            return _Where(without, "has no process of this job", told, LAST_WORDS)
        if without and not mute:
            return _Where(without, "has no process of this job", has_none, NAME_ALL, ceiling=ONE_SOURCE)
        return None
