"""Two small processes keep the profilers' endpoint of a run: one serves it, one is there to remove it.

A job that asks a socket file behind which no process listens is delayed by ten seconds, at its exit too; one that finds no
file goes on at once. So whatever dies, the file must go: the janitor removes it when the launcher or the server is gone,
the server when the janitor is. Both stand in sessions of their own, out of reach of a signal for the launcher's group.
"""

import contextlib
import os
import select
import shutil
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import NoReturn

from perfwatch.captures.kineto.endpoint import NAME, Endpoint, leftovers
from perfwatch.captures.kineto.protocol import LONGEST_FOLDER_BYTES
from perfwatch.processes import linux
from perfwatch.processes.control import ControlServer
from perfwatch.processes.place import locked
from perfwatch.processes.trouble import reason
from perfwatch_probes.readable import readable

GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"), Path("/dev/dxg"))  # NVIDIA, AMD, either of them in WSL
READY_SECONDS = 1.0  # what the start of a job waits for the socket, at most
# What the two processes answer when they have started; anything else is the reason why there is no socket.
SERVED = "1"
SILENCE = f"no socket after {READY_SECONDS:g} s"
LONGEST_ANSWER_BYTES = 200
DISMISSED_SECONDS = 1.0  # the longest wait for the end of the two processes
TURN_SECONDS = 0.5  # how often a server that does not serve asks whether it should now
HOUSEKEEPING_SECONDS = 30.0
POLL_SECONDS = 1  # how often the job's profilers ask
SILENT = "5"  # of KINETO_LOG_LEVEL: its errors are 4. Without us a job would print two lines at each poll
LATER = "PERFWATCH_PROFILER"  # asks the agent
FOLDER = "k"  # in the job's place; short, for its path is
ASK = "ask"  # the server's own socket in it, for captures


@dataclass(frozen=True)
class Keeper:
    """The two processes. ``lifeline``: a descriptor of the launcher's; they end when it is closed."""

    janitor: int
    lifeline: int

    def dismiss(self) -> None:
        """End them now and reap the janitor, which is our child. SIGCHLD is blocked."""
        os.close(self.lifeline)
        ends = time.monotonic() + DISMISSED_SECONDS
        with contextlib.suppress(ChildProcessError):  # reaped already
            while os.waitpid(self.janitor, os.WNOHANG)[0] == 0 and (left := ends - time.monotonic()) > 0:
                signal.sigtimedwait((signal.SIGCHLD,), left)


def arm(environment: Mapping[str, str], place: Path, later: bool = False) -> tuple[dict[str, str], Keeper | None]:
    """Start the endpoint of a job that is about to start, and name it in the job's environment.

    Args:
        environment: of the job. Where the user has set anything of Kineto's, nothing is armed.
        place: the job's place; the endpoint goes into a folder there.
        later: not at the import of torch, but by the agent when a process begins to use CUDA. Where there is an NVIDIA driver
            torch would initialise CUDA at its import, and what such a process forks cannot use it (measured: torch 2.11,
            cudaErrorInitializationError in the child).

    Returns the environment, changed only when the endpoint is served, and the processes that serve it.

    Raises OSError when the endpoint cannot be served.
    """
    result = dict(environment)
    folder = place / FOLDER
    if any(name.startswith("KINETO_") for name in environment):
        return result, None
    if len(os.fsencode(folder)) > LONGEST_FOLDER_BYTES:
        raise OSError(f"torch takes no socket folder of more than {LONGEST_FOLDER_BYTES} bytes: {folder}")
    traces = trace_folder(place)
    folder.mkdir(mode=0o700, exist_ok=True)
    with open(folder / "config", "w", opener=_private) as config:
        config.write(f"ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS={POLL_SECONDS}\n")
    keeper = _start(folder, traces)
    armed = {
        LATER if later else "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(folder),
        "KINETO_CONFIG": str(folder / "config"),
        "KINETO_ONDEMAND_TRACE_DIR": str(traces),
        "KINETO_LOG_LEVEL": SILENT,
    }
    return result | armed, keeper


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def trace_folder(place: Path, uid: int | None = None) -> Path:
    """Where the job's own processes (of this user) write their traces, before these are packed into the session. Not in memory."""
    return Path(f"/var/tmp/perfwatch-{os.getuid() if uid is None else uid}") / f"traces-{place.name}"


def _start(folder: Path, traces: Path) -> Keeper:
    """Fork the janitor and, from it, the server; return when the socket is there. Raises OSError when it is not."""
    with contextlib.ExitStack() as temporary, contextlib.ExitStack() as kept:
        lifeline, held = os.pipe()  # ``held`` stays open in the launcher alone, and closes with it
        temporary.callback(os.close, lifeline)
        kept.callback(os.close, held)
        ready, done = os.pipe()
        temporary.callback(os.close, ready)
        with open(done, "wb", buffering=0) as answer:
            janitor = os.fork()
            if janitor == 0:
                _become_janitor(folder, lifeline, answer, traces)
        kept.pop_all()
        keeper = Keeper(janitor, held)
        said = os.read(ready, LONGEST_ANSWER_BYTES).decode() if readable(READY_SECONDS, ready) else SILENCE
        if said == SERVED:
            return keeper
        keeper.dismiss()
    raise OSError(f"{folder / NAME}: {said or 'its process ended'}")


def _become_janitor(folder: Path, lifeline: int, answer: FileIO, traces: Path) -> NoReturn:
    try:
        _become("perfwatch-tidy", lifeline, answer.fileno())
        words, tell = os.pipe()  # the server says when it serves; the pipe ends with it
        leash, leashed = os.pipe()  # ends with us
        if (server := os.fork()) == 0:
            os.close(leashed)
            os.close(words)
            _become_server(folder, (lifeline, leash), tell, answer)
        os.close(tell)
        os.close(leash)
        answer.close()
        serving = False
        while words in readable(None, lifeline, words) and os.read(words, 1):
            serving = True
        if serving:
            _unlink(folder)
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        if serving:
            shutil.rmtree(traces, ignore_errors=True)
            _empty(folder)
    except OSError as error:
        _tell(answer, reason(error))
    finally:
        os._exit(0)


def _become_server(folder: Path, lines: tuple[int, int], tell: int, answer: FileIO) -> NoReturn:
    """``lines``: of the launcher and of the janitor; either is readable when that process is gone."""
    try:
        linux.set_name("perfwatch-torch")
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        while not locked(lock):  # another launcher of the same job serves
            _tell(answer, SERVED if (folder / NAME).exists() else "another launcher of the job has not made it yet")
            if readable(TURN_SECONDS, *lines):
                os._exit(0)
        os.write(tell, b"1")
        _serve(folder, lines, answer)
    except OSError as error:
        _tell(answer, reason(error))
    finally:
        os._exit(0)


def _tell(answer: FileIO, text: str) -> None:
    """Answer the launcher, once."""
    if not answer.closed:
        with contextlib.suppress(OSError):  # it waits no longer
            answer.write(text.encode()[:LONGEST_ANSWER_BYTES])
        answer.close()


def _serve(folder: Path, lines: tuple[int, int], answer: FileIO) -> None:
    _unlink(folder)
    try:
        endpoint = Endpoint(str(folder / NAME))
        control = ControlServer(folder / ASK, endpoint.answer)
        _tell(answer, SERVED)
        housekeeping = time.monotonic() + HOUSEKEEPING_SECONDS
        while True:
            poll = select.poll()
            for descriptor in (*lines, endpoint.fileno(), *control.filenos()):
                poll.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll(HOUSEKEEPING_SECONDS * 1000)}
            if ready & set(lines):
                return
            endpoint.serve()
            control.serve()
            if time.monotonic() > housekeeping:
                endpoint.forget()
                housekeeping = time.monotonic() + HOUSEKEEPING_SECONDS
    finally:
        _unlink(folder)


def _become(name: str, *kept: int) -> None:
    os.setsid()
    os.umask(0o077)
    linux.set_name(name)
    linux.close_all_but(*kept)
    linux.detach_from_streams(0, 1, 2)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())


def _unlink(folder: Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(folder / NAME)


def _empty(folder: Path) -> None:
    for path in leftovers(folder):
        with contextlib.suppress(OSError):
            path.unlink()
