"""Hosts of a Slurm job: one ``srun --overlap`` step beside the running ones, a task on each node.

Run as the user who owns the job, from anywhere that reaches the controller. srun writes the output of all tasks into one
stream, each line with the number of its task; the lines of one host also share the check of their snapshot.
"""

import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace

from perfwatch.errors import NoSuchTarget, UsageError
from perfwatch.fleet import pool
from perfwatch.fleet.engine import Answer, Heard, found, here
from perfwatch.fleet.wire import LONGEST_ANSWER_BYTES, MARK
from perfwatch.jobs.identity import slurm_job

JOB = re.compile(r"\d+(?:[_+]\d+)?")
_LABEL = re.compile(r"^\s*(\d+): (.*)$")
CONTROLLER_SECONDS = 15.0
LONGEST_LINE_BYTES = 64 * 1024
MOST_NOISE = 20  # lines of one node that are no part of an answer: banners, warnings


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

    def by_hand(self, host: str) -> str:
        """See ``Engine.by_hand``."""
        return shlex.join(["srun", "--overlap", f"--jobid={self._job}", f"--nodelist={host}", "hostname"])

    def ask(self, arguments: Sequence[str], deadline_seconds: float, heard: Heard) -> None:
        """See ``Engine.ask``. All answers come when the step ends."""
        tasks = ByTask(self.hosts)
        for answer in pool.run({"srun": self.argv(arguments)}, deadline_seconds, output=tasks.take, complaint=str):
            for one in tasks.answers(answer):
                heard(one)


class ByTask:
    """One stream of labelled lines as one answer for each host, told apart while it comes.

    Task numbers follow the order of the node list. Each host has the limit of an answer to itself, and of what is no part of
    one a few lines are kept: a node that floods the stream takes nothing from the others.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = hosts
        self._lines: list[list[str]] = [[] for _ in hosts]
        self._noise = [0] * len(hosts)
        self._bytes = [0] * len(hosts)
        self._received = [0.0] * len(hosts)
        self._rest = b""

    def take(self, chunk: bytes) -> None:
        """What came; a line without an end is cut."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            labelled = _LABEL.match(line.decode(errors="replace"))
            if labelled is not None and int(labelled[1]) < len(self._hosts):
                self._keep(int(labelled[1]), labelled[2])

    def _keep(self, task: int, line: str) -> None:
        if MARK in line:
            self._bytes[task] += len(line) + 1
            self._received[task] = time.time()
        else:
            self._noise[task] += 1
        if self._bytes[task] <= LONGEST_ANSWER_BYTES and (MARK in line or self._noise[task] <= MOST_NOISE):
            self._lines[task].append(line)

    def answers(self, whole: Answer) -> list[Answer]:
        """What each host said, once the step has ended.

        Its exit code is the highest of all tasks: of those that complain without an answer, or where none does, of all that
        gave none, and so are the words of srun itself.
        """
        self.take(b"\n")
        labelled = [said for said in map(_LABEL.match, whole.said.splitlines()) if said is not None]
        last = {int(said[1]): said[2][: pool.LONGEST_LINE] for said in labelled if said[2].strip()}
        unlabelled = "" if last else pool.last_line(whole.said)
        found = []
        for task, (host, lines) in enumerate(zip(self._hosts, self._lines, strict=True)):
            failed = not self._bytes[task] and (task in last or not last)
            found.append(
                replace(
                    whole,
                    host=host,
                    lines=tuple(lines),
                    said=last.get(task, unlabelled) if failed else "",
                    exit_code=whole.exit_code if failed else None,
                    timed_out=whole.timed_out and not self._bytes[task],
                    too_long=self._bytes[task] > LONGEST_ANSWER_BYTES,
                    received=self._received[task] or whole.received,
                )
            )
        return found


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
