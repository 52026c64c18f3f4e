"""One question whose answer takes its time, asked in a process of its own while the watch goes on.

A ``KillableChild`` answers while its caller waits; an ``Errand`` is sent off and looked at later. NCCL's RAS service may
take seconds to hear from its peers, a rank a second to write its flight recorder. The process is a fork: it dies with us,
holds none of our files and is thrown away at its deadline.
"""

import gc
import os
import resource
import select
import struct
import time
from collections.abc import Callable, Iterable
from typing import NoReturn

import msgspec

from perfwatch_probes.deadline import become_helper, fork_with_pipes, hold_child, kill_child, not_started
from perfwatch_probes.filesystem import Absent
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import ANY_READING, Reading

MOST_ANSWER_BYTES = 16 * 2**20
DYING_MILLISECONDS = 50  # a killed process is gone within one, unless it is stuck in the kernel
GATHERED_MILLISECONDS = 500  # on a crowded machine a killed process waits for a CPU to end; the watch goes on meanwhile
_CHUNK_BYTES = 65536
_LENGTH = struct.Struct("=Q")


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """What comes back: readings, or why there are none."""

    readings: list[ANY_READING] = []
    reason: str = ""
    advice: str = ""
    absent: bool = False


# Killed, and slow to go: the memory of a large process takes its time. Reaped by the next errand.
_late: set[int] = set()
_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Answer)


class Errand:
    """One question under way.

    Args:
        ask: runs in the new process; gives readings or raises Unavailable.
        deadline_seconds: from now; a later answer is not waited for.
        memory_bytes: how much more memory than now the process may map; None for no limit.
        clock: monotonic seconds.

    Raises Unavailable when no process can be started. Cost: a fork, 2 to 7 ms.
    """

    def __init__(
        self,
        ask: Callable[[], Iterable[Reading]],
        deadline_seconds: float,
        memory_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cpu_seconds = 0.0
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self.began = clock()
        self._answer = bytearray()
        _late.difference_update([pid for pid in _late if _reaped(pid) is not None])
        parent = os.getpid()
        try:
            self._pid, ((readable, writable),) = fork_with_pipes(1)
        except OSError as error:
            raise not_started("process", error) from None
        if self._pid == 0:
            _run(parent, writable, ask, memory_bytes)
        os.close(writable)
        os.set_blocking(readable, False)
        self._handle = hold_child(self._pid)
        self._readable = readable

    def poll(self) -> list[Reading] | None:
        """The answer, or None while it is not there yet. Raises Unavailable (Absent) when there will be none."""
        if self._readable < 0:
            raise Unavailable("the errand is over")
        while True:
            try:
                chunk = os.read(self._readable, _CHUNK_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                self.close()
                return self._decoded()
            self._answer += chunk
            if len(self._answer) > MOST_ANSWER_BYTES:
                self.close()
                raise Unavailable(f"the answer is larger than {MOST_ANSWER_BYTES >> 20} MiB")
        if self._clock() - self.began > self._deadline_seconds:
            self.close()
            raise Unavailable(f"no answer within {self._deadline_seconds:g} s")
        return None

    def close(self) -> None:
        """End the process; one that cannot be killed (state D) is not waited for."""
        if self._readable < 0:
            return
        os.close(self._readable)
        self._readable = -1
        kill_child(self._pid, self._handle)
        if self._handle is not None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            poll.poll(DYING_MILLISECONDS)
            os.close(self._handle)
        used = _reaped(self._pid)
        if used is None:
            _late.add(self._pid)
        self.cpu_seconds = used or 0.0

    def _complete(self) -> bool:
        return len(self._answer) >= _LENGTH.size

    def _decoded(self) -> list[Reading]:
        if not self._complete() or _LENGTH.unpack_from(self._answer)[0] != len(self._answer) - _LENGTH.size:
            raise Unavailable("the process that asked has died")
        answer = _DECODER.decode(memoryview(self._answer)[_LENGTH.size :])
        if answer.reason:
            raise (Absent if answer.absent else Unavailable)(answer.reason, answer.advice)
        return list(answer.readings)


def _run(parent: int, writable: int, ask: Callable[[], Iterable[Reading]], memory_bytes: int | None) -> NoReturn:
    """The child: ask, write the answer, end. Nothing may escape into the parent's code above the fork."""
    try:
        become_helper(parent, (writable,), b"perfwatch-ask")
        gc.freeze()  # what the watcher had allocated stays shared with it
        if memory_bytes is not None:
            limit = _mapped_bytes() + memory_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        payload = _answered(ask)
        rest = memoryview(_LENGTH.pack(len(payload)) + payload)
        while rest:
            rest = rest[os.write(writable, rest[:_CHUNK_BYTES]) :]
        _gather()
    finally:
        os._exit(0)


def _gather() -> None:
    """Collect what the question has started and thrown away, so that its CPU time counts; one that does not die is left behind."""
    ends = time.monotonic() + GATHERED_MILLISECONDS / 1000
    try:
        while os.waitpid(-1, os.WNOHANG)[0] or time.monotonic() < ends:
            time.sleep(0.001)
    except ChildProcessError:
        pass  # there is none left


def _answered(ask: Callable[[], Iterable[Reading]]) -> bytes:
    try:
        return _ENCODER.encode(Answer(list(ask())))  # type: ignore[arg-type]
    except Unavailable as unavailable:
        absent = isinstance(unavailable, Absent)
        return _ENCODER.encode(Answer(reason=unavailable.reason, advice=unavailable.advice, absent=absent))
    except MemoryError:
        return _ENCODER.encode(Answer(reason="the answer does not fit into the memory that it is allowed"))
    except Exception as error:  # a state of the world that was not foreseen, or a bug of ours: both must be told
        return _ENCODER.encode(Answer(reason=ascii(f"{type(error).__name__}: {error}"[:400])[1:-1]))


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[0]) * resource.getpagesize()


def _reaped(pid: int) -> float | None:
    """CPU seconds of a child that has ended; 0 where it was reaped elsewhere, None while it is there."""
    try:
        ended, _, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:
        return 0.0
    return usage.ru_utime + usage.ru_stime if ended else None
