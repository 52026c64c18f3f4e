"""Who makes the data that a training thread waits for, and whether they are at it: workers, tasks of Ray, processes, threads."""

from collections.abc import Iterable

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import python_threads, tags_seen
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares import thresholds
from perfwatch.triage.shares.profile import lasting
from perfwatch.triage.waits.libraries import serving
from perfwatch.triage.waits.workers import between_tasks
from perfwatch.triage.words.frames import any_tag, inner_tags, is_user, tags
from perfwatch_probes import readings as r

WINDOW_SECONDS = thresholds.LATELY_SECONDS
WORKING_SHARE = 0.4  # of the looks at workers: those of a starved loop are busy nearly all the time
SERVICES = ("feeder", "pool_service", "futures_service", "monitor", "serve", "compile_worker")


def works(stack: r.Stack) -> bool:
    """True if a worker works at data, rather than waits for its next task, for an item, or for room in a queue."""
    found = tags(stack)
    if "fetch" in found:
        return True
    if "feeder" in found:  # it pickles a batch, or has none to pickle
        return not any_tag(found, "thread_wait", "mp_send", "mp_lock")
    asks = any_tag(found, "mp_queue_get", "queue_get", "mp_lock")
    idle = asks and any_tag(found, "worker", "pool_worker", "futures_worker", "thread_wait")
    # A selector of a library's own; the program's may await its data.
    loops = "selector" in found and not any(map(is_user, stack.frames))
    waits = any_tag(inner_tags(stack), "thread_wait", "between_calls") or between_tasks(stack) or _awaits_orders(stack)
    return not (idle or waits or loops or imports(stack))


def _awaits_orders(stack: r.Stack) -> bool:
    """True if the function that a process was started with asks for the next item itself, rather than one that serves an item."""
    if not any_tag(inner_tags(stack), "mp_receive"):
        return False
    callers = zip(stack.frames, stack.frames[1:], strict=False)
    caller = next((outer for frame, outer in callers if is_user(frame)), None)
    return caller is not None and caller.file.endswith("multiprocessing/process.py")


def imports(stack: r.Stack) -> bool:
    """True if a worker that was spawned a moment ago still imports the program."""
    found = tags(stack)
    return "import" in found and not any_tag(found, "worker", "pool_worker")


def producers(case: Case, rank: Member) -> tuple[tuple[int, int], ...]:
    """Who makes the data of a rank: loader workers, else tasks of Ray, its other Python processes or threads, by what it waits on."""
    workers = [w.pid for w in case.job.workers(rank.pid) if w.alive]
    if workers:
        return tuple((pid, pid) for pid in workers) + _pickling(case, workers)
    seen = case.profile(rank, WINDOW_SECONDS)
    if seen.seen("remote_data"):  # a process of Ray's pool gets another task each time
        return _at_work(case, ((pid, pid) for pid in serving(case.job)))
    children = tuple(
        (m.pid, m.pid)
        for m in case.job.children(rank.pid)
        if m.alive and m.process.python and m.role in ("pool_worker", "child")
    )
    trains = case.progress[rank.pid].thread
    threads = tuple(
        (rank.pid, tid)
        for tid in python_threads(case.history, rank.pid)
        if tid != trains and not any_tag(tags_seen(case.history, rank.pid, tid, WINDOW_SECONDS), *SERVICES)
    )
    threads = _at_work(case, threads) or threads  # a writer of logs waits for items, too
    between = seen.share("mp_queue_get", "mp_receive", "pool_wait") > 0.0
    return (children or threads) if between else (threads or children)


def _at_work(case: Case, makers: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple(
        key for key in makers if lasting(case.history, *key, WINDOW_SECONDS).share_where(works) >= WORKING_SHARE
    )


def _pickling(case: Case, workers: list[int]) -> tuple[tuple[int, int], ...]:
    """Feeder threads of workers that spend their time on turning batches into bytes; they rarely do."""
    return _at_work(
        case,
        (
            (pid, tid)
            for pid in workers
            for tid in python_threads(case.history, pid)
            if tid != pid and "feeder" in tags_seen(case.history, pid, tid, WINDOW_SECONDS)
        ),
    )
