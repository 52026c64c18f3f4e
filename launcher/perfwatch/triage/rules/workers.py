"""Workers of a loader or a pool that deliver nothing, and the thread that passes their batches on."""

from itertools import pairwise

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.graph.thresholds import COUNTS_TIMES
from perfwatch.triage.hang import hung, look_at, stacks_of, who, with_loop
from perfwatch.triage.moving.loops import loop_of
from perfwatch.triage.moving.memory import unfed
from perfwatch.triage.moving.motion import BURSTS, bursts, python_threads
from perfwatch.triage.moving.work import moves_data
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import profile
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.locks import A_LOCK, ROOM, awaited, takes_again
from perfwatch.triage.waits.node import NATIVE_WAIT, End, silence, waits_forever
from perfwatch.triage.waits.polling import only_asks
from perfwatch.triage.waits.threads import OTHERS_MOVE, other_threads
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Evidence, Outcome, doing
from perfwatch_probes.readings import Stack, Thread

STUCK_WORKER = Cause("stuck_worker", "hung", "data", (Thread, Stack))
# Ends that are the worker's own doing; any other end has a rule of its own.
OWN_ENDS = ("sleep", "lock", "python", "native", "gil", "cycle", NATIVE_WAIT, "other", "unknown")
RUNNING_ENDS = ("python", "native")
NAPPING = 2.0  # times the patience, for workers that look again and again whether something has come
GONE_WILD = 0.5  # of it, in one call of a regular expression that has cost more than all that the other workers did
CEILING_GUESSED = 0.78  # no stack; in a loop that waits for no condition; or in native code, for whom is not known
CEILING_UNSEEN = 0.7  # what it waits for could not be read
CEILING_RUNNING = 0.88  # an endless loop and a very long computation look the same from outside

MOST_NAMED = 4  # workers
# Times what each other worker has computed since it began, which counts as so much at least.
OUTSPENT, OUTSPENT_SECONDS = 10.0, 1.0
RAISES = "set DataLoader(timeout=...) to turn this hang into an error"
OFTEN = 10  # writes of a worker: it has answered before
MADE_OTHERWISE = "multiprocess"  # in the command of what spawn and the fork server of multiprocess(ing) make

STUCK_PIN_MEMORY = Cause("stuck_pin_memory", "hung", "data", (Thread, Stack))


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
    return hung(
        case,
        STUCK_WORKER,
        chain,
        summary=f"{who(chain)} polls again and again, but has produced nothing for {duration(silent)}; "
        "the training thread is blocked on it",
        patience=NAPPING * temporal(case),
        silent=silent,
        evidence=(given_nothing(case, chain, silent),),
        ceiling=CEILING_GUESSED,
        but={"starved_by_transforms": "no batch was delivered meanwhile"},
        next=look_at(chain.end.node.frame),
    )


def _finding(case: Case, chain: Chain) -> Outcome:
    end = chain.end
    running = end.kind in RUNNING_ENDS
    certain = (end.kind in ("lock", "gil", "cycle") and end.detail != OTHERS_MOVE) or outlasts(case, end)
    silent = end.silent_seconds or 0.0
    evidence: tuple[Evidence, ...] = ()
    patience = STRUCTURAL_SECONDS if certain and end.node.stack is not None else temporal(case)
    doubtful = end.node.stack is None or (end.kind == "lock" and end.detail == OTHERS_MOVE)
    told = CEILING_GUESSED if doubtful else 1.0
    ceiling, wild = {"unknown": CEILING_UNSEEN, NATIVE_WAIT: CEILING_GUESSED}.get(end.kind, told), False
    if running:
        silent, evidence = without_a_batch(case, chain)
        loop = loop_of(case.history, end.node)
        fills = moves_data(case.history, end.node)
        ceiling = CEILING_RUNNING if loop.may_turn_for_ever and not fills else CEILING_GUESSED
        beyond = outspends(case, chain) if (wild := loop.expression) else ()
        evidence, patience = (*evidence, *beyond), patience * (GONE_WILD if beyond else 1.0)
        if fills and not wild and not loop.may_turn_for_ever:
            return None  # data come to an end: a stream that skips to where a run had stopped, a buffer that fills
        counts = end.kind == "native" or fills or (loop.counts and not wild)
        patience *= COUNTS_TIMES if counts else 1.0
        if counts and silent < patience:
            return None  # long work, until proved otherwise
    said, many = (f"{who(chain)} runs", False) if running else all_wait(chain)
    they, them = ("they have", "them") if many else ("it has", "it")
    if not running and (frame := takes_again(case.history, end.node)):
        said = f"{who(chain)} waits for a lock that it has taken itself at {show(frame)}"
    found = hung(
        case,
        STUCK_WORKER,
        chain,
        summary=f"{said}; {they} produced nothing for {duration(silent)}, and the training thread is blocked on {them}",
        patience=patience,
        silent=silent,
        evidence=evidence,
        ceiling=ceiling,
        but={
            "starved_by_transforms": (
                "no batch was delivered within the hang timeout"
                if running
                else "the worker uses no CPU and does no I/O"
            ),
            "dead_worker": f"process {end.node.pid} is alive",
        },
        next=(
            *way_out(case, chain),
            stacks_of(end.node.pid),
        ),
    )
    return with_loop(found, end.node, loop.frame) if running and not wild else found


def through_a_queue(case: Case, chain: Chain) -> bool:
    """Whether the chain went through a loader's or pool's queue, or a hand-made one to a process of ``multiprocessing``."""
    if chain.through & {"loader", "pool"}:
        return True
    child = case.job.branch(chain.end.node.pid, chain.start.pid)
    return bool(chain.through & {"pipe", "socket"}) and child is not None and case.job.of_multiprocessing(child)


def all_nap(case: Case, chain: Chain) -> bool:
    """Whether everybody who could deliver sleeps a little in a loop that only asks, again and again, and nothing else."""
    return all(
        end.kind == "sleep"
        and end.node.pid != chain.start.pid
        and end.node.naps
        and only_asks(case.history, end.node)
        and bursts(case.history, end.node.pid, end.node.tid) < BURSTS
        for end in chain.ends
    )


def told_without_a_stack(case: Case, chain: Chain) -> bool:
    """Whether the kernel alone tells that a worker stands: it sleeps beyond the patience, or a loader's waits for a lock for ever.

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
    claim = "has computed on one task far longer than any other worker on all of its own"
    figures = f"{duration(own)} of CPU, the others {duration(most)} at most, in no more tasks than they"
    return (case.saw("thread", f"pid {end.pid}", claim, figures, "workers are handed alike tasks in turn", mine.at),)


def given_nothing(case: Case, chain: Chain, silent: float) -> Evidence:
    """The training thread waits in vain for so many seconds."""
    waits = f"waits at {show(chain.start.frame)} for {duration(silent)}"
    return case.saw(
        "thread", f"pid {chain.start.pid}", "the training thread has received nothing", waits, "a batch within a step"
    )


def all_wait(chain: Chain) -> tuple[str, bool]:
    """What every worker does that stands at the same line for the same reason; True if these are several."""
    node, kind = chain.end.node, chain.end.kind
    alike = sorted(end.node.pid for end in chain.ends if (end.node.frame, end.kind) == (node.frame, kind) and end.still)
    if node.role != "worker" or len(alike) < 2 or node.frame is None:
        return f"{who(chain)} {doing(chain.awaited)}", False
    rank = f"rank {node.rank}'s " if node.rank is not None else ""
    pids = ", ".join(map(str, alike[:MOST_NAMED])) + (
        f" and {len(alike) - MOST_NAMED} more" if len(alike) > MOST_NAMED else ""
    )
    return f"{rank}DataLoader workers {pids} at {show(node.frame)} {doing(chain.awaited, many=True)}", True


def way_out(case: Case, chain: Chain) -> tuple[str, ...]:
    """What to change in the program so that its worker does not wait for ever."""
    end = chain.end
    if awaited(end.node) == ROOM and end.others == (chain.start.pid,):
        return (
            f"pid {chain.start.pid} reads that queue and waits for pid {end.node.pid}: let it read on while it waits",
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
        forever = end.node.wait is not None and end.node.wait.forever
        return hung(
            case,
            STUCK_PIN_MEMORY,
            chain,
            summary=f"{who(chain)} passes no batch on: it has not run for {duration(end.silent_seconds or 0)}, and every worker is idle",
            patience=STRUCTURAL_SECONDS if forever or outlasts(case, end) else temporal(case),
            but={"stuck_worker": "every worker's main thread waits for its next task"},
            next=(stacks_of(end.node.pid),),
        )
    return None


RULES = (
    Rule(STUCK_WORKER, stuck_worker),
    Rule(STUCK_PIN_MEMORY, stuck_pin_memory),
)
