"""Causes that the wait graph itself gives: a hang that no other rule names, and a wait for work in progress.

``unknown``: every rank is blocked, nothing that could release it can or does for the hang timeout, and no other cause fits.
``waiting_on_work``: the training thread waits for a child process, a lock holder, another rank, or other threads that work. The graph
says who works, or when who wakes; what is left to the rule is when that is worth saying.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.graph.builder import Builder
from perfwatch.triage.graph.claims import one_call_times
from perfwatch.triage.graph.decide import (
    TABLE,
    State,
    a_releaser_runs,
    is_settled,
    silence_of_rank,
    states_of,
    wait_graph_of,
    watched_seconds,
)
from perfwatch.triage.graph.model import Activity, Ends, Fate, Key, Kind, Needs, Prospect, Resource, Role, Task, Unread
from perfwatch.triage.hang import nearest, subject, who, witnesses
from perfwatch.triage.moving.loops import loop_of, moves_data
from perfwatch.triage.moving.memory import since_training
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.moving.thresholds import LATE_SECONDS, MEANT_SECONDS, SIGN_OF_LIFE, WORKS_BYTES
from perfwatch.triage.moving.work import Work, data_of, work_of
from perfwatch.triage.patience import temporal
from perfwatch.triage.rule import Cause, Facts, Line, Rule
from perfwatch.triage.rules.processes import through_a_queue, without_a_batch
from perfwatch.triage.shares.data import for_training, starving
from perfwatch.triage.shares.profile import ENOUGH_SAMPLES, at_training
from perfwatch.triage.shares.thresholds import LASTS, LATELY_SECONDS
from perfwatch.triage.waits.chain import Chain, link
from perfwatch.triage.waits.node import EVENT_LOOP, Node, culprit, node_of
from perfwatch.triage.words.frames import show
from perfwatch.verdict import SLEEP, SLEEP_LEFT, Culprit, Finding, Level, Link, Outcome, Suspect, doing
from perfwatch_probes.readings import Process, ProcessUsage, Thread

# Sentences about a settled wait: what a task is blocked on, and why nothing can release it

SHOWN = 3


def said_of(built: Builder, task: Task) -> str:
    """A task in few words."""
    if task.kind == "thread":
        return subject(built.node(task.key))
    if task.activity is Activity.CARD:
        return f"GPU {task.key[1]}"
    return f"{'rank' if task.activity is Activity.RANK else 'process'} {task.key[1]}"


def blocked_on(built: Builder, task: Task) -> str:
    """What a sink does: ``pid 12 at fit (train.py:3) is blocked on a lock``."""
    does_so = f"is blocked on {task.waits[0].kind.value}" if task.waits else does(built, task)
    return f"{said_of(built, task)} {does_so}"


def does(built: Builder, task: Task) -> str:
    """What a task does that waits for no other one."""
    if task.activity is Activity.GONE:
        return "has ended"
    if task.activity is Activity.STOPPED:
        return "is stopped"
    if task.activity is Activity.SLEEPS:
        return doing(_sleep(built, task))
    if task.activity is Activity.CARD:
        return "executes a kernel that moves no data"
    return "makes no progress"


def _sleep(built: Builder, task: Task) -> str:
    """What a sleeping thread waits for."""
    wait = (node := built.nodes.get(task.key)) and node.thread and node.thread.wait
    return f"{SLEEP}{SLEEP_LEFT}{duration(wait.remaining_seconds)}" if wait and wait.remaining_seconds else SLEEP


def why_settled(built: Builder, task: Task) -> str:
    """Why nothing releases a sink: each possible releaser, and what keeps it."""
    if task.fate is not None and not task.waits:
        return f"it {does(built, task)}"
    claims = [key for resource in task.waits for key in built.graph.claims.get(resource, {})]
    others = [built.graph.tasks[key] for key in claims if key != task.key]
    if not others:
        return "no other thread or process can reach it"
    shown = "; ".join(_kept(built, other) for other in others[:SHOWN])
    return shown + (f"; and {len(others) - SHOWN} more that are blocked" if len(others) > SHOWN else "")


def _kept(built: Builder, task: Task) -> str:
    """A releaser, and what it waits for itself."""
    if task.activity in (Activity.PROCESS, Activity.RANK):
        inner = [
            built.graph.tasks[claim.task] for resource in task.waits for claim in built.graph.known_claims(resource)
        ]
        return (
            "; ".join(blocked_on(built, one) for one in inner[:1]) or f"{said_of(built, task)} has no thread that runs"
        )
    return blocked_on(built, task)


def pid_of(task: Task) -> int | None:
    """The process of a thread, or of a task that is one."""
    if task.pid:
        return task.pid
    key: Key = task.key
    return key[1] if task.kind == "gone" and isinstance(key[1], int) else None


# A hang without a name

UNKNOWN = Cause("unknown", "hung", "unknown", (Thread,))
NO_NAME = UNKNOWN.line("""
    {sink}. {claim}[: {reason}]
    - not waiting_on_work: no task on the way runs or moves data
    - next: perfwatch capture stacks {pid}
    - next: perfwatch capture stacks {pid} --native
""")
SHOWN_LINKS, SHOWN_CULPRITS = 12, 3
SETTLED = "No thread or process that perfwatch can see can still release this wait"
OPEN = "No thread or process that perfwatch can see is working to release this wait"


def unknown(case: Case) -> Outcome:
    """Every rank is blocked, and what could release it is blocked, too. One that paused for as long before may still get a name."""
    paused = any(case.chains[rank.pid].start.wait is not None and case.moves(rank).recurrent for rank in case.ranks)
    states = () if paused else standing(case)
    return _finding(case, states) if states else None


def standing(case: Case) -> tuple[State, ...]:
    """The states of all ranks, if each is hung, and was watched for long enough; else none."""
    states = _blocked(case)
    if any(one.state != "hung" for one in states):
        return ()
    soon = all(one.needs_seconds == TABLE.frozen for one in states)  # as the kernel remembers, however short the look
    return states if soon or watched_seconds(case) >= TABLE.unnamed else ()


def unnamed_suspect(case: Case) -> Suspect | None:
    """A hang without a name to come: all ranks have been blocked for longer than within a step."""
    states = _blocked(case)
    silent = min((one.silence.seconds for one in states), default=0.0)
    left = max((one.needs_seconds for one in states), default=0.0) - silent
    if silent < SHORT_SECONDS or left <= 0:
        return None
    silent, left = round(silent, 1), round(left, 1)
    return Suspect(state=UNKNOWN.state, cause=UNKNOWN.name, silent_seconds=silent, decides_in_seconds=left)


def _blocked(case: Case) -> tuple[State, ...]:
    """The states of all ranks, if each is hung or may be by and by, and nothing that could release it runs; else none."""
    if not case.ranks or watched_seconds(case) < TABLE.frozen:
        return ()
    built = wait_graph_of(case)
    if any(built.graph.fates[key].prospect > Prospect.OPEN for key in built.starts.values()):
        return ()
    if not is_settled(case) and (a_releaser_runs(case, *built.starts) or _is_unread(built)):
        return ()
    states = tuple(states_of(case))
    blocked = all(one.state in ("hung", "inconclusive") and _is_still(built, one) for one in states)
    return states if blocked else ()


def _is_unread(built: Builder) -> bool:
    """True if something was not read of a task that may release a wait of some rank."""
    reached = built.graph.reachable(*built.starts.values())
    return any(isinstance(built.graph.fates[task.key].why, Unread) for task in reached)


def _is_still(built: Builder, state: State) -> bool:
    """True if nothing can release the wait of a rank, or if all that could is blocked: none of it runs or polls.

    A rank that is in a call with others spins for its card, and waits. So does an event loop in which a timer fires now and then.
    """
    if state.fate is None or state.fate.prospect is Prospect.SETTLED:
        return state.fate is not None
    return all(
        task.activity not in (Activity.RUNS, Activity.POLLS)
        or task.pid in built.calls.by_pid
        or (task.activity is Activity.POLLS and EVENT_LOOP in built.node(task.key).inner)
        for task, _ in state.sinks
    )


def _finding(case: Case, states: tuple[State, ...]) -> Finding:
    built = wait_graph_of(case)
    # The rank whose way is the shortest is the nearest to what all wait for.
    state = min(states, key=lambda one: len(built.graph.way(built.starts[one.pid])))
    pid, sinks = state.pid, [task for task, _ in state.sinks]
    fates = [one.fate for one in states if one.fate is not None]
    silent = min(one.silence.seconds for one in states)
    if is_settled(case):
        claim, reason, at = SETTLED, why_settled(built, sinks[0]), sinks[0]
    else:
        claim, reason = f"{OPEN} for {duration(silent)}", next(f"not ruled out: {one.why}" for one in fates if one.why)
        at = next((one for one in sinks if one.kind == "thread"), built.graph.tasks[built.starts[pid]])
    at_pid = pid_of(sinks[0]) or pid
    works = "a thread or process works on it, or will"
    graph = case.saw("wait graph", f"pid {at_pid}", claim.lower(), reason, works)
    blamed = tuple(_culprit(built, pid, task) for task in sinks[:SHOWN_CULPRITS])
    more = (graph, *witnesses(case, case.chains[pid]))
    facts = Facts(
        pid=at_pid, sink=blocked_on(built, at), claim=claim, reason=reason if is_settled(case) and at.waits else None
    )
    # until then the rules name what they can
    left = max(0.0, case.apart_seconds - silent, TABLE.unnamed - min(silent, watched_seconds(case)))
    return msgspec.structs.replace(
        NO_NAME.finding(case, blamed, Level.MEDIUM, more=more, **facts),
        wait_chain=_links(built, pid),
        silent_seconds=round(silent, 1),
        decides_in_seconds=round(left, 1),
    )


def _culprit(built: Builder, pid: int, task: Task) -> Culprit:
    """The sink; where that is no process, the rank that waits for it."""
    if task.kind == "thread":
        return culprit(built.node(task.key))
    own = pid_of(task)
    member = built.job.members.get(own or pid)
    rank_pid = member.rank_pid if member is not None else None
    return Culprit(
        pid=rank_pid or own or pid,
        rank=member.rank if member is not None else None,
        worker_pid=own if own not in (None, rank_pid, pid) else None,
    )


def _links(built: Builder, pid: int) -> tuple[Link, ...]:
    """The threads on the way, from the training thread to the sink."""
    way = [task for task, _ in built.graph.way(built.starts[pid]) if task.kind == "thread"][:SHOWN_LINKS]
    waits = (
        task.waits[0].kind.value
        if task.waits
        else _sleep(built, task)
        if task.activity is Activity.SLEEPS
        else does(built, task)
        for task in way
    )
    nodes = (built.node(task.key) for task in way)
    return tuple(
        link(built.history, node, what, depth) for depth, (node, what) in enumerate(zip(nodes, waits, strict=True))
    )


# Work in progress

WAITING_ON_WORK = Cause("waiting_on_work", "busy", "user_code", (Process, ProcessUsage, Thread))
WORKS = WAITING_ON_WORK.line("""
    {waits}; {worker} {does}: {doing}
    - saw usage: works | {doing} | nothing would mean a hang
    - saw thread of pid {start}: the training thread waits for it | at {at} for {ago:time}
    - next: perfwatch attach {start} --watch
""")
WAKES = WAITING_ON_WORK.line("""
    {worker} sleeps, and wakes in {left:time}[; {waits} that it {releases}]
    - saw syscall: sleeps until a known moment | wakes in {left:time}
    - next: perfwatch attach {start} --watch
""")

ASLEEP_SHARE = 0.6  # of the time: what is handed over may take some work to put together
PREPARING_SECONDS = 30.0
SHORT_SECONDS = 10.0  # a wait that belongs to a step


def waiting_on_work(case: Case) -> Outcome:
    """Fires on a rank that stands still while a task works for it, or wakes at a known moment."""
    starved = starving(case)
    fed = starved.rank.pid if starved is not None and starved.asked is not None else None  # answer by answer
    waiting = (_of(case, chain) for pid, chain in case.chains.items() if not case.moving and pid != fed)
    return nearest(one for found in (waiting, _through_data(case)) for one in found)


def _waits(case: Case, chain: Chain, task: Task) -> bool:
    """True if a training thread waits: it does not move, polls, or gets result after result of which it makes no steps."""
    now = case.progress[chain.start.pid].kind
    if chain.start.pid in case.history.once(("still",), lambda: frozenset(one.start.pid for one in case.still_chains)):
        return True
    if now == "moving":
        return False
    polls = bool(task.waits) and (task.activity is Activity.POLLS or task.waits[0].kind is Kind.LOOP)
    return polls or (now != "unknown" and _rests_between_results(case, chain))


def _rests_between_results(case: Case, chain: Chain) -> bool:
    rank = case.job.members[chain.start.pid]
    if (case.motion(rank, LATELY_SECONDS).asleep_share or 0.0) < ASLEEP_SHARE:
        return False
    return for_training(case, rank, case.profile(rank, PREPARING_SECONDS)) is False


def _of(case: Case, chain: Chain) -> Finding | None:
    built = wait_graph_of(case)
    start = built.starts[chain.start.pid]
    fate, way = built.graph.fates[start], built.graph.releasers(start)
    if not _waits(case, chain, built.graph.tasks[start]):
        return None
    if fate.prospect is Prospect.LIVE and len(way) > 1:
        return _works(case, built, chain, way, fate)
    if fate.prospect is Prospect.OPEN:
        works = next(_working_members(built, start), None)
        if works is not None:
            way = [built.graph.tasks[start], *built.graph.releasers(works)]
            return _works(case, built, chain, way, built.graph.fates[works])
        running = _in_loops(case, built) - {start}
        ends = [task for task, _ in built.graph.sinks(start) if task.key in running] if running else []
        return _works(case, built, chain, [built.graph.tasks[start], ends[0]], fate) if ends else None
    if fate.prospect is Prospect.DUE and 0.0 < fate.until - case.at <= MEANT_SECONDS:
        return _wakes(case, built, chain, way, fate)
    return None


def _working_members(built: Builder, start: Key) -> Iterator[Key]:
    """The ranks that work for one that waits for several, some of which may not come."""
    for resource in built.graph.tasks[start].waits:
        if resource.needs is Needs.ALL:
            claimed = built.graph.claims.get(resource, {})
            yield from (key for key in claimed if built.graph.fates[key].prospect is Prospect.LIVE)


def _in_loops(case: Case, built: Builder) -> frozenset[Key]:
    """The tasks that run in a loop which may come to its end by itself."""

    def found() -> frozenset[Key]:
        loops = [task for task in built.graph.tasks.values() if task.activity is Activity.RUNS and task.waits]
        return frozenset(
            task.key for task in loops if task.waits[0].kind is Kind.LOOP and task.ends in (Ends.COUNTS, Ends.UNREAD)
        )

    return case.history.once(("in loops",), found)


def _works(case: Case, built: Builder, chain: Chain, way: list[Task], fate: Fate) -> Finding | None:
    node, pid = _last(case, built, way)
    if node == chain.start and way[-1].kind != "sent":
        return None
    resource, role = _over(built, way)
    measured = work_of(case.history, pid)
    used = measured if measured.sign >= SIGN_OF_LIFE else Work(fate.works)
    if used.sign < SIGN_OF_LIFE:
        return None
    in_call = any(task.kind == "rank" for task in way)
    silent = max(0.0, silence_of_rank(case, chain.start.pid).seconds)
    moves = used.data >= WORKS_BYTES and pid != chain.start.pid and fate.prospect is Prospect.LIVE
    may = role is Role.MAY_PROVIDE
    beside = may and pid in case.chains  # whether for this wait is not seen
    slow = "loader" in chain.through  # it may only be slow
    needs = LASTS * temporal(case) if in_call or beside or slow else 0.0
    last = way[-1]
    if last.activity is Activity.RUNS and last.ends in (Ends.CONDITION, Ends.NEVER, Ends.ONE_CALL):
        # It may work, or turn for ever: until its time is over that is not known.
        one_call = last.ends is Ends.ONE_CALL
        needs = temporal(case) * (one_call_times(case, node, built.loops[last.key]) if one_call else 1.0)
    sure = Level.HIGH if moves and not in_call and not may and chain.start.stack is not None else Level.MEDIUM
    facts = Facts(
        waits=_waits_for(chain, resource),
        does="may release it, and is working" if may else "is working on it",
        doing=used.said if used is measured or not fate.why else fate.why,
        at=show(chain.start.frame),
        ago=chain.start.motion.ran_ago_seconds or 0.0,
    )
    return _waiting(case, WORKS, chain, node, pid, sure, silent, needs - silent, **facts)


def _wakes(case: Case, built: Builder, chain: Chain, way: list[Task], fate: Fate) -> Finding | None:
    node, pid = _last(case, built, way)
    resource, role = _over(built, way)
    left, silent = fate.until - case.at, max(0.0, silence_of_rank(case, chain.start.pid).seconds)
    own = len(way) == 1
    waited = max(silent, chain.start.motion.ran_ago_seconds or 0.0)
    long = max(left, waited) >= case.patience_seconds or waited >= LASTS * case.patience_seconds
    if left + silent < SHORT_SECONDS or not (long or own or role is not Role.MAY_PROVIDE):
        return None
    leaf = built.graph.fates[way[-1].key]
    brief = left + (way[-1].silence.seconds if way[-1].silence else 0.0) < case.patience_seconds
    doubtful = not leaf.works or (role is Role.MAY_PROVIDE and brief)
    releases = "may release" if role is Role.MAY_PROVIDE else "releases"
    facts = Facts(left=left, waits=None if own else _waits_for(chain, resource), releases=releases)
    # What a time limit brings is not known; a thread that only may release it may look up now and then, for other reasons.
    return _waiting(
        case, WAKES, chain, node, pid, Level.MEDIUM, silent, left + LATE_SECONDS if doubtful else 0.0, **facts
    )


def _waiting(
    case: Case, line: Line, chain: Chain, node: Node, pid: int, sure: float, silent: float, decides: float, **facts: Any
) -> Finding:
    """A rank waits for a thread, and that is no hang."""
    blamed = culprit(node) if pid in case.job.members else Culprit(pid=pid)
    known = Facts(pid=pid, start=chain.start.pid, worker=_worker(case, node, pid, chain)) | facts
    return msgspec.structs.replace(
        line.finding(case, (blamed,), sure, **known),
        wait_chain=chain.links,
        silent_seconds=round(silent, 1),
        decides_in_seconds=round(max(0.0, decides), 1),
    )


def _last(case: Case, built: Builder, way: list[Task]) -> tuple[Node, int]:
    """The task that works or wakes, as a thread of a process."""
    last = next(
        task for task in reversed(way) if task.kind in ("thread", "native", "work", "passes", "process", "bytes")
    )
    if last.kind == "bytes":
        last = next(iter(_senders(built, last)), way[0])
    if last.kind == "passes":
        last = built.graph.tasks[built.starts[int(str(last.key[1]))]]
    if last.kind == "thread":
        return built.node(last.key), last.pid
    pid, *tid = (int(str(part)) for part in last.key[1:])
    if last.kind == "work" and pid == way[0].pid:  # of its own process: another thread does it
        beside = [one for one in case.history.of(Thread, pid) if one[1] != way[0].tid]
        tid = [max(beside, key=lambda one: motion(case.history, *one).run_share or 0.0)[1]] if beside else []
        return node_of(case.history, case.job, pid, *tid), pid
    return node_of(case.history, case.job, pid, *(tid if last.kind == "native" else ())), pid


def _senders(built: Builder, arriving: Task) -> list[Task]:
    """The processes at the other end of what bytes arrive on."""
    resources = [one for one, claims in built.graph.claims.items() if arriving.key in claims]
    return [
        built.graph.tasks[one.task]
        for over in resources
        for one in built.graph.known_claims(over)
        if one.task[0] == "process"
    ]


def _over(built: Builder, way: list[Task]) -> tuple[Resource | None, Role]:
    """What the first task waits for, and the weakest claim on the way."""
    first, weakest = None, Role.HOLDS
    for task, next_one in pairwise(way):
        for resource in task.waits:
            claim = built.graph.claims.get(resource, {}).get(next_one.key)
            if claim is not None:
                first = first or resource
                weakest = max(weakest, claim.role)
                break
    return first or next(iter(way[0].waits), None), weakest


def _waits_for(chain: Chain, resource: Resource | None) -> str:
    rank = f"rank {chain.start.rank}" if chain.start.rank is not None else f"pid {chain.start.pid}"
    return f"{rank} is blocked on {(resource.kind if resource else Kind.UNKNOWN).value}"


def _worker(case: Case, node: Node, pid: int, chain: Chain) -> str:
    at = f" at {show(node.frame)}" if node.frame else ""
    if node.pid == chain.start.pid and node.tid != node.pid:
        return f"thread {node.name or node.tid}{at}"
    member = case.job.members.get(pid)
    program = f" ({member.process.name})" if member is not None and not member.process.python else ""
    return f"process {pid}{program}{at}"


def _through_data(case: Case) -> Iterator[Finding]:
    """A finding for each rank that has made no step for a while because a thread goes through data.

    It is the training thread's own Python, or a worker's that owes it a batch. It reads or writes all the time, and data come to an
    end: predictions that are written out, a stream that skips to where a run had stopped, a buffer that fills before the first batch.
    """
    for pid, chain in case.chains.items():
        if case.progress[pid].kind == "moving" or chain.end.kind != "python":
            continue
        node, loop, lasts = chain.end.node, loop_of(case.history, chain.end.node), _lasts(case, chain)
        if not moves_data(case.history, node) or loop.may_turn_for_ever or lasts < LASTS * temporal(case):
            continue
        doing = Work(node.motion.run_share or 0.0, data_of(case.history, node.pid, [node.tid])).said
        line = WAITING_ON_WORK.line("""
            the training thread {through}: {doing}
            - saw io of pid {pid} thread {tid}: reads or writes all the time | {doing} | 0 in a hang
            - saw stack of pid {waiting}: makes no step | for {lasts:time} | a step
            - next: perfwatch attach {waiting} --watch
        """)
        own = f"itself goes through data at {show(node.frame)}"
        through = own if _is_its_own(chain) else f"waits for {who(chain)}, which goes through data"
        facts = Facts(tid=node.tid, doing=doing, through=through, lasts=lasts, waiting=pid)
        found = line.finding(case, (culprit(node),), Level.CERTAIN if loop.counts else Level.MEDIUM, **facts)
        yield msgspec.structs.replace(found, wait_chain=chain.links)


def _is_its_own(chain: Chain) -> bool:
    return (chain.end.node.pid, chain.end.node.tid) == (chain.start.pid, chain.start.tid)


def _lasts(case: Case, chain: Chain) -> float:
    """For how long: since training was last seen, or since a batch was delivered; 0 where it keeps no training waiting."""
    if not _is_its_own(chain):
        waits = case.progress[chain.start.pid].kind == "still" and through_a_queue(case, chain)
        return without_a_batch(case, chain)[0] if waits else 0.0
    rank = case.job.members[chain.start.pid]
    recent = case.profile(rank, LATELY_SECONDS)
    if recent.samples < ENOUGH_SAMPLES or recent.share_where(at_training):
        return 0.0
    return since_training(case, rank)


RULES = (Rule(UNKNOWN, unknown), Rule(WAITING_ON_WORK, waiting_on_work))
