"""Whom the kernel killed for lack of memory: often a worker, and the process that waited for it fails for that."""

import re
import signal

from perfwatch.probes import readings as r
from perfwatch.triage.case import Case
from perfwatch.triage.frames import show
from perfwatch.triage.gone import traceback_of
from perfwatch.triage.last_words import last_words
from perfwatch.triage.node import culprit, node_of
from perfwatch.triage.verdict import Culprit, Evidence

# torch/utils/data/_utils/signal_handling.py, from what the worker's parent was told at its end.
_LOST = re.compile(r"DataLoader worker \(pid\(?s?\)? (?P<pid>\d+)\) is killed by signal: Killed")


def victims(case: Case, ended: r.ProcessEnded) -> tuple[int, ...]:
    """The processes of the job that were killed for memory: by the kernel's log, or the first that SIGKILL ended, or torch's words.

    The one whose end is told, where it is among them or nothing else is known.
    """
    logged = [seen.reading.pid for seen in case.history.every(r.KernelMessage) if seen.reading.kind == "oom_kill"]
    named = tuple(dict.fromkeys(pid for pid in logged if pid is not None and pid in case.job.members))
    if not named and _counted(case):
        named = (_killed(case) or lost(case))[:1]
    return (ended.pid,) if not named or ended.pid in named else named


def _counted(case: Case) -> bool:
    """Whether the kernel's own counter of such kills rose in a control group of the job."""
    grown = [
        case.history.growth(r.Cgroup, *key, of=lambda group: group.oom_kills) for key in case.history.entities(r.Cgroup)
    ]
    return any(one is not None and one[0] > 0 for one in grown)


def _killed(case: Case) -> tuple[int, ...]:
    """Members that SIGKILL ended, in the order in which that was seen."""
    ends = [seen for seen in case.history.every(r.ProcessEnded) if seen.reading.signal == signal.SIGKILL]
    return tuple(one.reading.pid for one in sorted(ends, key=lambda one: one.at) if one.reading.pid in case.job.members)


def lost(case: Case) -> tuple[int, ...]:
    """The DataLoader worker of which torch says that SIGKILL ended it: the OOM killer, or somebody else."""
    words = traceback_of(case)
    found = _LOST.search(words.text) if words is not None else None
    return (int(found["pid"]),) if found and int(found["pid"]) in case.job.members else ()


def blamed(case: Case, pid: int, ended: r.ProcessEnded) -> Culprit:
    """The one that was killed, where it was last seen; of the process whose end is told itself only its number is known."""
    if pid == ended.pid:
        return Culprit(pid=pid, rank=case.job.rank_of(pid))
    return culprit(node_of(case.history, case.job, pid))


def told(case: Case, killed: tuple[int, ...], ended: r.ProcessEnded) -> str:
    """Who ran out of memory, how large it was seen, and whose end followed from that."""
    own = killed == (ended.pid,)
    sizes = [
        seen.reading.resident_bytes
        for key in case.history.entities(r.ProcessUsage)
        if own or key[0] in killed
        for seen in case.history.series(r.ProcessUsage, *key)
    ]
    size = f"largest resident size seen: {max(sizes, default=0) / 2**30:.1f} GiB"
    if own:
        return f"pid {ended.pid} ran out of memory ({size})"
    last = show(node_of(case.history, case.job, killed[0]).frame)
    known = ", ".join([f"last seen at {last}"] * bool(last) + [size] * bool(sizes))
    more = f" and {len(killed) - 1} more" if len(killed) > 1 else ""
    failed = bool(ended.exit_code) or traceback_of(case) is not None
    then = f"pid {ended.pid} {'failed for it' if failed else 'has ended since'}"
    was = "were" if more else "was"
    return f"{_name(case, killed[0])}{more} {was} killed for lack of memory{f' ({known})' if known else ''}; {then}"


def followed(case: Case, killed: tuple[int, ...]) -> tuple[Evidence, ...]:
    """The error of the one that failed because another one was killed."""
    words = traceback_of(case)
    if words is None or words.pid in killed:
        return ()
    return (case.saw("traceback", f"pid {words.pid}", "failed after that", last_words(words), "no exception"),)


def _name(case: Case, pid: int) -> str:
    member = case.job.members[pid]
    if member.role == "rank":
        return f"pid {pid}" if member.rank is None else f"rank {member.rank} (pid {pid})"
    kind = "DataLoader worker" if member.role == "worker" else "child process"
    owner = f"rank {member.rank}" if member.rank is not None else f"pid {member.rank_pid}"
    return f"{kind} {pid} of {owner}" if member.rank_pid is not None else f"process {pid}"
