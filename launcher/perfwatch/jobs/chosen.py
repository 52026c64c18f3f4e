"""Which process the user means: a PID, a part of a command line, a working directory, a session, or the only job.

A Slurm job, a pod and a container are named by options.

Names come from what the job's user cannot change: control groups. A pod is also known by the host name that its processes
were given, and only where a control group of Kubernetes' holds them. Where no control group tells of a Slurm job, what all ranks of a
job say is taken for it: a user can only draw attention to a job of their own by that.
"""

import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from perfwatch.errors import NoSuchTarget, SessionUnreadable, UsageError
from perfwatch.jobs.discovery import (
    WORST_FIRST,
    FoundJob,
    Known,
    ListedVerdict,
    find_jobs,
    is_notebook,
    working_directory,
)
from perfwatch.ownership import containers_of, in_kubernetes, pods_of, slurm_job_of
from perfwatch.recording.finding import after_the_end, find_session
from perfwatch.recording.recording import load_session
from perfwatch.text import clean, command_line
from perfwatch_probes.bounds import ENVIRONMENT_BYTES
from perfwatch_probes.deadline import Caller
from perfwatch_probes.external import run_together
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.process import identify

MOST_NAMED = 8
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # root runs nothing from elsewhere
SHORTEST_ID = 6  # of a container, as docker ps shows twelve
DEADLINE_SECONDS = 1.0
_UNTIL_REAPED_SECONDS = 2.0  # a recording is begun a moment after the process that it is about


@dataclass(frozen=True)
class Wanted:
    """What was typed.

    Attributes:
        target: a part of a command line, a working directory, or a session; empty: the only job.
        slurm: the number of a Slurm job.
        pod: the name or uid of a pod.
        container: the beginning of a container's id, or its name.
    """

    target: str = ""
    slurm: int | None = None
    pod: str = ""
    container: str = ""

    @property
    def words(self) -> str:
        """As it was typed."""
        if self.slurm is not None:
            return f"Slurm job {self.slurm}"
        return f"pod {self.pod}" if self.pod else f"container {self.container}" if self.container else self.target


def choose(
    wanted: Wanted,
    filesystem: Filesystem,
    child: Caller,
    environ: Mapping[str, str],
    command: str = "perfwatch attach",
    id_of: Callable[[str], str] = lambda name: "",
    known: Callable[[FoundJob], Known] = lambda job: Known(),
) -> tuple[int, str]:
    """The process at the top of the job that is meant, and what to tell the user of the choice (empty: nothing).

    Args:
        wanted: what was typed.
        filesystem: where /proc is.
        child: where reads that may block are made.
        environ: where sessions are looked for.
        command: what is advised.
        id_of: the id of a container by its name, as docker or podman knows it; empty if neither does.
        known: what the watcher of a job says, where several could be meant.

    Raises:
        NoSuchTarget: there is no such job.
        UsageError: there are several.
    """
    if wanted.target and (pid := _of_session(wanted.target, filesystem, child, environ)) is not None:
        return pid, ""
    jobs, hidden = find_jobs(filesystem, child)
    alive = [job for job in jobs if not job.orphan]
    if wanted.slurm is not None:
        number = wanted.slurm
        found = [job for job in alive if _any(job, lambda pid: slurm_job_of(_groups(filesystem, pid)) == number)]
        found = found or [job for job in alive if _states(job, number)]
    elif wanted.pod:
        found = [job for job in alive if _any(job, lambda pid: _in_pod(filesystem, child, pid, wanted.pod))]
    elif wanted.container:
        begun = wanted.container.lower()
        identifier = begun if re.fullmatch(rf"[0-9a-f]{{{SHORTEST_ID},64}}", begun) else id_of(wanted.container)
        found = [
            job for job in alive if identifier and _any(job, lambda pid: _in_container(filesystem, pid, identifier))
        ]
    elif wanted.target:
        matches = _matcher(wanted.target)
        named = [job for job in alive if matches(" ".join(job.command)) or _any_command(job, matches)]
        is_path = "/" in wanted.target or wanted.target in (".", "..")
        there = _in_directory(filesystem, child, alive, wanted.target) if is_path or not named else []
        found = there or named
    else:
        found = _meant(alive)
    others = _of_others(len(hidden), command)
    if not found:
        yours = " of yours" if hidden else ""
        what = f"{wanted.words} has no training job{yours}" if wanted.words else f"no training job{yours} runs"
        what = f"no training job{yours} whose command line has {wanted.target!r} runs" if wanted.target else what
        ended = ""
        if wanted.target:
            matches = _matcher(wanted.target)
            ended = after_the_end(lambda one: matches(" ".join(one.command)), environ, child)
        advice = ended or others or "perfwatch ps lists the training jobs of this machine"
        raise NoSuchTarget(f"{what} on this machine", advice)
    if len(found) > 1:
        which = f" match {wanted.words!r}" if wanted.words else " run on this machine"
        told = sorted(((known(job).verdict, job) for job in found), key=lambda one: _badness(one[0]))
        commands = Counter(job.command for job in found)
        listed = [
            f"{command} {job.tops[0].pid}    # {_said(verdict)}{_where(filesystem, job, commands)}{command_line(job.command)}"[
                :120
            ]
            for verdict, job in told[:MOST_NAMED]
        ]
        more = [f"and {len(found) - MOST_NAMED} more: perfwatch ps"] if len(found) > MOST_NAMED else []
        raise UsageError(f"{len(found)} training jobs{which}: which one?", "\n".join(listed + more))
    pid, line = found[0].tops[0].pid, command_line(found[0].command)[:80]
    return pid, f"{f'{wanted.words} is' if wanted.words else 'the only training job here is'} pid {pid}: {line}"


def living(filesystem: Filesystem, child: Caller) -> list[FoundJob]:
    """The training jobs that may be meant where none is named."""
    return _meant([job for job in find_jobs(filesystem, child)[0] if not job.orphan])


def _meant(jobs: list[FoundJob]) -> list[FoundJob]:
    """Without notebooks, where there is anything else."""
    return jobs if len(jobs) < 2 else [job for job in jobs if not is_notebook(job.tops[0])] or jobs


def _badness(verdict: ListedVerdict | None) -> int:
    """Orders verdicts, the worst first; a job without one is as doubtful as one of which nothing can be said."""
    state = verdict.state if verdict is not None else "inconclusive"
    return WORST_FIRST.index(state) if state in WORST_FIRST else len(WORST_FIRST)


def _said(verdict: ListedVerdict | None) -> str:
    if verdict is None:
        return ""
    return f"{verdict.state.upper()}{f' {verdict.cause}' if verdict.cause else ''}: "


def _of_others(hidden: int, command: str) -> str:
    """What to type where other users' processes may not be looked into; empty if there are none."""
    if not hidden:
        return ""
    return f"{hidden} Python process{'es' if hidden > 1 else ''} of other users: sudo {command}"


def _of_session(target: str, filesystem: Filesystem, child: Caller, environ: Mapping[str, str]) -> int | None:
    """The job that a session is about, if it still runs; None where this is no session."""
    try:
        folder = find_session(target, environ, child)
        if not folder.is_dir():
            return None
        session = load_session(folder)
    except (SessionUnreadable, PermissionError):
        return None
    for pid in session.root_pids:
        try:
            process = identify(filesystem, pid, child, tuple)
        except Unavailable:
            continue
        began = time.time() - (process.age_seconds or 0.0)
        if began <= session.created + _UNTIL_REAPED_SECONDS:
            return pid
    raise NoSuchTarget(f"the job of {folder.name} has ended", f"perfwatch replay {folder}")


def _where(filesystem: Filesystem, job: FoundJob, commands: Mapping[tuple[str, ...], int]) -> str:
    """What tells a job from others of the same command line."""
    folder = working_directory(filesystem, job.tops[0].pid) if commands[job.command] > 1 else None
    return f"in {clean(folder)}: " if folder else ""


def _in_directory(filesystem: Filesystem, child: Caller, jobs: list[FoundJob], target: str) -> list[FoundJob]:
    """Those that were started in a directory."""
    try:
        folder = child.call(os.path.realpath, target, deadline_seconds=DEADLINE_SECONDS)
    except Unavailable:
        return []
    return [job for job in jobs if working_directory(filesystem, job.tops[0].pid) == folder]


def _any(job: FoundJob, holds: Callable[[int], bool]) -> bool:
    pids = [*(rank.pid for rank in job.job.ranks), *(top.pid for top in job.tops)]
    return any(holds(pid) for pid in dict.fromkeys(pids))


def _any_command(job: FoundJob, matches: Callable[[str], bool]) -> bool:
    return any(matches(" ".join(rank.process.command)) for rank in job.job.ranks)


def _matcher(pattern: str) -> Callable[[str], bool]:
    """As pgrep -f: a regular expression; what is none is looked for as it is."""
    try:
        found = re.compile(pattern)
    except re.error:
        return lambda line: pattern in line
    return lambda line: pattern in line or found.search(line) is not None


def _groups(filesystem: Filesystem, pid: int) -> str:
    try:
        return filesystem.read_text(filesystem.proc / str(pid) / "cgroup")
    except Unavailable:
        return ""


def _states(job: FoundJob, number: int) -> bool:
    """True if each of its processes says that it is of this Slurm job, where slurmd makes no control groups."""
    said = {rank.process.environment.get("SLURM_JOB_ID") for rank in job.job.ranks}
    return said == {str(number)}


def _in_pod(filesystem: Filesystem, child: Caller, pid: int, pod: str) -> bool:
    groups = _groups(filesystem, pid)
    if pod.lower() in pods_of(groups):
        return True
    return in_kubernetes(groups) and _host_name(filesystem, child, pid) == pod[:63]


def _in_container(filesystem: Filesystem, pid: int, known: str) -> bool:
    return any(one.startswith(known) for one in containers_of(_groups(filesystem, pid)))


def _host_name(filesystem: Filesystem, child: Caller, pid: int) -> str:
    """What the environment of a process says of its host's name."""
    path = f"{filesystem.proc}/{pid}/environ"
    try:
        environ = child.call(filesystem.read_bytes, path, ENVIRONMENT_BYTES, deadline_seconds=DEADLINE_SECONDS)
    except Unavailable:
        return ""
    found = [value for value in environ.split(b"\0") if value.startswith(b"HOSTNAME=")]
    return found[0].partition(b"=")[2].decode("utf-8", "replace") if found else ""


def id_by_name(name: str, which: Iterable[str] = ("docker", "podman")) -> str:
    """The id of a container that docker or podman knows by this name; empty if neither does."""
    if name.startswith("-"):
        return ""
    for program in which:
        path = shutil.which(program, path=SYSTEM_PATH if os.geteuid() == 0 else None)
        if path is None:
            continue
        (ended,) = run_together([[path, "inspect", "--type", "container", "--format", "{{.Id}}", name]], 5.0)
        found = ended.output.decode("ascii", "replace").strip()
        if ended.returncode == 0 and re.fullmatch(r"[0-9a-f]{64}", found):
            return found
    return ""
