"""Whom the kernel killed for lack of memory: often a worker, and the process that waited for it fails for that."""

import re
import signal
from itertools import pairwise

from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import LOOKS_APART_SECONDS, ended_well, told_by_shell, traceback_of
from perfwatch.triage.ends.last_words import last_words
from perfwatch.triage.history import Seen
from perfwatch.triage.waits.node import culprit, node_of
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Culprit, Evidence
from perfwatch_probes import readings as r

# torch/utils/data/_utils/signal_handling.py, from what the worker's parent was told at its end.
_LOST = re.compile(r"DataLoader worker \(pid\(?s?\)? (?P<pid>\d{1,9})\) is killed by signal: Killed")


def victims(case: Case, ended: r.ProcessEnded) -> tuple[int, ...]:
    """The processes of the job that were killed for memory: by the kernel's log, or the first that SIGKILL ended, or torch's words.

    The one whose end is told, where it is among them or nothing else is known.
    """
    named = tuple(dict.fromkeys(seen.reading.pid for seen in logged(case, ended) if seen.reading.pid is not None))
    if not named and counted(case, ended):
        named = (_killed(case) or lost(case))[:1]
    return (ended.pid,) if not named or ended.pid in named else named


def logged(case: Case, ended: r.ProcessEnded) -> list[Seen[r.KernelMessage]]:
    """Where the kernel's log names a process of the job; of a job that ended well, one of its ranks: it got over the others."""
    kills = [seen for seen in case.history.every(r.KernelMessage) if seen.reading.kind == "oom_kill"]
    ours = set(case.job.members)
    if ended_well(case, ended):
        ours = {rank.pid for rank in case.job.ranks} - {ended.pid}
    return [seen for seen in kills if seen.reading.pid in ours]


def counted(case: Case, ended: r.ProcessEnded) -> dict[str, int]:
    """By control group of the job, how often the kernel killed in it when a process ended that it may have been.

    A group is often not the job's alone: a notebook in the same container, a build in the same terminal are killed as well.
    """
    ends = [] if ended_well(case, ended) else _ends_without_words(case)
    found: dict[str, int] = {}
    for (path,) in case.history.entities(r.Cgroup):
        for earlier, later in pairwise(case.history.series(r.Cgroup, path)):
            more = (later.reading.oom_kills or 0) - (earlier.reading.oom_kills or 0)
            since, until = earlier.at - LOOKS_APART_SECONDS, later.at + LOOKS_APART_SECONDS
            if earlier.reading.oom_kills is not None and more > 0 and any(since <= at <= until for at in ends):
                found[path] = found.get(path, 0) + more
    return found


def _ends_without_words(case: Case) -> list[float]:
    """When a member ended by SIGKILL, as itself or a shell tells, or in a way that nobody saw."""
    found = []
    for pid in case.job.members:
        seen = case.history.series(r.ProcessEnded, pid)
        number = (seen[-1].reading.signal or told_by_shell(seen[-1].reading)) if seen else None
        if seen and (number == signal.SIGKILL or (number is None and seen[-1].reading.exit_code is None)):
            found.append(seen[0].at)
    return found


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
        if key[0] in (case.job.members if own else killed)
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
