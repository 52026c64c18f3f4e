"""Running an outside observer (py-spy, perf) so that it can never outlive us, hang us, or touch the terminal.

Each one gets no stdin, pipes that are read up to a limit, its own session (a Ctrl-C on the terminal does not reach it),
the order from the kernel to die with us, and SIGKILL at the deadline; what it has started in its process group goes with
it, for it may be a script around the real one. Nothing here ever sends a signal to the watched job.

What an observer costs is not decided by the process that it reads: a crafted symbol table would fill the memory, so there is a
limit, and where memory runs out it is killed first. One that survives SIGKILL (state D: it waits for the memory lock of the process)
is left behind, not waited for; while two of them read one user's processes, no other is started for that user (``LEFT_BEHIND``).
"""

import contextlib
import ctypes
import os
import resource
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from perfwatch_probes.deadline import still_there
from perfwatch_probes.locked_files import user_of
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.sessions import keep_nice_value

MOST_AT_ONCE = 4
OUTPUT_LIMIT_BYTES = 32 * 2**20  # 2,000 threads of 40 frames are about 20 MB of py-spy's JSON
# py-spy takes 5 MiB for a torch process, 23 MiB with native frames; files that it maps are not counted.
MEMORY_BYTES = 512 * 2**20
MOST_LEFT_OF_ONE, MOST_LEFT = 2, 32  # observers that cannot be killed: of one user's processes, and of all
_GRACE_AFTER_KILL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Finished:
    """How one observer ended. ``returncode`` is None when it was killed at the deadline or never got its turn."""

    returncode: int | None
    output: bytes
    errors: str
    duration_seconds: float
    cpu_seconds: float = 0.0
    started: bool = True
    left_behind: int | None = None  # its pid, where it could not be killed


Runner = Callable[[Sequence[Sequence[str]], float], list[Finished]]


class LeftBehind:
    """Observers that could not be killed, each with the user whose process it was reading."""

    def __init__(self) -> None:
        self._users: dict[int, int] = {}

    def add(self, observer: int, pid: int) -> None:
        """Remember an observer of the process ``pid``."""
        self._users[observer] = user_of(pid)

    def refuse(self, pid: int) -> None:
        """Raise Unavailable where one more observer of this process would be stuck as well."""
        alive = set(still_there(self._users))
        self._users = {observer: uid for observer, uid in self._users.items() if observer in alive}
        uid = user_of(pid)
        stuck = [observer for observer, of in self._users.items() if of == uid]
        if len(stuck) >= MOST_LEFT_OF_ONE or len(self._users) >= MOST_LEFT:
            raise Unavailable(
                f"observers of uid {uid} are stuck in the kernel (state D): pids {stuck or sorted(self._users)}",
                "find the mount or driver that does not answer: cat /proc/PID/stack of those pids as root",
            )


LEFT_BEHIND = LeftBehind()  # of this process: several parts of it may read the processes of one user


def limit_memory(most: int = MEMORY_BYTES) -> None:
    """In a process that reads what another one has made of itself: at most so much memory, and killed first when there is none left."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as adjustment:
        adjustment.write("1000")


def start(
    command: Sequence[str],
    pass_fds: Sequence[int] = (),
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    settle: Callable[[], None] = lambda: None,
    memory_bytes: int = MEMORY_BYTES,
    environment: Mapping[str, str] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start an observer that dies with us. Raises Unavailable when it cannot be started.

    settle: runs in the new process before the program does: ``Arrival.settle`` of ``perfwatch_probes.guest``.
    memory_bytes: that it may take.
    environment: its own; the search path alone by default.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        limit_memory(memory_bytes)
        settle()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # we died between fork and prctl
            os._exit(1)
        keep_nice_value()

    # RUST_BACKTRACE=0: py-spy otherwise spends its time on resolving the symbols of its own failure.
    plain = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "RUST_BACKTRACE": "0"}
    try:
        return subprocess.Popen(
            list(command),
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,
            env=plain if environment is None else environment,
            cwd="/",
            pass_fds=pass_fds,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"{command[0]} could not be started: {error}") from error


def kill(child: "subprocess.Popen[bytes]") -> None:
    """SIGKILL for a child that leads a process group and was not reaped yet, so that the number is its own; and for the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def reap(child: "subprocess.Popen[bytes]", wait_seconds: float, whole_group: bool = True) -> float | None:
    """CPU seconds of a child that has ended, waiting at most so long; None when it has not ended.

    whole_group: what it leaves behind in the process group that it leads is killed.
    """
    until = time.monotonic() + wait_seconds
    while True:
        try:
            ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                if whole_group:
                    kill(child)
                _, status, usage = os.wait4(child.pid, 0)
        except ChildProcessError:  # it was reaped elsewhere: its status and its cost are lost
            child.returncode = child.returncode if child.returncode is not None else -1
            return 0.0
        if ended is not None:
            child.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime
        if time.monotonic() >= until:
            return None
        time.sleep(0.0005)


def run_together(commands: Sequence[Sequence[str]], deadline_seconds: float) -> list[Finished]:
    """Run commands, at most four at a time, and return how each ended, in order.

    The deadline is for the whole batch, so that the caller is never held longer, however many hang.
    """
    began = time.monotonic()
    until = began + deadline_seconds
    results: list[Finished | None] = [None] * len(commands)
    waiting = list(range(len(commands)))
    running: dict[int, _Running] = {}
    with selectors.DefaultSelector() as selector:
        while waiting or running:
            now = time.monotonic()
            if now >= until:
                break
            while waiting and len(running) < MOST_AT_ONCE:
                index = waiting.pop(0)
                try:
                    running[index] = _Running(index, start(commands[index]), selector, now)
                except Unavailable as unavailable:
                    results[index] = Finished(127, b"", unavailable.reason, 0.0)
            if not running:  # none could be started: to select from nothing is to wait for the whole deadline
                break
            for key, _ in selector.select(until - now):
                one: _Running = key.data
                one.read(key.fileobj)  # type: ignore[arg-type]
                if not one.open:
                    results[one.index] = one.finish(until)
                    del running[one.index]
        for one in running.values():
            results[one.index] = one.finish(0.0)
    never = Finished(None, b"", "", time.monotonic() - began, started=False)
    return [result if result is not None else never for result in results]


class _Running:
    """An observer at work and what it has said so far."""

    def __init__(
        self, index: int, child: "subprocess.Popen[bytes]", selector: selectors.BaseSelector, began: float
    ) -> None:
        assert child.stdout is not None
        assert child.stderr is not None
        self.index, self._child, self._selector, self._began = index, child, selector, began
        self._texts: dict[IO[bytes], bytearray] = {child.stdout: bytearray(), child.stderr: bytearray()}
        self.open = {child.stdout, child.stderr}
        for stream in self.open:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, self)

    def read(self, stream: IO[bytes]) -> None:
        """Take what is there; past the limit the observer loses its reader and ends."""
        try:
            chunk = os.read(stream.fileno(), 1 << 18)
        except BlockingIOError:
            return
        text = self._texts[stream]
        text += chunk
        if not chunk or len(text) > OUTPUT_LIMIT_BYTES:
            self._close(stream)

    def _close(self, stream: IO[bytes]) -> None:
        self._selector.unregister(stream)
        self.open.discard(stream)
        stream.close()

    def finish(self, until: float) -> Finished:
        """Reap it, by force when the deadline has passed."""
        child = self._child
        left_behind = None
        cpu_seconds = reap(child, max(0.0, until - time.monotonic()))
        late = cpu_seconds is None
        if late:
            kill(child)
            cpu_seconds = reap(child, _GRACE_AFTER_KILL_SECONDS)
            if cpu_seconds is None:  # unkillable: leave it behind, and keep Popen from complaining
                child.returncode = -signal.SIGKILL
                left_behind = child.pid
        for stream in list(self.open):
            self._close(stream)
        output, errors = self._texts.values()
        return Finished(
            returncode=None if late else child.returncode,
            output=bytes(output),
            errors=errors.decode(errors="replace"),
            duration_seconds=time.monotonic() - self._began,
            cpu_seconds=cpu_seconds or 0.0,
            left_behind=left_behind,
        )
