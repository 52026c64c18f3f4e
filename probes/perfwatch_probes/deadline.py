"""Work that may never come back is done in a child that can be thrown away.

Reading the command line of a sick process waits for its memory lock; a stat on a dead mount waits for ever; neither
can be interrupted by a thread or an alarm. ``KillableChild`` runs such a call in a forked helper and gives up at a
deadline: the late child is killed, and one that cannot be killed (state D) is left behind, never waited for.
"""

import ctypes
import errno
import gc
import itertools
import os
import pickle
import select
import signal
import struct
import time
from collections.abc import Callable, Collection
from typing import NoReturn, Protocol, TypeVar

from perfwatch_probes.probe import Unavailable
from perfwatch_probes.sessions import start_session

MOST_ABANDONED = 4  # stuck in the kernel at once: a few MB each, and a fifth would be stuck for the same reason

PROCESS_NAME = "perfwatch-read"  # of the children, as ps shows it
MOST_REPLY_BYTES = 256 * 2**20  # more is no answer of ours: a flight recorder of 64 MiB is the largest

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15  # linux/prctl.h
_LENGTH = struct.Struct("=I")
_PIPE_CHUNK_BYTES = 65536
_RESULT, _SAID = b"r", b"s"  # what a frame from the child is
_ears = -1  # in a child: where ``tell`` says things
_libc = ctypes.CDLL(None, use_errno=True)  # opened here: not between fork and the first request

T = TypeVar("T")


class Caller(Protocol):
    """Something that runs a function on our behalf: a ``KillableChild``, or ``Inline`` where nothing can block."""

    def call(self, function: Callable[..., T], *arguments: object, deadline_seconds: float) -> T:
        """The function's result."""
        ...


class Inline:
    """Runs the call here and now, without a deadline: for recorded trees, which cannot block."""

    def call(self, function: Callable[..., T], *arguments: object, deadline_seconds: float) -> T:
        """The function's result; ``deadline_seconds`` is not enforced."""
        return function(*arguments)


class Replies(Protocol):
    """How results travel back from the child: ``pack`` runs there, ``unpack`` here."""

    def pack(self, succeeded: bool, result: object) -> bytes:
        """A result, or the exception that was raised instead."""
        ...

    def unpack(self, function: Callable[..., T], payload: bytes) -> T:
        """The result; raises the exception."""
        ...


class Pickled:
    """Any object, for a child that is as trusted as we are."""

    def pack(self, succeeded: bool, result: object) -> bytes:  # noqa: D102
        try:
            return pickle.dumps((succeeded, result))
        except Exception as error:
            if succeeded:
                return self.pack(False, error)
            return pickle.dumps((False, RuntimeError(repr(result))))  # an exception may hold anything

    def unpack(self, function: Callable[..., T], payload: bytes) -> T:  # noqa: D102
        succeeded, result = pickle.loads(payload)
        if not succeeded:
            raise result
        return result  # type: ignore[no-any-return]  # pickled by our own child from the function's own result


class Ledger(Protocol):
    """Where late children are counted together with those of other ``KillableChild`` objects."""

    def admit(self) -> None:
        """Raise Unavailable if as many as we can afford are stuck."""
        ...

    def add(self, pid: int) -> None:
        """Count a child that was killed; it counts until it is gone."""
        ...


class KillableChild:
    """One forked helper process, started at the first call and replaced when it is late.

    Not thread-safe, not to be called from a signal handler, and the first call should come before the process starts
    threads: the child is a fork. It dies with the *thread* that forked it (PR_SET_PDEATHSIG), is the first to go when
    memory runs out (oom_score_adj 1000), holds none of our files and does not belong to our terminal.

    Args:
        most_abandoned: how many late children may be stuck in the kernel before calls are refused.
        settle: runs once in a new child, before the first request; if it raises, each request is answered with that.
        replies: how results travel back.
        ledger: counts late children beyond this object; asked before each call.

    Cost, median of 3,000 calls on two busy cores: 35 us a round trip; a fork takes 2 to 7 ms.
    """

    def __init__(
        self,
        most_abandoned: int = MOST_ABANDONED,
        settle: Callable[[], None] | None = None,
        replies: Replies | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self._most_abandoned, self._settle, self._ledger = most_abandoned, settle, ledger
        self._replies_as: Replies = replies or Pickled()
        self._pid = 0
        self._handle: int | None = None  # pidfd: the pid may have been reaped elsewhere and reused
        self._requests = -1
        self._replies = -1
        self._abandoned: list[int] = []

    def call(
        self,
        function: Callable[..., T],
        *arguments: object,
        deadline_seconds: float,
        heard: Callable[[str], None] = lambda text: None,
    ) -> T:
        """Run ``function(*arguments)`` in the child.

        Args:
            function: a module-level function; it travels by name.
            arguments: picklable data.
            deadline_seconds: from now to the complete answer, the start of a new child included.
            heard: takes what the function says meanwhile through ``tell``.

        Raises Unavailable when no answer came in time or the child died; whatever the function raises otherwise.
        """
        ends = time.monotonic() + deadline_seconds
        name = getattr(function, "__qualname__", "call")
        if self._ledger is not None:
            self._ledger.admit()
        if not self._pid:
            self._start()
        try:
            _send(self._requests, pickle.dumps((function, arguments)), ends)
            while (payload := _receive(self._replies, ends))[:1] == _SAID:
                heard(payload[1:].decode("utf-8", "replace"))
        except TimeoutError:
            self.close()
            raise Unavailable(f"{name} did not answer within {deadline_seconds:g} s") from None
        except (EOFError, BrokenPipeError):
            self.close()
            raise Unavailable(f"the reader died during {name}") from None
        except BaseException:  # Ctrl-C between question and answer: the next call must not get this one's answer
            self.close()
            raise
        return self._replies_as.unpack(function, payload[1:])

    def close(self) -> None:
        """Kill the child, without waiting for one that cannot be killed."""
        if not self._pid:
            return
        kill_child(self._pid, self._handle)
        for descriptor in (self._handle, self._requests, self._replies):
            if descriptor is not None:
                os.close(descriptor)
        self._abandoned.append(self._pid)
        if self._ledger is not None:
            self._ledger.add(self._pid)
        self._pid = 0
        self._abandoned = still_there(self._abandoned)

    def end(self, seconds: float) -> None:
        """Close it, and collect it if it ends within so long: a process that becomes another one passes on what it has not collected."""
        self.close()
        until = time.monotonic() + seconds
        while self._abandoned and time.monotonic() < until:
            time.sleep(0.001)
            self._abandoned = still_there(self._abandoned)

    def disown(self) -> None:
        """In a forked process: the child stays its parent's, and our copies of the pipes to it are closed."""
        if self._pid:
            for descriptor in (self._handle, self._requests, self._replies):
                if descriptor is not None:
                    os.close(descriptor)
        self._pid, self._abandoned = 0, []

    def _start(self) -> None:
        self._abandoned = still_there(self._abandoned)
        if len(self._abandoned) >= self._most_abandoned:
            raise Unavailable(
                f"{len(self._abandoned)} readers are stuck in the kernel (state D): pids {self._abandoned}",
                "find the mount or driver that does not answer: cat /proc/PID/stack of those pids as root",
            )
        parent = os.getpid()
        gc.freeze()  # a collector that walks all objects in the child would copy their pages: 9 MiB each
        try:
            self._pid, ((request_out, request_in), (reply_out, reply_in)) = fork_with_pipes(2)
        except OSError as error:
            raise not_started("reader", error) from None
        if self._pid == 0:
            _become_reader(parent, request_out, reply_in, self._settle, self._replies_as)
        os.close(request_out)
        os.close(reply_in)
        self._handle = hold_child(self._pid)
        self._requests, self._replies = request_in, reply_out
        os.set_blocking(request_in, False)
        os.set_blocking(reply_out, False)


def fork_with_pipes(count: int) -> tuple[int, list[tuple[int, int]]]:
    """Fork with so many pipes between the two: (the child's pid, in the child 0; the readable and the writable end of each).

    Raises OSError at a limit of descriptors or processes, or without memory; none of the pipes stays open then.
    """
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            pipes.append(os.pipe())
        return os.fork(), pipes
    except OSError:
        for descriptor in itertools.chain(*pipes):
            os.close(descriptor)
        raise


class NotStarted(Unavailable):
    """No process or descriptor was left for a child."""


def not_started(what: str, error: OSError) -> Unavailable:
    """Why ``fork_with_pipes`` failed, and which limit to raise. ``what``: that which the child would have been."""
    full = error.errno in (errno.EMFILE, errno.ENFILE)
    advice = "raise ulimit -n" if full else "raise ulimit -u or pids.max"
    return NotStarted(f"no {what} can be started: {error.strerror}", advice)


def still_there(children: Collection[int]) -> list[int]:
    """Collect those of our children that have died; those in state D stay on the list."""
    alive = []
    for pid in children:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                alive.append(pid)
        except ChildProcessError:
            pass  # another part of this process has collected it
    return alive


def hold_child(pid: int) -> int | None:
    """A descriptor that means this child and no later process of the same pid; None where the kernel has none."""
    try:
        return os.pidfd_open(pid)
    except OSError:  # Linux before 5.3 (RHEL 8), or a seccomp filter of that age
        return None


def kill_child(pid: int, handle: int | None) -> None:
    """End a child of ours; one that is dead already is no error."""
    try:
        if handle is None:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        pass  # it has become another user and we lack CAP_KILL: it ends with its request pipe


def _send(descriptor: int, payload: bytes, ends: float) -> None:
    rest = memoryview(_LENGTH.pack(len(payload)) + payload)
    while rest:
        _await(descriptor, select.POLLOUT, ends)
        rest = rest[os.write(descriptor, rest[:_PIPE_CHUNK_BYTES]) :]


def _receive(descriptor: int, ends: float) -> bytes:
    (length,) = _LENGTH.unpack(_take(descriptor, _LENGTH.size, ends))
    if length > MOST_REPLY_BYTES:
        raise EOFError
    return _take(descriptor, length, ends)


def _take(descriptor: int, count: int, ends: float) -> bytes:
    taken = bytearray()
    while len(taken) < count:
        _await(descriptor, select.POLLIN, ends)
        chunk = os.read(descriptor, count - len(taken))
        if not chunk:
            raise EOFError
        taken += chunk
    return bytes(taken)


def _await(descriptor: int, event: int, ends: float) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, ends - time.monotonic()) * 1000):
        raise TimeoutError


def _become_reader(
    parent: int, requests: int, replies: int, settle: Callable[[], None] | None, replies_as: Replies
) -> NoReturn:
    """The child: leave everything of the parent's behind, settle, then answer until the request pipe closes."""
    try:
        global _ears
        become_helper(parent, (requests, replies), PROCESS_NAME.encode())
        _ears = replies
        refused: Exception | None = None
        try:
            if settle is not None:
                settle()
                die_with(parent)  # the kernel forgets it when a process changes its user
        except Exception as error:
            refused = error
        while True:
            _answer(requests, replies, refused, replies_as)
    except BaseException:  # nothing may escape into the parent's code above the fork
        os._exit(1)


def die_with(parent: int) -> None:
    """Have the kernel end this process with the thread that forked it; end now if that has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before prctl took effect
        os._exit(0)


def become_helper(parent: int, kept: Collection[int], name: bytes) -> None:
    """Right after a fork, in the child: die with the parent, keep none of its files, signals or terminal.

    Args:
        parent: pid of the process that forked; if it is gone already, this ends the child.
        kept: descriptors that stay open. Standard input and output become /dev/null.
        name: at most 15 bytes, as ps shows it.
    """
    die_with(parent)
    start_session()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _libc.prctl(_PR_SET_NAME, name, 0, 0, 0)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    for open_file in os.listdir("/proc/self/fd"):
        if int(open_file) > 2 and int(open_file) not in kept:
            try:
                os.close(int(open_file))
            except OSError:
                pass  # the folder that was being listed
    try:
        with open("/proc/self/oom_score_adj", "w") as adjustment:
            adjustment.write("1000")
    except OSError:
        pass  # a hardened container may mount it read-only


def _answer(requests: int, replies: int, refused: Exception | None, replies_as: Replies) -> None:
    function, arguments = pickle.loads(_read_frame(requests))
    try:
        if refused is not None:
            raise refused
        payload = replies_as.pack(True, function(*arguments))
    except Exception as error:
        payload = replies_as.pack(False, error)
    _reply(replies, _RESULT + payload)


def in_child() -> bool:
    """True in a child that answers under a deadline."""
    return _ears >= 0


def tell(text: str) -> None:
    """In the child: send a line to the caller that waits for the result."""
    if _ears >= 0:
        _reply(_ears, _SAID + text.encode("utf-8", "replace"))


def _reply(replies: int, payload: bytes) -> None:
    rest = memoryview(_LENGTH.pack(len(payload)) + payload)
    while rest:
        rest = rest[os.write(replies, rest) :]


def _read_frame(descriptor: int) -> bytes:
    (length,) = _LENGTH.unpack(_read_exactly(descriptor, _LENGTH.size))
    return _read_exactly(descriptor, length)


def _read_exactly(descriptor: int, count: int) -> bytes:
    taken = bytearray()
    while len(taken) < count:
        chunk = os.read(descriptor, count - len(taken))
        if not chunk:
            os._exit(0)  # the parent closed its end
        taken += chunk
    return bytes(taken)
