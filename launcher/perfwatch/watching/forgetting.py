"""Bounds the memory of a watch that runs for days: drops old readings, and readings of processes that ended long ago.

A loader starts new workers in each epoch, a server a thread per request. Without this, the last reading of each would stay in memory
forever. The recording still has them. How a rank or a launcher ended is kept.
"""

import re
from typing import Any

from perfwatch.triage.history import KEYS, History
from perfwatch.triage.job import Job
from perfwatch.watching.probes_of_job import Look
from perfwatch_probes import readings as r
from perfwatch_probes.probe import Unavailable

_PID = re.compile(r"pid (\d+)\b")
# How a rank ended is what a verdict about its end rests on, however long ago; there are few of them.
_REMEMBERED_ROLES = ("rank", "launcher")


def forget(history: History, look: Look, job: Job, seconds: float) -> None:
    """Let go of what is older than so many seconds.

    What still holds is kept: the last word about each process, thread and file that is still there.
    """
    before = history.at - seconds
    history.forget(before)
    dead = {pid for (pid,) in history.entities(r.ProcessEnded) if _long_dead(history, look, job, pid, before)}
    tasks = {pid: _tasks(look, pid) for pid in look.known}

    def gone(kind: type[r.Reading], key: tuple[Any, ...], at: float) -> bool:
        if kind is r.ProbeCall:
            process = _PID.match(key[1])
            return at < before and process is not None and int(process[1]) not in look.known
        if kind is r.GpuProcess:
            seen = history.latest(r.GpuProcess, *key)
            return at < before and seen is not None and seen.reading.gone
        named = dict(zip(KEYS.get(kind, ()), key, strict=False))
        threads = tasks.get(named.get("pid", 0))
        if threads is not None and "tid" in named:
            return at < before and named["tid"] not in threads
        return named.get("pid") in dead

    history.drop(gone)
    look.forget(seconds)


def _long_dead(history: History, look: Look, job: Job, pid: int, before: float) -> bool:
    ended, member = history.latest(r.ProcessEnded, pid), job.members.get(pid)
    if pid in look.known or ended is None or ended.at >= before:
        return False
    return member is None or member.role not in _REMEMBERED_ROLES


def _tasks(look: Look, pid: int) -> frozenset[int] | None:
    try:
        return frozenset(look.filesystem.tasks(pid))
    except Unavailable:
        return None
