"""The child of ``run``: started as the shell would have started it, and an end that mirrors its end."""

import errno
import os
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from perfwatch import linux
from perfwatch.running.forwarding import SHARED_TRIGGERS, TRIGGERS

# Python ignores these at its own start; the child gets what a program expects.
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
SHORT_SECONDS = 2.0  # a watcher is up after 0.3 s, and later on a busy machine


def start(command: Sequence[str], environment: Mapping[str, str], signals: linux.SignalFile) -> int:
    """Start the command with our streams, our process group and the signal mask that we got; returns its pid.

    Raises:
        OSError: it is missing or cannot be executed.
    """
    if not command[0]:  # a variable of a script that is not set
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        return _spawn(command, environment, signals)
    except OSError as error:
        if error.errno != errno.ENOEXEC:  # a script without ``#!`` line, which shells and env(1) give to sh
            raise
    path = next((path for path in _candidates(command[0], environment) if os.access(path, os.X_OK)), command[0])
    return _spawn(("/bin/sh", path, *command[1:]), environment, signals)


def wait_plainly(child: int) -> int:
    """Pass on what comes and wait for the child: the least that a launcher must do, with nothing that could fail.

    For a launcher in which something has failed. All signals are blocked. What asks us for something could kill the job.
    """
    own = {
        *TRIGGERS,
        *SHARED_TRIGGERS,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
    }
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return status
        number = signal.sigwait(signal.valid_signals())
        if number != signal.SIGCHLD and number not in own:
            os.kill(child, number)  # not reaped yet, so the pid is still the child's


def end_as(status: int) -> NoReturn:
    """End as a child with this wait status: same exit code, or same signal (128+n as PID 1, whom no signal kills)."""
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core that matters is the child's
    linux.forbid_core_dump()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _spawn(command: Sequence[str], environment: Mapping[str, str], signals: linux.SignalFile) -> int:
    return os.posix_spawnp(command[0], list(command), environment, setsigmask=signals.original_mask, setsigdef=RESTORED)


def _candidates(name: str, environment: Mapping[str, str]) -> list[str]:
    if "/" in name:
        return [name]
    return [os.path.join(folder or ".", name) for folder in environment.get("PATH", os.defpath).split(":")]


def last_words(status: int, seconds: float) -> str:
    """How a child ended after so long, where its watcher was not up yet, or has no processor to say it in time."""
    from perfwatch.report.plain import duration  # the launcher is small without it

    how = f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
    why = "too short to be watched" if seconds < SHORT_SECONDS else "the summary is late: perfwatch replay tells it"
    return f"{how} after {duration(seconds)}: {why}"


def changed_children() -> Iterator[tuple[int, int]]:
    """Children that have ended, stopped or gone on, with their wait status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status
