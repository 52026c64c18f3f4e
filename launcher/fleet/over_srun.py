"""Hosts of a Slurm job: one ``srun --overlap`` step beside the running ones, a task on each node.

Run as the user who owns the job, from anywhere that reaches the controller. srun writes the output of all tasks into one
stream, each line with the number of its task; the lines of one host also share the check of their snapshot.
"""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from perfwatch.errors import NoSuchTarget, UsageError
from perfwatch.fleet import pool
from perfwatch.fleet.engine import Answer, Heard, found, here
from perfwatch.triage.roles.identity import slurm_job

JOB = re.compile(r"\d+(?:[_+]\d+)?")
_LABEL = re.compile(r"^\s*(\d+): (.*)$")
CONTROLLER_SECONDS = 15.0


class OverSrun:
    """The nodes of one job.

    Args:
        job: its number, as squeue shows it.
        command: what perfwatch is called there; None: our own path, for nodes of one cluster share it.

    Raises UsageError: no Slurm here, or no such number. NoSuchTarget: the job does not run.
    """

    complete = True

    def __init__(self, job: str, command: Sequence[str] | None = None) -> None:
        if not JOB.fullmatch(job):
            raise UsageError(f"--slurm takes the number of a job, not {job!r}", "squeue --me")
        missing = [program for program in ("srun", "squeue", "scontrol") if not found(program)]
        if missing:
            raise UsageError(
                f"--slurm needs {', '.join(missing)} on PATH", "perfwatch fleet --hosts a,b[1-4] goes by ssh"
            )
        self._job = job
        # Ranks of an array or a heterogeneous job bear another number.
        self.job = slurm_job(job) if job.isdecimal() else ""
        self._command = list(command) if command is not None else here()
        nodes = _said(["squeue", "--noheader", "--jobs", job, "--states", "RUNNING", "--format", "%N"])
        names = _said(["scontrol", "show", "hostnames", nodes]) if nodes else ""
        self.hosts: tuple[str, ...] = tuple(names.split())
        if not self.hosts:
            raise NoSuchTarget(f"job {job} does not run on any node", "squeue --me lists your jobs")

    def argv(self, arguments: Sequence[str]) -> list[str]:
        """The step, exactly."""
        count = str(len(self.hosts))
        return [
            "srun",
            "--overlap",
            f"--jobid={self._job}",
            f"--nodes={count}",
            f"--ntasks={count}",
            "--ntasks-per-node=1",
            "--label",
            "--input=none",
            "--kill-on-bad-exit=0",
            "--mpi=none",
            "--cpu-bind=none",
            *self._command,
            *arguments,
        ]

    def ask(self, arguments: Sequence[str], deadline_seconds: float, heard: Heard) -> None:
        """See ``Engine.ask``. All answers come when the step ends."""
        for answer in pool.run({"srun": self.argv(arguments)}, deadline_seconds):
            for one in by_task(answer, self.hosts):
                heard(one)


def by_task(answer: Answer, hosts: Sequence[str]) -> list[Answer]:
    """One stream of labelled lines as one answer for each host: task numbers follow the order of the node list."""
    lines: dict[int, list[str]] = {}
    for line in answer.lines:
        labelled = _LABEL.match(line)
        if labelled is not None:
            lines.setdefault(int(labelled[1]), []).append(labelled[2])
    said = _LABEL.match(answer.said)
    complaint = said[2] if said else answer.said
    return [
        replace(
            answer,
            host=host,
            lines=tuple(lines.get(task, ())),
            said="" if lines.get(task) else complaint,
            timed_out=answer.timed_out and not lines.get(task),
        )
        for task, host in enumerate(hosts)
    ]


def _said(command: list[str]) -> str:
    """What a program of Slurm prints; raises UsageError with its own words when it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=CONTROLLER_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{command[0]} does not answer: {error}", f"try it by hand: {' '.join(command)}") from None
    if done.returncode:
        raise UsageError(f"{command[0]} failed: {pool.last_line(done.stderr)}", f"try it by hand: {' '.join(command)}")
    return done.stdout.strip()
