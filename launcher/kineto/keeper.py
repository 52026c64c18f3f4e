"""Two small processes keep the profilers' endpoint of a run: one serves it, one is there to remove it.

A job that asks a socket file behind which nobody listens is delayed by ten seconds, at its exit too; one that finds no
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
from pathlib import Path
from typing import NoReturn

from perfwatch import linux
from perfwatch.control import ControlServer
from perfwatch.kineto.endpoint import NAME, Endpoint, leftovers
from perfwatch.kineto.protocol import LONGEST_FOLDER_BYTES
from perfwatch.running.lock import locked

READY_SECONDS = 1.0  # what the start of a job waits for the socket, at most
TURN_SECONDS = 0.5  # how often a server that does not serve asks whether it should now
HOUSEKEEPING_SECONDS = 30.0
POLL_SECONDS = 1  # how often the job's profilers ask
SILENT = "5"  # of KINETO_LOG_LEVEL: its errors are 4. Without us a job would print two lines at each poll
LATER = "PERFWATCH_PROFILER"  # asks the agent
FOLDER = "k"  # in the job's place; short, for its path is
ASK = "ask"  # the server's own socket in it, for captures


def arm(environment: Mapping[str, str], place: Path, later: bool = False) -> dict[str, str]:
    """Start the endpoint of a job that is about to start, and name it in the job's environment.

    Args:
        environment: of the job. Where the user has set anything of Kineto's, nothing is armed.
        place: the job's place; the endpoint goes into a folder there.
        later: not at the import of torch, but by the agent when a process begins to use CUDA. Where there is an NVIDIA driver
            torch would initialise CUDA at its import, and what such a process forks cannot use it (measured: torch 2.11,
            cudaErrorInitializationError in the child).

    Returns the environment, changed only when the endpoint is served.
    """
    result = dict(environment)
    folder = place / FOLDER
    if any(name.startswith("KINETO_") for name in environment) or len(os.fsencode(folder)) > LONGEST_FOLDER_BYTES:
        return result
    traces = trace_folder(place)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "config").write_text(f"ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS={POLL_SECONDS}\n")
        if not _start(folder, traces):
            return result
    except OSError:
        return result  # no room in memory, or for a process: the job is what counts
    return result | {
        LATER if later else "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(folder),
        "KINETO_CONFIG": str(folder / "config"),
        "KINETO_ONDEMAND_TRACE_DIR": str(traces),
        "KINETO_LOG_LEVEL": SILENT,
    }


def trace_folder(place: Path, uid: int | None = None) -> Path:
    """Where the job's own processes (of this user) write their traces, before these are packed into the session. Not in memory."""
    return Path(f"/var/tmp/perfwatch-{os.getuid() if uid is None else uid}") / f"traces-{place.name}"


def _start(folder: Path, traces: Path) -> bool:
    """Fork the janitor and, from it, the server. Whether the socket is there."""
    lifeline, held = os.pipe()  # ``held`` stays open in the launcher alone, and closes with it
    ready, done = os.pipe()
    if os.fork() == 0:
        _become_janitor(folder, lifeline, done, traces)
    os.close(lifeline)
    os.close(done)
    listening = bool(select.select([ready], [], [], READY_SECONDS)[0]) and os.read(ready, 1) == b"1"
    os.close(ready)
    if not listening:
        os.close(held)
    return listening


def _become_janitor(folder: Path, lifeline: int, done: int, traces: Path) -> NoReturn:
    try:
        _become("perfwatch-tidy", lifeline, done)
        words, tell = os.pipe()  # the server says when it serves; the pipe ends with it
        leash, leashed = os.pipe()  # ends with us
        if (server := os.fork()) == 0:
            os.close(leashed)
            os.close(words)
            _become_server(folder, (lifeline, leash), tell, done)
        os.close(tell)
        os.close(leash)
        os.close(done)
        serving = False
        while words in select.select([lifeline, words], [], [])[0] and os.read(words, 1):
            serving = True
        if serving:
            _unlink(folder)
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        if serving:
            shutil.rmtree(traces, ignore_errors=True)
            _empty(folder)
    finally:
        os._exit(0)


def _become_server(folder: Path, lines: tuple[int, int], tell: int, done: int) -> NoReturn:
    """``lines``: of the launcher and of the janitor; either is readable when that process is gone."""
    try:
        linux.set_name("perfwatch-torch")
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        while not locked(lock):  # another launcher of the same job serves
            if done >= 0:
                os.write(done, b"1" if (folder / NAME).exists() else b"0")
                os.close(done)
                done = -1
            if select.select(lines, [], [], TURN_SECONDS)[0]:
                os._exit(0)
        os.write(tell, b"1")
        _serve(folder, lines, done)
    finally:
        os._exit(0)


def _serve(folder: Path, lines: tuple[int, int], done: int) -> None:
    _unlink(folder)
    try:
        endpoint = Endpoint(str(folder / NAME))
        control = ControlServer(folder / ASK, endpoint.answer)
        if done >= 0:
            os.write(done, b"1")
            os.close(done)
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
    linux.set_name(name)
    linux.detach_from_streams(0, 1, 2)
    linux.close_all_but(*kept)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())


def _unlink(folder: Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(folder / NAME)


def _empty(folder: Path) -> None:
    for path in leftovers(folder):
        with contextlib.suppress(OSError):
            path.unlink()
