"""How hosts are reached: what every engine has in common. ssh, srun and kubectl do the work; an engine only names hosts."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from perfwatch.processes.reinvoke import own_command

REACH_SECONDS = 10.0  # to connect and log in
# Words of ssh(1) for a machine that is down or cut off, and for one that is up and does not let us in.
_NOT_REACHED = re.compile(
    r"timed out|no route to host|network is unreachable|closed by|reset by|broken pipe", re.IGNORECASE
)
# What kubectl misses by a name in quotes, or calls a container, is no program.
_NOT_THERE = re.compile(
    r"(?<!container )(?<!\" )not found|no such file or directory|no module named '?perfwatch", re.IGNORECASE
)


@dataclass(frozen=True)
class Answer:
    """What one host printed. ``said``: the last line on stderr. ``received``: unix time, on our clock.

    unasked: of a host that was not asked, its state (``perfwatch.fleet.merge.hosts.STATES``); ``said`` tells why.
    waited: seconds until it had ended, or was given up; nearly_all: after which nearly all hosts had answered, where that counts.
    """

    host: str
    lines: tuple[str, ...] = ()
    said: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    too_long: bool = False
    unasked: str = ""
    received: float = 0.0
    waited: float | None = None
    nearly_all: float | None = None

    @property
    def unreached(self) -> bool:
        """True if the machine may be down: no answer in time, or no way to it."""
        return self.timed_out or _NOT_REACHED.search(self.said) is not None

    @property
    def not_installed(self) -> bool:
        """True if there was no perfwatch to run."""
        return self.exit_code in (126, 127) or _NOT_THERE.search(self.said) is not None


Heard = Callable[[Answer], None]


class Engine(Protocol):
    """One way to reach the hosts of a job. ``complete``: it knows all of them, not only those that were named."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host that will be asked."""
        ...

    @property
    def complete(self) -> bool:
        """True if ``hosts`` are all hosts of the job."""
        ...

    @property
    def job(self) -> str:
        """How ranks begin to say of which job of Slurm's they are, where the engine knows it; empty otherwise."""
        ...

    def by_hand(self, host: str) -> str:
        """A command, to be typed, that shows whether this host can be reached."""
        ...

    def ask(self, arguments: Sequence[str], deadline_seconds: float, heard: Heard) -> None:
        """Run ``perfwatch ARGUMENTS`` on every host and tell each answer as it comes, one for each host.

        Args:
            arguments: words after ``perfwatch``; ours alone, nothing of them comes from a job.
            deadline_seconds: after which whatever still runs is ended, and counts as no answer.
            heard: called in the calling thread.

        Raises PerfwatchError where no host can be asked at all.
        """
        ...


def here() -> list[str]:
    """How this very perfwatch is called: on a cluster the same path is there on every host, more often than not."""
    program = os.path.abspath(sys.argv[0])
    if os.path.basename(program) == "perfwatch" and os.access(program, os.X_OK):
        return [program]
    return own_command()


def for_a_shell(command: Sequence[str] | None, arguments: Sequence[str]) -> str:
    """One line for the login shell of a host, whichever that is: our own path if it is there, else the one on PATH.

    Args:
        command: what the user says that perfwatch is called there; None: not said.
        arguments: words after it. All words are quoted.
    """
    if command is not None:
        return shlex.join([*command, *arguments])
    own, rest = here(), shlex.join(arguments)
    script = f"if [ -x {shlex.quote(own[0])} ]; then exec {shlex.join(own)} {rest}; else exec perfwatch {rest}; fi"
    return shlex.join(["exec", "sh", "-c", script])


def found(program: str) -> bool:
    """True if a program is on PATH."""
    return shutil.which(program) is not None
