"""The wait graph of a case, and the state before the cause.

``wait_graph_of`` builds and solves it: ``BY_KIND`` names the function of ``claims`` for each kind of wait. One table leads from what can
become of a wait to the seconds of silence before it is called hung.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf

from perfwatch.triage.case import SOON_SECONDS, Case
from perfwatch.triage.graph import claims, collectives
from perfwatch.triage.graph.activity import ThreadActivity, activity_of, last_change
from perfwatch.triage.graph.builder import Builder
from perfwatch.triage.graph.model import (
    NOT_SILENT,
    Activity,
    AnswerDue,
    Basis,
    Elsewhere,
    Ends,
    Fate,
    Key,
    Kind,
    Prospect,
    Resource,
    Role,
    Silence,
    Source,
    Stale,
    Task,
    Unread,
    along,
    at_least,
)
from perfwatch.triage.graph.thresholds import (
    ANSWER_SECONDS,
    DEADLINE_SECONDS,
    OUTSIDERS_SECONDS,
    RATIONED_SECONDS,
    ROUNDING_SECONDS,
    STEPS_SAMPLES,
    STEPS_SECONDS,
    WATCHED_SECONDS,
)
from perfwatch.triage.moving.loops import rereads
from perfwatch.triage.moving.memory import remembered, since_training, unchanged
from perfwatch.triage.moving.motion import Moves, moves
from perfwatch.triage.moving.thresholds import ARRIVING_BYTES, LATE_SECONDS, MEANT_SECONDS, USAGE_SECONDS
from perfwatch.triage.moving.within import turns_within
from perfwatch.triage.patience import (
    COUNTS_TIMES,
    DECISIVE_SECONDS,
    STRUCTURAL_SECONDS,
    ended_of_ranks,
    temporal,
    unseen_seconds,
)
from perfwatch.triage.ranks.calls import Calls
from perfwatch.triage.shares.profile import profile
from perfwatch.triage.shares.thresholds import BEYOND
from perfwatch.triage.waits.chain import Chain, Edge
from perfwatch.triage.waits.node import EVENT_LOOP, NATIVE_WAIT, End, Node, silence, waits_for_its_object
from perfwatch.triage.waits.other_end import open_seconds
from perfwatch.triage.waits.threads import gil_waiters
from perfwatch_probes.readings import Stack, Thread

Adds = Callable[[Builder, Task, Node, Edge, ThreadActivity], None]

BY_KIND: dict[str, Adds] = {
    "lock": claims.lock,
    "pipe_empty": claims.pipe,
    "pipe_full": claims.pipe,
    "file_lock": claims.file_lock,
    "file_poll": claims.awaited_file,
    "network": claims.connection,
    "rendezvous": claims.store_key,
    "gpu": collectives.gpu,
    "sleep": claims.sleeping,
    "python": claims.running,
    "native": claims.running,
    "idle": claims.idle_pool,
    "dead": claims.ended_child,
    "other": claims.other,
    "unknown": claims.unknown_or_eventfd,
}
# Waits in which a thread runs again and again, and is no further.
GOES_ON = ("gpu", "collective", "rendezvous", "python", "native")


def wait_graph_of(case: Case) -> Builder:
    """Build and solve."""
    return case.history.once(("wait graph",), lambda: _built(case))


def in_call(case: Case, chain: Chain) -> bool:
    """True if a rank is in a call with others, whatever shows it: its stack, its card, a recorder or RAS."""
    return chain.start.pid in wait_graph_of(case).calls.by_pid


def _built(case: Case) -> Builder:
    built = Builder(case)
    calls = built.calls = collectives.calls_of(built)
    if calls.by_pid:
        for pid in built.starts:
            built.rank(pid)
    while built.todo:
        task = built.graph.tasks[built.todo.pop()]
        if task.activity is Activity.PROCESS:
            claims.process(built, task, task.pid)
        else:
            _thread(built, calls, task)
    built.graph.solve()
    return built


def _thread(built: Builder, calls: Calls, task: Task) -> None:
    node = built.node(task.key)
    seen = activity_of(built.case, node)
    task.silence, task.activity = seen.silence, seen.state
    built.seen[task.key] = seen
    if seen.state in (Activity.GONE, Activity.STOPPED):
        silent = seen.silence.seconds if seen.silence is not None else 0.0
        rationed = seen.recurrent and silent < RATIONED_SECONDS
        task.fate = Fate(Prospect.OPEN if rationed else Prospect.SETTLED, why=f"it is {seen.state.value}")
        return
    if node.pid in calls.by_pid and built.starts[node.pid] == task.key:
        collectives.group_call(built, calls, task, node.pid)
        return
    edge, kind = built.edge(task.key), built.edge_kind(task.key)
    polls = kind == "sleep" and rereads(built.history, node)  # reading the same file again is no move
    moves = seen.recurrent and kind not in GOES_ON and node.motion.frozen is not True and not polls
    still = seen.silence is not None and seen.silence.is_bounded and seen.silence.seconds > WATCHED_SECONDS
    still = still or task.key in built.starts.values() or claims.reads_for_ever(built, node, kind)
    data = seen.work.data >= ARRIVING_BYTES and not still
    leads_on = bool(edge.targets) and not (edge.kind == "lock" and node.wait is not None and node.wait.kind in FUTEX)
    if polls and seen.state is Activity.RUNS:
        claims.running(built, task, node, edge, seen)
        return
    if seen.state is Activity.RUNS and kind not in GOES_ON and not edge.targets:
        task.fate = Fate(Prospect.LIVE, works=seen.work.sign, why="it runs")
        return
    if leads_on:
        claims.other_tasks(built, task, node, edge)
    else:
        _waits(built, calls, task, node, edge, kind, seen)
    if moves or data:  # it gets one after the other of what it waits for
        works, why = (
            (seen.work.cores if leads_on else seen.work.sign),
            "it moves now and then" if moves else "data moves",
        )
        leaf = built.lives(("moves", node.pid, node.tid), works, why, Activity.RUNS)
        for resource in task.waits[:1]:
            built.graph.claim(leaf, resource, Role.PROVIDES, Basis.KERNEL)
        task.fate = None if task.waits else built.graph.tasks[leaf].fate
    if not edge.targets or EVENT_LOOP in node.inner or _has_long_deadline(node):
        alone = kind == "pipe_empty" and edge.end is not None and not edge.end.others
        claims.own_deadline(built, task, node, seen, alone)


def _has_long_deadline(node: Node) -> bool:
    """True if a wait for other tasks ends by itself, and is no poll of a library, which looks again for the same thing."""
    wait = node.wait
    if wait is None or wait.remaining_seconds is None:
        return False
    return wait.remaining_seconds + (node.motion.ran_ago_seconds or 0.0) >= DEADLINE_SECONDS


def _waits(built: Builder, calls: Calls, task: Task, node: Node, edge: Edge, kind: str, seen: ThreadActivity) -> None:
    kind = "lock" if edge.kind == "lock" and kind in ("lock", NATIVE_WAIT) else kind
    blind = seen.state is Activity.UNKNOWN or (node.stack is None and kind == "lock")
    if blind:
        claims.unknown(built, task, node, edge, seen)
    elif kind in claims.OUTER:
        claims.outer(built, task, kind)
    elif kind == "collective":
        collectives.of_another_thread(built, calls, task, node, edge, seen)
    else:
        BY_KIND.get(kind, claims.unknown)(built, task, node, edge, seen)


FUTEX = ("futex", "poll", "other")  # kinds of waits that another thread may end
Sink = tuple[Task, Resource | None]


@dataclass(frozen=True)
class Table:
    """Seconds of silence before a hang is reported.

    Measured on the recorded cases at 13 moments each: 3 s for what is frozen bring four hangs sooner and none that is false; 30 s
    for OPEN bring 5 more hangs and 5 false ones.
    """

    # SETTLED, and every sink has ended, is stopped, or waits for input, by KERNEL or STACK
    ended: float = DECISIVE_SECONDS
    settled: float = STRUCTURAL_SECONDS
    frozen: float = 3.0  # SETTLED, and the kernel knows of every sink that it has not run: only its object can wake it
    unnamed: float = 6.0  # also of watching, before a hang without a name: by then the rules have named what they can


TABLE = Table()


@dataclass(frozen=True)
class State:
    """What is said of one rank: hung, busy, moving, inconclusive, gone; or unknown, where nothing was read of it."""

    state: str
    pid: int = 0
    fate: Fate | None = None
    silence: Silence = NOT_SILENT
    needs_seconds: float = 0.0
    sinks: tuple[Sink, ...] = ()


def states_of(case: Case) -> Iterator[State]:
    """Of each rank that lives."""
    return (state_of(case, pid) for pid in wait_graph_of(case).starts)


def state_of(case: Case, pid: int) -> State:
    """Of a rank that lives."""
    return case.history.once(("state", pid), lambda: _of_rank(case, wait_graph_of(case), pid))


def fate_for_others(case: Case, pid: int) -> Fate:
    """What those get that wait for a rank: its training thread may work for them, and make no step of its own."""
    built = wait_graph_of(case)
    return built.graph.fates.get(("rank", pid), built.graph.fates[built.starts[pid]])


def fate_of(case: Case, pid: int) -> Fate | None:
    """What can become of the wait of a rank's training thread; None of any other process."""
    built = wait_graph_of(case)
    return built.graph.fates[built.starts[pid]] if pid in built.starts else None


def is_settled(case: Case) -> bool:
    """True if nothing can release the wait of any rank."""
    built = wait_graph_of(case)
    return all(built.graph.fates[key].prospect is Prospect.SETTLED for key in built.starts.values())


def silence_of_rank(case: Case, pid: int) -> Silence:
    """Of the wait of a rank's training thread."""
    built = wait_graph_of(case)
    return _silence(case, built, pid, tuple(built.graph.sinks(built.starts[pid])))


def a_releaser_runs(case: Case, *pids: int) -> bool:
    """True if a thread that may release the wait of a rank, directly or over others, runs in a loop: it may come to it, or never."""
    built = wait_graph_of(case)
    starts = frozenset(built.starts[pid] for pid in pids)
    reached = built.graph.reachable(*starts)
    found = (task for task in reached if task.key not in starts)
    return any(task.activity is Activity.RUNS and task.waits and task.waits[0].kind is Kind.LOOP for task in found)


def is_awaited(case: Case, pid: int) -> bool:
    """True if a rank is waited for by another process that may release its own wait: it does not rest, something was asked of it."""
    built = wait_graph_of(case)
    reached = built.graph.reachable(built.starts[pid])
    others = (resource for task in reached if task.pid not in (None, pid) for resource in task.waits)
    return any(claim.task == ("process", pid) for resource in others for claim in built.graph.known_claims(resource))


def patience_of(case: Case, pid: int) -> float:
    """Seconds of silence before a rule that knows what a rank waits for calls that a hang: the one table for all rules.

    What stood when it was last sampled is given no longer than what nothing can release.
    """
    built, fate = wait_graph_of(case), fate_of(case, pid)
    sinks = tuple(built.graph.sinks(built.starts[pid])) if fate is not None else ()
    if fate is None or isinstance(fate.why, Stale):
        return temporal(case) if fate is None else TABLE.settled
    if fate.prospect is Prospect.SETTLED:
        return max(TABLE.settled, _settled_seconds(case, pid, sinks, fate))
    return _timeouts(case, built, pid, sinks)


def wakes_soon(case: Case, end: End) -> bool:
    """True if the end of a chain sleeps, or waits for a timer, and wakes soon enough or for its next try: no hang."""
    fate, wait = _fate_of_thread(case, end), end.node.wait
    sleeps = wait is not None and wait.kind == "sleep" and wait.remaining_seconds is not None
    if fate is None or fate.prospect is Prospect.SETTLED:
        return False
    return sleeps or (fate.prospect is Prospect.DUE and fate.by is None)


def outlasts(case: Case, end: End) -> bool:
    """True if the end of a chain sleeps for longer than anybody means to wait."""
    fate = _fate_of_thread(case, end)
    sleeps = end.node.wait is not None and end.node.wait.kind == "sleep"
    return sleeps and fate is not None and fate.prospect is Prospect.SETTLED


def _fate_of_thread(case: Case, end: End) -> Fate | None:
    return wait_graph_of(case).graph.fates.get(("thread", end.node.pid, end.node.tid))


def ends_at(case: Case, pid: int) -> float | None:
    """When a task wakes that may release the wait of a rank: from a sleep, or at a time limit that is longer than a poll's."""
    built = wait_graph_of(case)
    if pid not in built.starts:
        return None
    fate, last = built.graph.fates[built.starts[pid]], built.graph.releasers(built.starts[pid])[-1]
    if fate.prospect is not Prospect.DUE:
        return None
    slept = last.silence.seconds if last.silence is not None else 0.0
    timer = last.kind == "thread" and EVENT_LOOP in built.node(last.key).inner
    long = timer or (last.activity is Activity.SLEEPS and slept + fate.until - case.at >= USAGE_SECONDS)
    return fate.until if fate.works or long else None


def _of_rank(case: Case, built: Builder, pid: int) -> State:
    key = built.starts[pid]
    task, fate, node = built.graph.tasks[key], built.graph.fates[key], built.node(key)
    if case.progress[pid].kind == "moving":
        return State("moving" if _makes_steps(case, pid) else "busy", pid, fate)
    if task.activity is Activity.UNKNOWN and node.stack is None:
        return State("unknown", pid, fate)
    last = case.history.latest(Stack, node.pid, node.tid)
    if (
        node.stack is None and last is not None and last.at >= case.at - SOON_SECONDS
    ):  # it has run since: the next one will tell
        return State("inconclusive", pid, fate)
    sinks = tuple(built.graph.sinks(key))
    silent = _silence(case, built, pid, sinks)
    if fate.prospect is Prospect.LIVE:
        return State("busy", pid, fate, silent, sinks=sinks)
    needs = _open_seconds(case, built, pid, sinks, fate, silent)
    if fate.prospect is Prospect.DUE:
        soon = fate.until - case.at + LATE_SECONDS <= MEANT_SECONDS
        return State("busy" if soon and fate.works else "inconclusive", pid, fate, silent, needs, sinks)
    if fate.prospect is Prospect.SETTLED:
        needs = _settled_seconds(case, pid, sinks, fate)
    passed = {task.pid or task.key[-1] for task, _ in built.graph.way(key)} if ended_of_ranks(case) else ()
    if unseen := unseen_seconds(case, {pid for pid in built.starts if pid in passed}):
        needs = max(needs, silent.seconds + unseen)
    if silent.seconds >= needs - ROUNDING_SECONDS:
        return State("hung", pid, fate, silent, needs, sinks)
    runs = any(resource is not None and resource.kind is Kind.LOOP for _, resource in sinks)
    busy = runs and fate.prospect is Prospect.OPEN
    return State("busy" if busy else "inconclusive", pid, fate, silent, needs, sinks)


def _settled_seconds(case: Case, pid: int, sinks: tuple[Sink, ...], fate: Fate) -> float:
    ended = all(
        task.activity in (Activity.GONE, Activity.STOPPED) or (resource is not None and resource.kind is Kind.TERMINAL)
        for task, resource in sinks
    )
    guessed = fate.basis is Basis.ELIMINATION and any(over is not None and over.kind is Kind.LOCK for _, over in sinks)
    frozen = not guessed and _are_frozen(wait_graph_of(case), sinks, TABLE.frozen)
    needs = TABLE.ended if ended and fate.basis >= Basis.STACK else TABLE.frozen if frozen else TABLE.settled
    if any(resource is not None and isinstance(resource.why, AnswerDue) for _, resource in sinks):
        needs += ANSWER_SECONDS
    return needs if ended else max(needs, _longest_step(case, pid))  # a step that took as long came to its end


def _are_frozen(built: Builder, sinks: tuple[Sink, ...], seconds: float) -> bool:
    """True if the kernel remembers of every sink that it had not run for so long when it was sampled, and only its object can wake it.

    A network may come back.
    """
    return all(
        task.activity is Activity.BLOCKED
        and task.silence is not None
        and task.silence.source is Source.KERNEL
        and (built.node(task.key).motion.ran_ago_seconds or 0.0) >= seconds
        and (over is None or over.kind is not Kind.FABRIC)
        for task, over in sinks
    )


def _open_seconds(case: Case, built: Builder, pid: int, sinks: tuple[Sink, ...], fate: Fate, silent: Silence) -> float:
    if _is_unread(built, built.starts[pid], sinks, fate):
        return inf
    needs, seen = _timeouts(case, built, pid, sinks), watched_seconds(case)
    hearsay = fate.basis <= Basis.TEXT or (isinstance(fate.why, Elsewhere) and seen < OUTSIDERS_SECONDS)
    if seen < WATCHED_SECONDS and hearsay:  # that no task works for it was hardly looked at
        needs = max(needs, silent.seconds + WATCHED_SECONDS - seen)
    return needs


def _timeouts(case: Case, built: Builder, pid: int, sinks: tuple[Sink, ...]) -> float:
    """The hang timeouts that an open wait is given, each no less than three times the longest pause that this run recovered from."""
    lulls = (one.longest_lull_seconds for one in _went_on(case, built, built.starts[pid], sinks))
    recovered = max((_longest_step(case, pid), *lulls))
    return max(temporal(case), BEYOND * recovered) * _times(built, built.starts[pid], sinks)


def _times(built: Builder, start: Key, sinks: tuple[Sink, ...]) -> float:
    """How many hang timeouts the sinks of a wait are given: more for what counts, less for a regular expression that keeps the GIL."""
    if _may_come_to_their_end(built, start, sinks):
        return COUNTS_TIMES
    keep_the_gil = [
        claims.one_call_times(built.case, built.node(task.key), loop)
        for task, _ in sinks
        if (loop := built.loops.get(task.key)) is not None and loop.expression
        if gil_waiters(built.history, built.job, built.node(task.key))
    ]
    return max(keep_the_gil) if keep_the_gil and len(keep_the_gil) == len(sinks) else 1.0


def _is_unread(built: Builder, start: Key, sinks: tuple[Sink, ...], fate: Fate) -> bool:
    """True if something was not read that may release the wait. Of several ranks that are awaited one that was read is enough to hang."""
    unread = {task.key for task, over in sinks if over is not None and isinstance(over.why, Unread)}
    if ranks := _awaited_ranks(built, start, sinks):
        return all(task.key in unread for task in ranks)
    return bool(unread) or isinstance(fate.why, Unread)


def _may_come_to_their_end(built: Builder, start: Key, sinks: tuple[Sink, ...]) -> bool:
    """True if a sink is in a loop that counts, or if each other rank that is awaited runs, and in no loop that may turn for ever."""
    if any(task.activity in (Activity.RUNS, Activity.POLLS) and task.ends is Ends.COUNTS for task, _ in sinks):
        return True
    ranks, known = _awaited_ranks(built, start, sinks), (Ends.UNREAD, Ends.ONE_CALL)
    return bool(ranks) and all(task.activity is Activity.RUNS and task.ends in known for task in ranks)


def _awaited_ranks(built: Builder, start: Key, sinks: tuple[Sink, ...]) -> list[Task]:
    """The training threads of other ranks among the sinks of a wait."""
    return [task for task, _ in sinks if task.key != start and task.key == built.starts.get(task.pid)]


def _longest_step(case: Case, pid: int) -> float:
    clock = case.steps(case.job.members[pid])
    return 0.0 if clock is None else clock.longest_seconds or 0.0


def _makes_steps(case: Case, pid: int) -> bool:
    """True if what goes on are training steps: counted, or seen at a backward pass or an optimizer, where enough was seen."""
    progress = case.progress[pid]
    if progress.steps is not None:
        return progress.steps.ago_seconds is not None and not progress.steps.late
    seen = profile(case.history, pid, progress.thread, STEPS_SECONDS)
    trains = seen.share("backward", "optimizer", "scaler", "clip") > 0 or not seen.share("forward")
    return seen.samples < STEPS_SAMPLES or trains


def watched_seconds(case: Case) -> float:
    """For how long the job's threads were sampled."""
    return case.history.once(("watched seconds",), lambda: _watched_seconds(case))


def _watched_seconds(case: Case) -> float:
    threads = (case.history.series(Thread, *key) for key in case.history.entities(Thread))
    stacks = (case.history.series(Stack, *key) for key in case.history.entities(Stack))
    first = [one[0].at for one in threads if one]
    first += [one[0].at - one[0].reading.span_seconds for one in stacks if one]
    return case.at - min(first, default=case.at)


def _silence(case: Case, built: Builder, pid: int, sinks: tuple[Sink, ...]) -> Silence:
    """Of one rank's wait."""
    key = built.starts[pid]
    start, node, fate = built.graph.tasks[key], built.node(key), built.graph.fates[key]
    steps = case.progress[pid].steps
    if start.ends is not None and start.activity is Activity.RUNS:
        within = turns_within(case.history, node.pid, node.tid)
        found = max(since_training(case, case.job.members[pid]), within.seconds if within is not None else 0.0)
        silent = Silence(found, Source.OBSERVED)
    else:
        silent = along(
            _of_sinks(built, key, sinks),
            start.silence,
            _changed(case, built, pid, sinks),
            None if steps is None or steps.ago_seconds is None else Silence(steps.ago_seconds, Source.OBSERVED),
        )
    watched = watched_seconds(case) >= WATCHED_SECONDS
    went_on = _went_on(case, built, key, sinks) if fate.prospect is Prospect.OPEN else []
    if any(one.ago_seconds is not None for one in went_on):  # until then something came
        ago = min(one.ago_seconds for one in went_on if one.ago_seconds is not None)
        return min(silent, Silence(ago, Source.OBSERVED), key=lambda one: one.seconds)
    if fate.prospect is Prospect.OPEN and steps is None and watched and _is_traceless(sinks):
        return at_least(silent, _remembered(case, built, pid, sinks))
    return silent


def _went_on(case: Case, built: Builder, key: Key, sinks: tuple[Sink, ...]) -> list[Moves]:
    """How the start and the sinks that wait, and do not poll, have gone on before. Who spins in a call with others runs, and waits."""
    start = built.graph.tasks[key]
    spins = start.activity is Activity.RUNS and start.pid in built.calls.by_pid
    waiting = [] if spins else [start]
    waiting += [task for task, _ in sinks if task.activity not in (Activity.RUNS, Activity.POLLS)]
    return [_moves(case, built.node(task.key)) for task in waiting if task.kind == "thread"]


def _moves(case: Case, node: Node) -> Moves:
    """How a thread has gone on; in a wait that only its object ends it has not since the kernel saw it run, however rare the samples."""
    found = moves(case.history, node.pid, node.tid)
    if found.ago_seconds is None or not waits_for_its_object(node):
        return found
    return replace(found, ago_seconds=max(found.ago_seconds, silence(case.history, node) or 0.0))


def _of_sinks(built: Builder, key: Key, sinks: tuple[Sink, ...]) -> list[Silence]:
    """Of the threads that were sampled and do not run, or else of the start; and of what has ended."""
    start = built.graph.tasks[key].silence
    threads = (built.graph.tasks[("thread", *task.key[1:])] if task.kind == "moves" else task for task, _ in sinks)
    known = [
        task.silence
        for task in threads
        if task.kind == "thread"
        and task.silence is not None
        and task.activity is not Activity.RUNS
        and built.node(task.key).thread is not None
    ]
    return [*(known or [start or NOT_SILENT]), *_since_ends(built, key, sinks)]


def _since_ends(built: Builder, key: Key, sinks: tuple[Sink, ...]) -> list[Silence]:
    """Of sinks that have ended: until the last sample that shows the start waiting. What it did since then is not known."""
    node = built.node(key)
    age = 0.0 if node.thread is None else built.case.at - node.thread_at
    gone = [task.silence for task, _ in sinks if task.activity is Activity.GONE and task.silence is not None]
    return [Silence(max(0.0, one.seconds - age), one.source) for one in gone]


def _changed(case: Case, built: Builder, pid: int, sinks: tuple[Sink, ...]) -> Silence | None:
    """Since when the start is known to have moved, where a thread beside it is the sink."""
    key = built.starts[pid]
    apart = any(task.kind == "thread" and task.key != key and task.silence is not None for task, _ in sinks)
    if not apart or built.graph.tasks[key].activity in (Activity.RUNS, Activity.UNKNOWN):
        return None
    return last_change(case, built.node(key))


# Since when a job has not trained: a wait that leaves no trace of its beginning (a thread that polls, or runs) is as old as that


def _is_traceless(sinks: Iterable[Sink]) -> bool:
    """True if a sink does not show when it began to wait."""
    return any(
        task.activity in (Activity.POLLS, Activity.RUNS)
        or (resource is not None and resource.kind in (Kind.UNKNOWN, Kind.STORE))
        for task, resource in sinks
    )


def _remembered(case: Case, built: Builder, pid: int, sinks: Iterable[Sink]) -> list[float]:
    """Seconds, one for each thing that remembers."""
    node = built.node(built.starts[pid])
    found = [remembered(case, case.job.members[pid]).seconds]
    for task, resource in sinks:
        path = resource.key[1] if resource is not None and resource.kind is Kind.FILE else None
        if task.kind == "thread" and isinstance(path, str):
            found.append(unchanged(case, task.pid, path).seconds)
        if resource is not None and resource.kind is Kind.STORE:
            found.append(case.history.once(("store open",), lambda: open_seconds(case.history, case.job) or 0.0))
    if waits_for_its_object(node):
        found.append(silence(case.history, node) or 0.0)
    return found
