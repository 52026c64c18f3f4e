"""Processes that a rank waits for: workers that deliver nothing, and those that are stopped, gone, or a child that stands."""

from dataclasses import replace
from itertools import pairwise

import msgspec

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import SHELL_ADDS, how_it_ended, last_words
from perfwatch.triage.graph.activity import activity_of
from perfwatch.triage.graph.decide import ends_at, outlasts, patience_of, wakes_soon
from perfwatch.triage.graph.thresholds import RATIONED_SECONDS
from perfwatch.triage.hang import (
    ASKED,
    awaited_at,
    hung,
    is_settled,
    not_read,
    silent_seconds,
    who,
    with_loop,
)
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.moving.loops import loop_of, moves_data
from perfwatch.triage.moving.memory import Lull, lull, unfed
from perfwatch.triage.moving.motion import python_threads
from perfwatch.triage.patience import DECISIVE_SECONDS, STRUCTURAL_SECONDS, long_timeout, temporal
from perfwatch.triage.ranks.groups import FEW, unanswered
from perfwatch.triage.roles.job import Member, youngest_start_gap_seconds
from perfwatch.triage.rule import Cause, Facts, Rule
from perfwatch.triage.shares.profile import profile
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.napping import Rest, at_rest
from perfwatch.triage.waits.node import NATIVE_WAIT, End, culprit, node_of, silence, waits_forever
from perfwatch.triage.waits.polling import only_asks
from perfwatch.triage.waits.threads import (
    A_BARRIER,
    A_CONDITION,
    A_LOCK,
    BEFORE_SECONDS,
    ROOM,
    awaited,
    other_threads,
    takes_again,
)
from perfwatch.triage.waits.workers import pool_members
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Culprit, Evidence, Finding, Level, Link, Outcome, doing
from perfwatch_probes.readings import Cgroup, Process, ProcessEnded, ProcessUsage, Stack, Thread, Traceback

STUCK_WORKER = Cause("stuck_worker", "hung", "data", (Thread, Stack))
POLLS = STUCK_WORKER.line("""
    {who} polls again and again, but has produced nothing for {lasts:time}; the training thread is blocked on it
    - not starved_by_transforms: no batch was delivered meanwhile
    - next: look at {at}: what would end that loop?
""")
GIVES_NOTHING = STUCK_WORKER.line("""
    {said}; {they} produced nothing for {lasts:time}, and the training thread is blocked on {them}
    - not starved_by_transforms: [{running:if}no batch was delivered within the hang timeout][{idle:if}the worker uses no CPU and does no
      I/O]
    - not dead_worker: process {pid} is alive
    - next: perfwatch capture stacks {pid}
""")
# Ends that are the worker's own doing; any other end has a rule of its own.
OWN_ENDS = ("sleep", "lock", "python", "native", "gil", "cycle", NATIVE_WAIT, "other", "unknown")
RUNNING_ENDS = ("python", "native")
GONE_WILD = 0.5  # times the hang timeout, in one call of a regular expression that has cost more than all that the other workers did
# Times what each other worker has computed since it began, which counts as so much at least.
OUTSPENT, OUTSPENT_SECONDS = 10.0, 1.0
OFTEN = 10  # writes of a worker: it has answered before
NAPPING = 2.0  # times the hang timeout, for what naps: it looks again and again whether something has come, which may come in the end

RAISES = "set DataLoader(timeout=...) to turn this hang into an error"
MADE_OTHERWISE = "multiprocess"  # in the command of what spawn and the fork server of multiprocess(ing) make

STUCK_PIN_MEMORY = Cause("stuck_pin_memory", "hung", "data", (Thread, Stack))
PASSES_NOTHING_ON = STUCK_PIN_MEMORY.line("""
    {who} passes no batch on: it has not run for {lasts:time}, and every worker is idle
    - not stuck_worker: every worker's main thread waits for its next task
    - next: perfwatch capture stacks {pid}
""")


# A worker


def stuck_worker(case: Case) -> Outcome:
    """Fires on a chain that went through a queue of workers and ends in one that does not move."""
    for chain in case.still_chains:
        end = chain.end
        if through_a_queue(case, chain) and all_nap(case, chain):
            return _napping(case, chain)
        if not through_a_queue(case, chain) or end.kind not in OWN_ENDS or wakes_soon(case, end):
            continue
        unseen = end.node.stack is None and not told_without_a_stack(case, chain)
        if unseen or (end.node.pid, end.node.tid) == (chain.start.pid, chain.start.tid):
            continue
        if end.kind == "cycle" and {link.pid for link in chain.links} == {chain.start.pid}:
            continue  # threads of one pool that wait for each other: no worker process is to blame
        if end.still or end.kind in RUNNING_ENDS:
            return _finding(case, chain)
    return None


def _napping(case: Case, chain: Chain) -> Outcome:
    silent = silence(case.history, chain.start) or 0.0
    shown = (given_nothing(case, chain, silent),)
    patience = NAPPING * temporal(case)
    return hung(
        case,
        POLLS,
        chain,
        patience=patience,
        silent=silent,
        evidence=shown,
        ceiling=MAY_COME,
        lasts=silent,
    )


def _finding(case: Case, chain: Chain) -> Outcome:
    end = chain.end
    running = end.kind in RUNNING_ENDS
    silent = end.silent_seconds or 0.0
    evidence: tuple[Evidence, ...] = ()
    patience = patience_of(case, chain.start.pid) if end.node.stack is not None else temporal(case)
    ceiling = None if end.node.stack is not None else MAY_COME
    if running:
        silent, evidence = without_a_batch(case, chain)
        loop, fills = loop_of(case.history, end.node), moves_data(case.history, end.node)
        ceiling = Level.HIGH if loop.may_turn_for_ever and not fills else MAY_COME
        if fills and not loop.expression and not loop.may_turn_for_ever:
            return None  # data come to an end: a stream that skips to where a run had stopped, a buffer that fills
        beyond = outspends(case, chain) if loop.expression else ()
        evidence, patience = (*evidence, *beyond), patience * (GONE_WILD if beyond else 1.0)
        long = end.kind == "native" or fills
        patience = max(patience, long_timeout(case)) if long else patience
        if silent < patience and (long or (loop.counts and not loop.expression)):
            return None  # long work, until proved otherwise
    said, many = (f"{who(chain)} runs", False) if running else all_wait(case, chain)
    they, them = ("they have", "them") if many else ("it has", "it")
    if not running and (frame := takes_again(case.history, end.node)):
        said = f"{who(chain)} waits for a lock that it has taken itself at {show(frame)}"
    found = hung(
        case,
        GIVES_NOTHING,
        chain,
        patience=patience,
        silent=silent,
        evidence=evidence,
        ceiling=ceiling,
        next=way_out(case, chain),
        **Facts(said=said, they=they, them=them, lasts=silent, running=running, idle=not running),
    )
    return with_loop(found, end.node, loop.frame) if running and not loop.expression else found


def through_a_queue(case: Case, chain: Chain) -> bool:
    """True if the chain went through a loader's or pool's queue, or a hand-made one to a process of ``multiprocessing``."""
    if chain.through & {"loader", "pool"}:
        return True
    child = case.job.branch(chain.end.node.pid, chain.start.pid)
    return bool(chain.through & {"pipe", "socket"}) and child is not None and case.job.of_multiprocessing(child)


def all_nap(case: Case, chain: Chain) -> bool:
    """True if everybody who could deliver sleeps a little in a loop that only asks, again and again, and nothing else."""
    return all(
        end.kind == "sleep" and end.node.pid != chain.start.pid and end.node.naps and only_asks(case.history, end.node)
        for end in chain.ends
    )


def told_without_a_stack(case: Case, chain: Chain) -> bool:
    """True if the kernel alone tells that a worker stands: it sleeps beyond the patience, or a loader's waits for a lock for ever.

    A loader's worker that is idle looks into its queue again and again. No other thread that might deliver moves.
    """
    end = chain.end
    locked = end.kind == "lock" and end.node.role == "worker" and waits_forever(end.node)
    return (outlasts(case, end) or locked) and all(one.still for one in chain.ends)


def without_a_batch(case: Case, chain: Chain) -> tuple[float, tuple[Evidence, ...]]:
    """For how long a worker that runs has delivered nothing, and what shows it."""
    looks = case.history.series(Thread, chain.start.pid, chain.start.tid)
    watched = case.at - looks[0].at if looks else 0.0
    rank = case.job.members[chain.start.pid]
    remembered = unfed(case, rank)
    worker = profile(case.history, chain.end.node.pid, chain.end.node.tid)
    below = case.saw(
        "stack",
        f"pid {chain.end.node.pid}",
        "does not leave its task",
        f"{worker.samples} samples over {duration(worker.seconds)}, most at {show(worker.top_line())}",
        "the next task within a step",
    )
    steps = case.progress[chain.start.pid].steps
    since_step = steps.ago_seconds if steps is not None and steps.ago_seconds is not None else float("inf")
    silent = min(max(watched, remembered.seconds), since_output(case, chain), since_step)
    return silent, (*remembered.evidence, below, given_nothing(case, chain, silent))


def since_output(case: Case, chain: Chain) -> float:
    """Seconds since the worker's thread was seen to write: results go through a pipe. Without end where it never did."""
    looks = case.history.series(Thread, chain.end.node.pid, chain.end.node.tid)
    counts = [(one.at, one.reading.write_calls) for one in looks if one.reading.write_calls is not None]
    wrote = [at for (_, before), (at, now) in pairwise(counts) if now > before]
    return case.at - wrote[-1] if wrote else float("inf")


def outspends(case: Case, chain: Chain) -> tuple[Evidence, ...]:
    """What shows that a worker has computed on one task far longer than each of its fellows on all of theirs; () where it has not.

    They began together and are handed tasks in turn; their writes tell that they have answered as often.
    """
    end = chain.end.node
    fellows = [one.pid for one in case.job.workers(chain.start.pid) if one.alive and one.pid != end.pid]
    mine, *seen = (case.history.latest(Thread, pid, pid) for pid in (end.pid, *fellows))
    known = [(one.reading.run_seconds, one.reading.write_calls) for one in (mine, *seen) if one is not None]
    counted = [(spent, writes) for spent, writes in known if spent is not None and writes is not None]
    if mine is None or end.tid != end.pid or not fellows or len(counted) <= len(fellows):
        return ()
    (own, answers), *others = counted
    most, fewest = max(spent for spent, _ in others), min(writes for _, writes in others)
    if own < OUTSPENT * max(most, OUTSPENT_SECONDS) or not OFTEN <= answers <= fewest:
        return ()
    claim = "has computed on one task far longer than any other worker on all its tasks"
    figures = f"{duration(own)} of CPU, the others {duration(most)} at most, in no more tasks"
    return (case.saw("thread", f"pid {end.pid}", claim, figures, "workers get similar tasks in turn", mine.at),)


def given_nothing(case: Case, chain: Chain, silent: float) -> Evidence:
    """The training thread waits for so many seconds and gets nothing."""
    waits = f"waits at {show(chain.start.frame)} for {duration(silent)}"
    return case.saw(
        "thread", f"pid {chain.start.pid}", "the training thread has received nothing", waits, "a batch within a step"
    )


def all_wait(case: Case, chain: Chain) -> tuple[str, bool]:
    """What every worker does that stands at the same line for the same reason; True if these are several."""
    node, kind = chain.end.node, chain.end.kind
    alike = sorted(end.node.pid for end in chain.ends if (end.node.frame, end.kind) == (node.frame, kind) and end.still)
    if node.role != "worker" or len(alike) < 2 or node.frame is None:
        return f"{who(chain)} {doing(awaited_at(case, chain))}", False
    rank = f"rank {node.rank}'s " if node.rank is not None else ""
    pids = ", ".join(map(str, alike[:FEW])) + (f" and {len(alike) - FEW} more" if len(alike) > FEW else "")
    return f"{rank}DataLoader workers {pids} at {show(node.frame)} {doing(awaited_at(case, chain), many=True)}", True


def way_out(case: Case, chain: Chain) -> tuple[str, ...]:
    """What to change in the program so that its worker does not wait for ever."""
    end = chain.end
    if awaited(end.node) == ROOM and end.others == (chain.start.pid,):
        return (
            f"pid {chain.start.pid} reads that queue and waits for pid {end.node.pid}: let it keep reading while it waits",
        )
    return forked_with_a_lock(case, end) or ((RAISES,) if end.node.role == "worker" else ())


def forked_with_a_lock(case: Case, end: End) -> tuple[str, ...]:
    """What to do where a fork waits for a lock of its own process in which no other thread is left.

    Only its parent's threads can have taken it, before the fork, or this one itself.
    """
    node = end.node
    member = case.job.members.get(node.pid)
    if end.kind != "lock" or member is None or not waits_forever(node) or awaited(node) != A_LOCK:
        return ()
    if (node.wait is not None and node.wait.shared) or node.tid not in python_threads(case.history, node.pid):
        return ()
    parent = case.job.members.get(member.process.parent_pid)
    forked = parent is not None and parent.process.command == member.process.command
    if parent is None or not forked or any(MADE_OTHERWISE in part for part in member.process.command):
        return ()
    if other_threads(case.history, case.job, node):
        return ()
    return (
        f"pid {node.pid} is a fork of pid {parent.pid} and has no other thread: either a thread of pid {parent.pid} held the lock at "
        "the fork, and the copy stays locked (use spawn or forkserver), or it takes the lock twice itself (use an RLock)",
    )


# The thread that passes batches on


def stuck_pin_memory(case: Case) -> Outcome:
    """Fires on a chain that ends in a feeder or pin-memory thread that stands still."""
    for chain in case.still_chains:
        end = chain.end
        if end.kind != "feeder" or not end.still or wakes_soon(case, end):
            continue
        patience = STRUCTURAL_SECONDS if waits_forever(end.node) else None
        return hung(case, PASSES_NOTHING_ON, chain, patience=patience, lasts=end.silent_seconds or 0)
    return None


SHOWN = 3  # processes that are gone
REPLACED_SECONDS = 0.5  # workers of one pool start within milliseconds of each other


def outlived_seconds(case: Case, chain: Chain) -> float:
    """How long the waiting thread has been seen to wait since the process was known to be gone: a parent that reaps wakes at once."""
    gone = case.history.latest(ProcessEnded, chain.end.node.pid)
    known = gone.at if gone is not None else chain.start.thread_at - (chain.end.silent_seconds or 0.0)
    return max(0.0, chain.start.thread_at - known)


def dated(case: Case, chain: Chain, found: Finding) -> Finding:
    """The same, silent since the waiting thread last ran, as the kernel says; since the end, where that came later and was watched."""
    start = chain.start
    ran_ago = (start.motion.ran_ago_seconds or 0.0) + case.at - start.thread_at
    ends = case.history.series(ProcessEnded, chain.end.node.pid)
    if ends and case.job.members[chain.end.node.pid].process.command:  # a zombie has none: it was seen alive
        ran_ago = min(ran_ago, case.at - ends[0].at)
    return msgspec.structs.replace(found, silent_seconds=round(max(found.silent_seconds or 0.0, ran_ago), 1))


def dead_beside(case: Case, chain: Chain) -> tuple[int, ...]:
    """Python processes of this rank, or beside it, that ended not long before the wait began: one of them may have held the lock.

    Beside it is what its parent started as well, where no launcher numbered the ranks. Not a DataLoader's workers: torch raises
    where one dies, and lets them go where an epoch ends.
    """
    began = case.at - (chain.end.silent_seconds or 0.0)
    waits = case.job.members[chain.start.pid]
    parent = waits.process.parent_pid if waits.role == "rank" and waits.rank is None else None
    ends = {key[0]: case.history.series(ProcessEnded, *key)[0].at for key in case.history.entities(ProcessEnded)}
    return tuple(
        m.pid
        for m in case.job.members.values()
        if not m.alive and m.process.python and m.role != "worker"
        if m.rank_pid == waits.rank_pid or m.process.parent_pid == parent
        if ends.get(m.pid, began) >= began - BEFORE_SECONDS
    )


def missed(case: Case, chain: Chain, dead: tuple[int, ...]) -> tuple[int, ...]:
    """Of those that ended, whom the wait is for: at a barrier or for a signal, those that failed, if any did; at a pipe these only.

    Forks hold the pipes of all queues that were there before them: that those which live wait for each other shows no mistake of theirs.
    """
    ends = {pid: case.job.members[pid].ended for pid in dead}
    failed = tuple(pid for pid, end in ends.items() if end is not None and (end.exit_code or end.signal))
    if chain.end.kind == "cycle":
        return failed if chain.through == {"pipe"} else ()
    return failed if failed and awaited(chain.end.node) in (A_BARRIER, A_CONDITION) else dead


def fills_a_queue(chain: Chain) -> bool:
    """True if the end of the chain has something to give, and waits for room: it is the one who asks that is left waiting."""
    return "mp_queue_put" in chain.end.node.inner and chain.start.pid != chain.end.node.pid


def left(chain: Chain, ends: tuple[Culprit, ...]) -> tuple[Culprit, ...]:
    """Who is left waiting, to be named beside the dead."""
    return (culprit(chain.start),) if fills_a_queue(chain) or chain.end.kind == "cycle" else ends


def lasting(case: Case, chain: Chain) -> tuple[Lull, float]:
    """For how long the wait counts as lasting, and the patience that it gets: more where a thread that may end it moves."""
    watched, patience = silent_seconds(case, chain), patience_of(case, chain.start.pid)
    if is_settled(case, chain):
        return Lull(watched, (), 1.0), patience
    found = lull(case, case.job.members[chain.start.pid], watched, patience)
    return replace(found, ceiling=min(found.ceiling, MAY_COME)), patience


def where_to_look(case: Case, pid: int) -> str:
    """What tells why a process ended: the kernel's log only where it may have been killed."""
    seen = case.history.latest(ProcessEnded, pid)
    code = seen.reading.exit_code if seen is not None and not seen.reading.signal else None
    if code is None or code > SHELL_ADDS:
        return f"dmesg | grep -i {pid}"
    why = f"the traceback of process {pid} in the job's own stderr"
    return why if code else f"why process {pid} left before the others"


def words_of(case: Case, pids: tuple[int, ...]) -> tuple[Evidence, ...]:
    """The last words that the agent kept of processes that ended."""
    kept = [seen.reading for seen in case.history.every(Traceback) if seen.reading.pid in pids]
    return tuple(case.saw("traceback", f"pid {one.pid}", "raised", last_words(one), "no exception") for one in kept[:1])


def replaced(case: Case, chain: Chain) -> Evidence | None:
    """A pool worker that is much younger than its siblings: it stands in for one that died."""
    members = pool_members(case.job, chain.end.node)
    gap = youngest_start_gap_seconds(m for m in members if m.alive)
    dead = [m for m in members if not m.alive]
    as_meant = all(m.ended is not None and m.ended.exit_code == 0 and not m.ended.signal for m in dead)
    if as_meant if dead else gap < REPLACED_SECONDS:
        return None  # a worker may be meant to end after so many tasks
    youngest = max(members, key=lambda m: m.process.start_ticks)
    claim, observed = "replaces a worker that died", f"started {duration(gap)} after its siblings"
    return case.saw("process", f"pid {youngest.pid}", claim, observed, "all workers of a pool start together")


STOPPED = Cause("stopped", "hung", "user_code", (Thread,))
FROZEN = replace(STOPPED, owner="scheduler").line("""
    the control group {path} is frozen
    - saw cgroup of {path}: the freezer is on | FROZEN | THAWED
    - next: thaw the group, or ask the scheduler why it froze it
""")
HELD_STILL = STOPPED.line("""
    {who} is {held} (state {state})
    - saw state: is stopped | state {state}, TracerPid {tracer} | R or S
    - next: {looks}
""")

DEAD_WORKER = Cause("dead_worker", "hung", "user_code", (Process, Thread, Stack))
GONE = DEAD_WORKER.line("""
    process {pid}[, last seen at {last},] is gone[ ({how})] and {waiter} still waits for it
    - not stuck_worker: process {pid} does not exist any more
    - next: {looks}
    - next: use concurrent.futures.ProcessPoolExecutor: it raises when a worker dies
""")
NONE_LEFT = DEAD_WORKER.line("""
    {waiter} waits for a worker, and none is left: all have ended and no other was started
    - next: dmesg | grep -i 'killed process'
""")
LOST_TASK = DEAD_WORKER.line("""
    a pool worker {what} and {waiter} waits for it with no timeout
    - saw pool of pid {start}: every worker waits for its next task | {workers} workers idle for at least {idle:time}
      | one of them is at the task
    - not stuck_worker: every worker of the pool is idle
    - next: dmesg | grep -i 'killed process'
    - next: use concurrent.futures.ProcessPoolExecutor: it raises when a worker dies
""")
# Of a wait between processes, by what is awaited; and how a program is written that goes on or raises.
LEFT_WAITING = {
    A_BARRIER: DEAD_WORKER.line("""
        {who} waits at a barrier for {ended}, which {has} ended[ ({known})]
        - not stuck_worker: every living process that could unblock it is blocked itself
        - next: {looks}
        - next: barrier.abort() where a worker fails, or barrier.wait(timeout=...): the others then raise BrokenBarrierError
    """),
    A_CONDITION: DEAD_WORKER.line("""
        {who} waits for {what} between processes that is not signalled; {ended} {has} ended[ ({known})]
        - not stuck_worker: every living process that could unblock it is blocked itself
        - next: {looks}
        - next: wait with a timeout
    """),
    ROOM: DEAD_WORKER.line("""
        {who} waits for {what} between processes, which only its reader can free; {ended} {has} ended[ ({known})]
        - not stuck_worker: every living process that could unblock it is blocked itself
        - next: {looks}
        - next: put with a timeout, and check that its reader is alive: process.is_alive()
    """),
}
LEFT_ITS_QUEUE = DEAD_WORKER.line("""
    {ended} {has} ended[ ({known})], and pid {start} at {line} waits for more from it; {who} waits for room in a queue
    - not stuck_worker: every living process that could unblock it is blocked itself
    - next: {looks}
    - next: check process.is_alive() when get() times out, or put a final item on every exit path of the process
""")
LEFT_ITS_PIPE = DEAD_WORKER.line("""
    {ended} {has} ended[ ({known})], and pid {start} at {line} waits for it to write; all others that hold that pipe wait themselves
    - not stuck_worker: every living process that could unblock it is blocked itself
    - next: {looks}
    - next: check process.is_alive() when get() times out, or put a final item on every exit path of the process
""")
TOOK_A_LOCK_ALONG = DEAD_WORKER.line("""
    {ended} {gone} gone[ ({how})], and {who} waits for a lock between processes that {kept} never released
    - not stuck_worker: every living process that could unblock it is blocked itself
    - next: {looks}
    - next: release it on every exit path: with lock: ...
""")

BLOCKED_CHILD = Cause("blocked_child", "hung", "user_code", (Process, Thread))
CHILD_STANDS = BLOCKED_CHILD.line("""
    the training thread waits for {between}child {child} ({name}), which {does}
    - not dead_worker: process {child} is alive
""")
TALKED_TO = frozenset({"pipe", "socket"})  # to a program of its own; a worker at the other end is ``stuck_worker``
EMPTY = "empty the queue before join(): a process does not exit until its items are taken"


# Stopped


def stopped(case: Case) -> Outcome:
    """Fires on a chain that ends in a stopped or traced thread, or in a frozen group."""
    for chain in case.chains.values():
        if chain.end.kind in ("stopped", "traced") and (found := _stopped(case, chain)) is not None:
            return found
    frozen = [
        seen
        for key in case.history.entities(Cgroup)
        if (seen := case.history.latest(Cgroup, *key)) and seen.reading.frozen
    ]
    for chain in case.chains.values() if frozen else ():
        return hung(case, FROZEN, chain, patience=DECISIVE_SECONDS, path=frozen[0].reading.path)
    return None


def _stopped(case: Case, chain: Chain) -> Finding | None:
    node = chain.end.node
    seen = activity_of(case, node)
    silent = seen.silence.seconds if seen.silence is not None else 0.0
    usage = case.history.latest(ProcessUsage, node.pid)
    tracer = usage.reading.tracer_pid if usage else 0
    if seen.recurrent and silent < RATIONED_SECONDS:
        return None
    looks = f"kill -CONT {node.pid}" if not tracer else f"ps -o pid,user,args -p {tracer}"
    held = f"traced by process {tracer}" if tracer else "traced" if node.state == "t" else "stopped"
    facts = Facts(held=held, state=node.state, tracer=tracer, looks=looks)
    return hung(case, HELD_STILL, chain, patience=DECISIVE_SECONDS, silent=silent, evidence=unanswered(case), **facts)


# Gone


def dead_worker(case: Case) -> Outcome:
    """Fires on a dead end, or on a pool of idle workers one of which is a replacement."""
    for pid, chain in case.chains.items():
        alone = chain.end.node.pid == pid and not chain.end.detail  # a rank that has ended waits for no other task
        if chain.end.kind != "dead" or alone or case.progress[pid].kind != "still":
            continue
        # Seen to wait since: a look from before the end is of a wait that the end may end.
        if outlived_seconds(case, chain):
            return _gone(case, chain)
    for chain in case.still_chains:
        wait = chain.end.node.wait
        shared = chain.end.kind == "lock" and wait is not None and wait.shared
        beside = dead_beside(case, chain) if shared or chain.end.kind == "cycle" else ()
        if dead := missed(case, chain, beside):
            return _orphaned_lock(case, chain, dead)
        if chain.end.kind == "idle" and "pool" in chain.through:
            return _lost_task(case, chain)
    return None


def _gone(case: Case, chain: Chain) -> Outcome:
    """The process that is waited for has ended. Where the waiting one went on now and then, it is given more time."""
    pid = chain.end.node.pid
    how, last = how_it_ended(case.history, pid), show(chain.end.node.frame)
    found = hung(
        case,
        NONE_LEFT if chain.end.detail else GONE,
        chain,
        patience=DECISIVE_SECONDS if chain in case.still_chains else STRUCTURAL_SECONDS,
        silent=outlived_seconds(case, chain),
        **Facts(last=last, how=how, waiter=_waiter(chain), looks=where_to_look(case, pid)),
    )
    return dated(case, chain, found)


def _lost_task(case: Case, chain: Chain) -> Outcome:
    """Every worker of a pool waits for a task while a result is waited for: it will not come."""
    workers = [node_of(case.history, case.job, pid) for pid in chain.end.others]
    idle_seconds = min((silence(case.history, worker) or 0.0 for worker in workers), default=0.0)
    successor = replaced(case, chain)
    what = "died and was replaced; its task is lost" if successor else "took a task that no worker has now"
    return hung(
        case,
        LOST_TASK,
        chain,
        silent=min(idle_seconds, chain.end.silent_seconds or 0.0),
        evidence=(successor,) if successor else (),
        ceiling=None if successor else MAY_COME,  # the pool is idle, but no worker is known to have died
        **Facts(what=what, waiter=_waiter(chain), workers=len(workers), idle=idle_seconds),
    )


def _orphaned_lock(case: Case, chain: Chain, dead: tuple[int, ...]) -> Outcome:
    """All that live and share it wait too: one that has ended took a lock along, or one of its slots, or is missed at a barrier."""
    how, (lasts, patience) = how_it_ended(case.history, dead[-1]), lasting(case, chain)
    lost = [culprit(node_of(case.history, case.job, pid)) for pid in dead[-SHOWN:]]
    several, name, last = len(dead) > 1, awaited(chain.end.node), show(node_of(case.history, case.job, dead[-1]).frame)
    known = ", ".join([how] * bool(how) + [f"last seen at {last}"] * bool(last)) if not several else ""
    line = LEFT_ITS_QUEUE if fills_a_queue(chain) else LEFT_WAITING.get(name, TOOK_A_LOCK_ALONG)
    return hung(
        case,
        LEFT_ITS_PIPE if chain.end.kind == "cycle" else line,
        chain,
        patience=patience,
        silent=lasts.seconds,
        evidence=(
            *lasts.evidence,
            case.saw("process", f"pid {dead[-1]}", "is gone", how or "ended, or a zombie", "alive"),
            *words_of(case, dead),
        ),
        ceiling=lasts.ceiling,
        culprits=(*lost, *left(chain, chain.culprits())),
        **Facts(ended=f"process{'es' if several else ''} {', '.join(map(str, dead[-SHOWN:]))}", known=known, what=name),
        **Facts(has="have" if several else "has", gone="are" if several else "is", how=None if several else how),
        **Facts(
            kept="one of them" if several else "it", line=show(chain.start.frame), looks=where_to_look(case, dead[-1])
        ),
    )


def _waiter(chain: Chain) -> str:
    rank = f"rank {chain.start.rank}" if chain.start.rank is not None else f"pid {chain.start.pid}"
    return f"the training thread of {rank}"


# A child


def blocked_child(case: Case) -> Outcome:
    """Fires on a chain through a child to an end that does not move."""
    for chain in case.still_chains:
        end = chain.end
        child = _child(case, chain)
        if end.kind in ("sleep", "pipe_empty") and ends_at(case, chain.start.pid) is not None:
            continue  # when it comes back is known
        if "child" in chain.through and child is not None and (rests := at_rest(case, chain, child)) is not None:
            return _blocked_child(case, chain, child, NAPPING * temporal(case), rests)
        if end.kind in ("dead", "stopped", "traced") or not end.still or wakes_soon(case, end):
            continue
        if child is None or not_read(case, chain) is not None:
            continue
        if not (chain.through & ASKED or (chain.through & TALKED_TO and not _worker(case, child))):
            continue
        return _blocked_child(case, chain, child)
    return None


def _blocked_child(
    case: Case, chain: Chain, child: Member, patience: float | None = None, rests: Rest | None = None
) -> Outcome:
    does = (
        rests.does
        if rests is not None and rests.does
        else doing(_last(chain).waits_for if chain.end.kind == "cycle" else awaited_at(case, chain))
    )
    name = " ".join(" ".join(child.process.command).split())[:80]
    return hung(
        case,
        CHILD_STANDS,
        chain,
        patience=patience,
        silent=silence(case.history, chain.start) if rests is not None else None,
        evidence=rests.evidence if rests is not None else (),
        ceiling=MAY_COME if rests is not None else None,
        next=_next(case, chain, child),
        **Facts(between=_between(case, chain, child), child=child.pid, name=name, does=does),
    )


def _next(case: Case, chain: Chain, child: Member) -> tuple[str, ...]:
    """Of a child that writes into a pipe which only its waiting parent could empty, the way out is known."""
    last = _last(chain)
    writer = node_of(case.history, case.job, last.pid, last.tid)
    wait = writer.wait
    if chain.end.kind == "cycle" and wait is not None and wait.kind == "write":
        return (
            EMPTY
            if "feeder" in writer.tags
            else "read the child's output while it runs (communicate()), or send it to a file",
        )
    looks = f"ps -o pid,stat,wchan:30,args -p {chain.end.node.pid}"
    waits = "subprocess.run" if chain.through & ASKED and not _worker(case, child) else "what waits for it"
    return (looks, *(forked_with_a_lock(case, chain.end) or (f"give {waits} a time limit",)))


def _between(case: Case, chain: Chain, child: Member) -> str:
    """Who waits for the child where that is not the training thread itself: a worker that reads what the child writes."""
    first = next((link.pid for link in chain.links if link.pid != chain.start.pid), child.pid)
    return "" if case.job.branch(first, chain.start.pid) == child else f"pid {first}, and that for "


def _last(chain: Chain) -> Link:
    """The step at the end that matters; of a cycle, the one that closes it."""
    at = (chain.end.node.pid, chain.end.node.tid)
    same = [link for link in chain.links if (link.pid, link.tid) == at]
    return same[-1] if same and chain.end.kind != "cycle" else chain.links[-1]


def _child(case: Case, chain: Chain) -> Member | None:
    """The child on the way; of a cycle, which ends where it began, the one that it passes."""
    pids = [chain.end.node.pid] if chain.end.kind != "cycle" else [link.pid for link in chain.links]
    found = (case.job.branch(pid, chain.start.pid) for pid in pids if pid != chain.start.pid)
    return next((child for child in found if child is not None), None)


def _worker(case: Case, child: Member) -> bool:
    return child.role in ("worker", "pool_worker") or case.job.of_multiprocessing(child)


RULES = (
    Rule(STUCK_WORKER, stuck_worker),
    Rule(STUCK_PIN_MEMORY, stuck_pin_memory),
    Rule(STOPPED, stopped),
    Rule(DEAD_WORKER, dead_worker),
    Rule(BLOCKED_CHILD, blocked_child),
)
