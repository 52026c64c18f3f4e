"""The training thread waits for work in progress: by a child process, a lock holder, another rank, or other threads.

The wait graph says who works, or when who wakes. What is left to this rule is when that is worth saying.
"""

from collections.abc import Iterator
from itertools import pairwise

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.graph.builder import Builder
from perfwatch.triage.graph.decide import silence_of_rank
from perfwatch.triage.graph.from_case import wait_graph_of
from perfwatch.triage.graph.model import Activity, Ends, Fate, Key, Kind, Needs, Prospect, Resource, Role, Task
from perfwatch.triage.graph.thresholds import ONE_CALL_TIMES
from perfwatch.triage.graph.words import AWAITED
from perfwatch.triage.hang import nearest
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.moving.thresholds import LATE_SECONDS, MEANT_SECONDS, SIGN_OF_LIFE, WORKS_BYTES
from perfwatch.triage.moving.work import Work, work_of
from perfwatch.triage.patience import temporal
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.rules.busy import through_data
from perfwatch.triage.shares.data import for_training, starving
from perfwatch.triage.shares.thresholds import LASTS
from perfwatch.triage.slowness import asleep_share
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import Node, culprit, node_of
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Culprit, Evidence, Finding, Outcome
from perfwatch_probes.readings import Process, ProcessUsage, Thread

CAUSE = Cause("waiting_on_work", "busy", "user_code", (Process, ProcessUsage, Thread))

# Confidence: bytes of a process that is known to be waited for; its CPU time, or a moment at which it wakes; a task that only may.
MOVES_DATA, WORKS, MAY = 0.88, 0.72, 0.65
ASLEEP_SHARE = 0.6  # of the time: what is handed over may take some work to put together
PREPARING_SECONDS = 30.0
SHORT_SECONDS = 10.0  # a sleep that belongs to a step


def judge(case: Case) -> Outcome:
    """Fires on a rank that stands still while a task works for it, or wakes at a known moment."""
    starved = starving(case)
    fed = starved.rank.pid if starved is not None and starved.asked is not None else None  # answer by answer
    waiting = (_of(case, chain) for pid, chain in case.chains.items() if not case.moving and pid != fed)
    return nearest(one for found in (waiting, through_data(case, CAUSE)) for one in found)


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
    if (asleep_share(case, rank) or 0.0) < ASLEEP_SHARE:
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
    does = "may release it, and is working" if may else "works for it"
    needs = LASTS * temporal(case) if in_call or beside or slow else 0.0
    if _never_ends(way[-1]):  # it may work, or turn for ever: until its time is over that is not known
        needs = temporal(case) * (ONE_CALL_TIMES if way[-1].ends is Ends.ONE_CALL else 1.0)
    doing = used.said if used is measured or not fate.why else fate.why
    return Finding(
        cause=CAUSE.name,
        state=CAUSE.state,
        summary=f"{_waits_for(chain, resource)}; {_named(case, node, pid, chain)} {does}: {doing}",
        confidence=MAY if may or chain.start.stack is None else MOVES_DATA if moves and not in_call else WORKS,
        owner=CAUSE.owner,
        culprits=(culprit(node) if pid in case.job.members else Culprit(pid=pid),),
        wait_chain=chain.links,
        evidence=(case.saw("usage", f"pid {pid}", "works", doing, "nothing would mean a hang"), _since(case, chain)),
        next=(f"perfwatch attach {chain.start.pid} --watch",),
        silent_seconds=round(silent, 1),
        decides_in_seconds=round(max(0.0, needs - silent), 1),
    )


def _wakes(case: Case, built: Builder, chain: Chain, way: list[Task], fate: Fate) -> Finding | None:
    node, pid = _last(case, built, way)
    resource, role = _over(built, way)
    left, silent = fate.until - case.at, max(0.0, silence_of_rank(case, chain.start.pid).seconds)
    own = len(way) == 1
    waited = max(silent, chain.start.motion.ran_ago_seconds or 0.0)
    long = max(left, waited) >= case.patience_seconds or waited >= LASTS * case.patience_seconds
    if left + silent < SHORT_SECONDS or not (long or own):
        return None
    leaf = built.graph.fates[way[-1].key]
    brief = left + (way[-1].silence.seconds if way[-1].silence else 0.0) < case.patience_seconds
    doubtful = not leaf.works or (role is Role.MAY_PROVIDE and brief)
    waits = (
        ""
        if own
        else f"; {_waits_for(chain, resource)} that it {'may release' if role is Role.MAY_PROVIDE else 'releases'}"
    )
    return Finding(
        cause=CAUSE.name,
        state=CAUSE.state,
        summary=f"{_named(case, node, pid, chain)} sleeps, and wakes in {duration(left)}{waits}",
        confidence=MAY,
        owner=CAUSE.owner,
        culprits=(culprit(node) if pid in case.job.members else Culprit(pid=pid),),
        wait_chain=chain.links,
        evidence=(case.saw("syscall", f"pid {pid}", "sleeps until a known moment", f"wakes in {duration(left)}"),),
        next=(f"perfwatch attach {chain.start.pid} --watch",),
        silent_seconds=round(silent, 1),
        # What a time limit brings is not known; a thread that only may release it may look up now and then, for other reasons.
        decides_in_seconds=round(left + LATE_SECONDS, 1) if doubtful else 0.0,
    )


def _never_ends(task: Task) -> bool:
    """True if a task runs in a loop that does not come to its end by itself, or in one call that may not return."""
    return task.activity is Activity.RUNS and task.ends in (Ends.CONDITION, Ends.NEVER, Ends.ONE_CALL)


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
    return f"{rank} is blocked on {AWAITED[resource.kind if resource else Kind.UNKNOWN]}"


def _named(case: Case, node: Node, pid: int, chain: Chain) -> str:
    at = f" at {show(node.frame)}" if node.frame else ""
    if node.pid == chain.start.pid and node.tid != node.pid:
        return f"thread {node.name or node.tid}{at}"
    member = case.job.members.get(pid)
    program = f" ({member.process.name})" if member is not None and not member.process.python else ""
    return f"process {pid}{program}{at}"


def _since(case: Case, chain: Chain) -> Evidence:
    since = f"at {show(chain.start.frame)} for {duration(chain.start.motion.ran_ago_seconds or 0.0)}"
    return case.saw("thread", f"pid {chain.start.pid}", "the training thread waits for it", since)


RULES = (Rule(CAUSE, judge),)
