"""The way to the profilers inside a job: through the endpoint that ``run`` keeps, or one that we bind ourselves.

A job that was started with KINETO_USE_DAEMON by another tool asks an endpoint too; where no process serves it, it is ours for
the time of a capture. One that another process serves (dynolog) is left to it.
"""

import errno
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from perfwatch.captures.capture import Scene, Subject
from perfwatch.captures.kineto.endpoint import NAME, Endpoint
from perfwatch.captures.kineto.keeper import GPU_DRIVERS, POLL_SECONDS
from perfwatch.captures.kineto.protocol import LONGEST_FOLDER_BYTES
from perfwatch.errors import CaptureFailed, CaptureRefused, CaptureUnavailable
from perfwatch.processes.control import ask
from perfwatch_probes.readable import readable

KIND = "torch"
ASK_SECONDS = 2.0
DEFAULT_POLL_SECONDS = 5.0  # Kineto's own
# Where no process served the endpoint a client tries again with pauses that double, from 10 ms to 5.12 s.
FIRST_POLL_SECONDS = 12.0
USE = "KINETO_USE_DAEMON"
FOLDER = "KINETO_IPC_SOCKET_DIR"
TRACES = "KINETO_ONDEMAND_TRACE_DIR"
ARM = "start it with perfwatch run -- COMMAND, or with KINETO_USE_DAEMON=1 in its environment"
ARM_ON_GPUS = (
    "start it with perfwatch run -- COMMAND, without --no-agent: it is armed when it begins to use a GPU;\n"
    "or set KINETO_USE_DAEMON=1 in its environment before torch is imported (torch initialises CUDA at its import then: "
    "children that the job forks cannot use it)"
)


@dataclass(frozen=True)
class Asking:
    """One process that asks for work. ``idle``: no trace is taken in it. ``given``: windows that it got."""

    pid: int
    idle: bool
    ago_seconds: float
    given: int


class Link(Protocol):
    """Hands windows to the profilers of a job."""

    poll_seconds: float  # how often they ask

    def asking(self) -> dict[int, Asking]:
        """Who asks, by pid."""
        ...

    def offer(self, texts: Mapping[int, str], seconds: float) -> None:
        """Give each pid its configuration the next time it asks, if that is within so many seconds."""
        ...

    def wait(self, seconds: float) -> None:
        """Let time pass while the profilers are answered."""
        ...

    def close(self) -> None:
        """Leave."""
        ...


class ServedLink:
    """Through the server that ``run`` started. Raises OSError from each call when it is gone."""

    poll_seconds = float(POLL_SECONDS)

    def __init__(self, control: Path) -> None:
        self._control = control
        self.asking()

    def asking(self) -> dict[int, Asking]:  # noqa: D102
        clients = ask(self._control, {"command": "clients"}, ASK_SECONDS)["clients"]
        return _newest(Asking(one["pid"], one["idle"], one["ago_seconds"], one["given"]) for one in clients)

    def offer(self, texts: Mapping[int, str], seconds: float) -> None:  # noqa: D102
        named = {str(pid): text for pid, text in texts.items()}
        ask(self._control, {"command": "offer", "texts": named, "seconds": seconds}, ASK_SECONDS)

    def wait(self, seconds: float) -> None:  # noqa: D102
        time.sleep(seconds)

    def close(self) -> None:  # noqa: D102
        try:
            ask(self._control, {"command": "withdraw"}, ASK_SECONDS)
        except OSError:
            pass  # the run has ended


class OwnLink:
    """Through an endpoint of our own, for as long as the capture lasts.

    Args:
        address: what the job's environment names.
        clock: monotonic seconds.

    Raises OSError when it cannot be bound (EADDRINUSE: another process serves it).
    """

    poll_seconds = DEFAULT_POLL_SECONDS

    def __init__(self, address: str | bytes, clock: Callable[[], float] = time.monotonic) -> None:
        self._address, self._clock = address, clock
        self._endpoint = Endpoint(address, clock)

    def asking(self) -> dict[int, Asking]:  # noqa: D102
        clients = self._endpoint.answer({"command": "clients"})["clients"]
        return _newest(Asking(one["pid"], one["idle"], one["ago_seconds"], one["given"]) for one in clients)

    def offer(self, texts: Mapping[int, str], seconds: float) -> None:  # noqa: D102
        self._endpoint.answer({"command": "offer", "texts": dict(texts), "seconds": seconds})

    def wait(self, seconds: float) -> None:  # noqa: D102
        ends = self._clock() + seconds
        while (left := ends - self._clock()) > 0:
            readable(left, self._endpoint)
            self._endpoint.serve()

    def close(self) -> None:
        """Let the address go: a file that no process serves would delay the job."""
        if isinstance(self._address, str):
            os.unlink(self._address)
        self._endpoint.close()


def environment_of(subject: Subject, proc: Path) -> dict[str, str]:
    """What the environment of a rank says of Kineto; empty when it is not armed or cannot be read."""
    try:
        entries = (proc / str(subject.pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (entry.decode(errors="replace").partition("=") for entry in entries if entry.startswith(b"KINETO_"))
    return {name: value for name, _, value in pairs}


def check(scene: Scene, subjects: tuple[Subject, ...], drivers: Iterable[Path] = GPU_DRIVERS) -> None:
    """Raises CaptureUnavailable, with what is missing, when these ranks cannot be reached. drivers: one is there where there is a GPU."""
    if KIND in scene.armed:
        return
    for subject in subjects:
        environment = environment_of(subject, scene.proc)
        if not environment.get(USE):
            raise CaptureUnavailable(
                f"pid {subject.pid} cannot be asked for a trace: {USE} is not in its environment, which torch reads at its import",
                ARM_ON_GPUS if any(driver.exists() for driver in drivers) else ARM,
            )
        folder = environment.get(FOLDER, "")
        if len(os.fsencode(folder)) > LONGEST_FOLDER_BYTES:
            raise CaptureUnavailable(
                f"{FOLDER} of pid {subject.pid} has more than {LONGEST_FOLDER_BYTES} bytes: its profiler cannot listen there",
                f"{FOLDER}=/tmp/kineto, made with mode 700, before it is started",
            )
        space = "mnt" if folder else "net"
        if _elsewhere(subject.pid, space, scene.proc):
            raise CaptureUnavailable(
                f"pid {subject.pid} is in another {'mount' if folder else 'network'} namespace, and its endpoint with it",
                f"nsenter --target {subject.pid} --{'mount' if folder else 'net'} perfwatch capture torch {subject.pid}",
            )


def connect(scene: Scene, subjects: tuple[Subject, ...]) -> Link:
    """The way to these ranks. Raises CaptureRefused or CaptureFailed when there is none."""
    armed = scene.armed.get(KIND, {})
    if "ask" in armed:
        try:
            return ServedLink(Path(armed["ask"]))
        except OSError:
            pass  # the launcher is gone, and its server with it: the address is free
    folder = environment_of(subjects[0], scene.proc).get(FOLDER, "")
    address: str | bytes = f"{folder}/{NAME}" if folder else f"\0{NAME}\0".encode()
    if isinstance(address, str) and os.path.exists(address) and not _listens(address):
        os.unlink(address)  # left by a daemon that was killed: it delays the job as long as it is there
    try:
        return OwnLink(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CaptureRefused(
                "another daemon serves the endpoint of this job's profilers (dynolog?)", "ask it instead: dyno gputrace"
            ) from None
        raise CaptureFailed(f"the endpoint cannot be bound: {error.strerror}", "run as the user of the job") from None


def _newest(clients: Iterable[Asking]) -> dict[int, Asking]:
    found: dict[int, Asking] = {}
    for one in clients:
        if one.pid not in found or one.ago_seconds < found[one.pid].ago_seconds:
            found[one.pid] = one
    return found


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _elsewhere(pid: int, space: str, proc: Path) -> bool:
    try:
        return os.readlink(proc / str(pid) / "ns" / space) != os.readlink(proc / "self" / "ns" / space)
    except OSError:
        return False
