"""The child of ``run``: started as the shell would have started it, and an end that mirrors its end."""

import contextlib
import errno
import os
import resource
import shlex
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

from perfwatch.processes import linux
from perfwatch.run.forwarding import SHARED_TRIGGERS, TRIGGERS, may_be_for_the_job

# Python ignores these at its own start; the child gets what a program expects.
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
# A process, memory or descriptors are lacking, or room for our variables: what exec alone may still have.
LACKING = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.E2BIG})
SHORT_SECONDS = 2.0  # a watcher is up after 0.3 s, and later on a busy machine


def start(command: Sequence[str], environment: Mapping[str, str], signals: linux.SignalFile) -> int:
    """Start the command with our streams, our process group and the signal mask that we got; returns its pid.

    Raises:
        OSError: it is missing or cannot be executed.
    """
    _check_name(command[0])
    try:
        return _spawn(command, environment, signals)
    except OSError as error:
        if error.errno != errno.ENOEXEC:  # a script without ``#!`` line, which shells and env(1) give to sh
            raise
    return _spawn(("/bin/sh", _executable(command[0], environment), *command[1:]), environment, signals)


def become(command: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]) -> NoReturn:
    """Replace this process by the command, which so needs no process of its own.

    Args:
        command: what the user typed.
        environment: as we got it.
        mask: the signal mask that we got.

    Raises:
        OSError: it is missing or cannot be executed.
    """
    _check_name(command[0])
    for number in RESTORED:
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    os.execve("/bin/sh", ("/bin/sh", _executable(command[0], environment), *command[1:]), environment)


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
    leads_session = linux.leads_session()
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return status
        got = signal.sigwaitinfo(signal.valid_signals())
        arrival = linux.Arrival(got.si_signo, got.si_code, got.si_pid)
        if (
            arrival.number != signal.SIGCHLD
            and arrival.number not in own
            and may_be_for_the_job(arrival, leads_session)
        ):
            with contextlib.suppress(
                PermissionError
            ):  # it has changed its user: the sender would have been refused too
                os.kill(child, arrival.number)  # not reaped yet, so the pid is still the child's


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


def _check_name(name: str) -> None:
    if not name:  # a variable of a script that is not set
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _executable(name: str, environment: Mapping[str, str]) -> str:
    return next((path for path in _candidates(name, environment) if os.access(path, os.X_OK)), name)


def _candidates(name: str, environment: Mapping[str, str]) -> list[str]:
    if "/" in name:
        return [name]
    return [os.path.join(folder or ".", name) for folder in environment.get("PATH", os.defpath).split(":")]


def last_words(status: int, seconds: float) -> str:
    """How a child ended after so long, where its watcher was not up yet, or has no processor to say it in time."""
    from perfwatch.text import duration  # the launcher is small without it

    how = f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
    why = (
        "exited before monitoring started"
        if seconds < SHORT_SECONDS
        else "the summary is late; perfwatch replay prints it"
    )
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


def refusal(command: Sequence[str], error: OSError) -> Iterator[str]:
    """Why a command was not started, and what to type instead. Words as a shell has them."""
    name = os.fsencode(command[0]).decode(errors="backslashreplace") or "''"
    script = command[0].endswith((".py", ".sh")) and os.path.isfile(command[0])
    if script:  # the shell, too, looks for a name without a folder on PATH alone
        yield f"perfwatch: {name} is not a program that can be executed"
        program = "python" if command[0].endswith(".py") else "sh"
        yield f"did you mean: perfwatch run -- {program} {shlex.join(command)}"
    elif isinstance(error, FileNotFoundError) and "/" not in command[0]:
        yield f"perfwatch: {name}: command not found"
        if os.access(command[0], os.X_OK) and os.path.isfile(command[0]):
            yield f"did you mean: perfwatch run -- ./{shlex.join(command)}"
    else:
        yield f"perfwatch: {name}: {error.strerror}"
