"""What shows that the workers behind a queue deliver nothing, and who they are."""

from itertools import pairwise

from perfwatch.triage.case import Case
from perfwatch.triage.hang import who
from perfwatch.triage.moving.memory import unfed
from perfwatch.triage.moving.motion import BURSTS, bursts
from perfwatch.triage.patience import outlasts
from perfwatch.triage.shares.data import discarded
from perfwatch.triage.shares.profile import profile
from perfwatch.triage.waits.asked_for import ROOM, awaited
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.forked import forked_with_a_lock
from perfwatch.triage.waits.heartbeats import waits_forever
from perfwatch.triage.waits.polling import only_asks
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Evidence
from perfwatch_probes.readings import Thread

MOST_NAMED = 4  # workers
OUTSPENT, OUTSPENT_SECONDS = (
    10.0,
    1.0,
)  # times what each other worker has computed since it began, which counts as so much at least
RAISES = "set DataLoader(timeout=...) so that it raises instead"
OFTEN = 10  # writes of a worker: it has answered before


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
        and end.node.motion.distinct == 1
        and not end.node.motion.io_calls
        and only_asks(case.history, end.node)
        and bursts(case.history, end.node.pid, end.node.tid) < BURSTS
        for end in chain.ends
    )


def told_without_a_stack(case: Case, chain: Chain) -> bool:
    """Whether the kernel alone tells that a worker stands: it sleeps beyond the patience, or a loader's waits for a lock for ever.

    A loader's worker that is idle looks into its queue again and again. Nobody else who might deliver moves.
    """
    end = chain.end
    locked = end.kind == "lock" and end.node.role == "worker" and waits_forever(end.node)
    return (outlasts(case, end) or locked) and all(one.still for one in chain.ends)


def delivers(case: Case, chain: Chain) -> bool:
    """Whether batches come from the workers all the while, and the training thread throws them away."""
    return discarded(case, case.job.members[chain.start.pid]) is not None


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
        f"{worker.samples} samples over {worker.seconds:.0f} s, most at {show(worker.top_line())}",
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

    They began together and are handed tasks in turn; that they have answered as often is told by their writes.
    """
    end = chain.end.node
    fellows = [one.pid for one in case.job.workers(chain.start.pid) if one.alive and one.pid != end.pid]
    mine = case.history.latest(Thread, end.pid, end.pid)
    seen = [case.history.latest(Thread, pid, pid) for pid in fellows]
    if mine is None or end.tid != end.pid or not seen or any(one is None for one in seen):
        return ()
    spent = [one.reading.run_seconds for one in seen if one is not None]
    writes = [one.reading.write_calls for one in seen if one is not None]
    if mine.reading.run_seconds is None or mine.reading.write_calls is None or None in spent or None in writes:
        return ()
    most, fewest = max(one or 0.0 for one in spent), min(one or 0 for one in writes)
    own, answers = mine.reading.run_seconds, mine.reading.write_calls
    if own < OUTSPENT * max(most, OUTSPENT_SECONDS) or not OFTEN <= answers <= fewest:
        return ()
    return (
        case.saw(
            "thread",
            f"pid {end.pid}",
            "has computed on one task far longer than any other worker on all of its own",
            f"{own:.1f} s of CPU, the others {most:.1f} s at most, in no more tasks than they",
            "workers are handed alike tasks in turn",
            mine.at,
        ),
    )


def given_nothing(case: Case, chain: Chain, silent: float) -> Evidence:
    """The training thread waits in vain for so many seconds."""
    waits = f"waits at {show(chain.start.frame)} for {silent:.0f} s"
    return case.saw(
        "thread", f"pid {chain.start.pid}", "the training thread has been given nothing", waits, "a batch within a step"
    )


def all_wait(chain: Chain) -> str:
    """Who waits, and for what: every worker that stands at the same line for the same reason."""
    node, kind = chain.end.node, chain.end.kind
    alike = sorted(end.node.pid for end in chain.ends if (end.node.frame, end.kind) == (node.frame, kind) and end.still)
    if node.role != "worker" or len(alike) < 2 or node.frame is None:
        return f"{who(chain)} waits for {chain.awaited}"
    rank = f"rank {node.rank}'s " if node.rank is not None else ""
    pids = ", ".join(map(str, alike[:MOST_NAMED])) + (
        f" and {len(alike) - MOST_NAMED} more" if len(alike) > MOST_NAMED else ""
    )
    return f"{rank}DataLoader workers {pids} at {show(node.frame)} wait for {chain.awaited}"


def way_out(case: Case, chain: Chain) -> tuple[str, ...]:
    """What to change in the program so that its worker does not wait for ever."""
    end = chain.end
    if awaited(end.node) == ROOM and end.others == (chain.start.pid,):
        return (
            f"pid {chain.start.pid} reads that queue and waits for pid {end.node.pid}: let it read on while it waits",
        )
    return forked_with_a_lock(case, end) or ((RAISES,) if end.node.role == "worker" else ())
