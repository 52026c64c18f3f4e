"""The process in which NVML is asked: it samples at its own pace and writes frames into a pipe.

NVML can block for ever in the kernel, and a call into it cannot be interrupted. So it is made in a process that can be
thrown away, holds nothing of ours, makes no CUDA context, dies with the watcher and is the first to go when memory runs out.
"""

import contextlib
import fcntl
import gc
import os
import select
import struct
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

import msgspec

from perfwatch_probes.deadline import become_helper
from perfwatch_probes.nvml_layer import Nvml, ToLocal
from perfwatch_probes.nvml_page import Page
from perfwatch_probes.nvml_sampler import Sampler
from perfwatch_probes.nvml_thinning import Timed
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import ANY_READING

PERIOD_SECONDS = 0.1  # GPM and power are refreshed ten times a second (measured on H200)
LONGEST_PAUSE_SECONDS = (
    5.0  # a card that was not read for longer is not known to do anything, to who judges and who watches
)
# Share of one core that the sampler may use while the job is calm, and while it is suspect. Drivers differ a hundredfold in
# what a call costs, and machines have one card or sixteen: so each look is paid for by the pauses after it.
CALM_BUDGET, FULL_BUDGET = 0.005, 0.05
SEND_SECONDS = 0.2
MOST_PENDING_BYTES = 2**21  # a watcher that does not read for a minute loses the oldest readings
PIPE_BYTES = 2**20
FULL, CALM, LENGTH = b"f", b"c", struct.Struct("=I")


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """What the sampler sends. ``reason`` and ``advice``: why there will be no readings; then it is the last frame."""

    readings: list[tuple[float, ANY_READING]] = []
    cpu_seconds: float = 0.0
    dropped: int = 0
    reason: str = ""
    advice: str = ""


ENCODER, DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Frame)


def become_sampler(
    parent: int,
    commands: int,
    frames: int,
    page: Page,
    open_nvml: Callable[[], Nvml],
    to_local: ToLocal,
    clock: Callable[[], float],
    others: Mapping[str, int],
) -> NoReturn:
    """The child, right after the fork: sample until the watcher closes the pipe of commands."""
    try:
        become_helper(parent, (commands, frames), b"perfwatch-gpu")
        gc.freeze()  # what the watcher had allocated stays shared with it
        os.set_blocking(frames, False)
        with contextlib.suppress(OSError):  # the user's pipe quota is used up: 64 KiB work too
            fcntl.fcntl(frames, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        outlet = _Outlet(frames)
        sampler = Sampler(open_nvml(), clock, page, to_local, others=others)
        try:
            outlet.send(sampler.start())
            _serve(sampler, commands, outlet, clock)
        except Unavailable as unavailable:
            outlet.refuse(unavailable)
        except Exception as error:  # of ours: another sampler would meet it too
            outlet.refuse(Unavailable(f"internal error of the GPU sampler: {type(error).__name__}: {error}"))
    finally:  # nothing may escape into the parent's code above the fork
        os._exit(1)


class Budget:
    """Says how long to wait after each look; what one pause does not pay for is left to the next ones.

    The first look is free: it asks for everything, and the next one is what tells how busy the card is. Besides that the
    budget is exceeded only where the looks take more on the whole than a pause of the longest kind pays for.
    """

    def __init__(self) -> None:
        self._owed = 0.0
        self._first = True

    def pause(self, spent_seconds: float, full: bool) -> float:
        """Seconds to wait after a look that took so much CPU time."""
        share = FULL_BUDGET if full else CALM_BUDGET
        self._owed += 0.0 if self._first else spent_seconds
        self._first = False
        wait = min(LONGEST_PAUSE_SECONDS, max(PERIOD_SECONDS, self._owed / share))
        self._owed = max(0.0, self._owed - wait * share)
        return wait

    def forgive(self) -> None:
        """Another budget begins."""
        self._owed, self._first = 0.0, True


def _serve(sampler: Sampler, commands: int, outlet: "_Outlet", clock: Callable[[], float]) -> NoReturn:
    poll = select.poll()
    poll.register(commands, select.POLLIN)
    due, send_due, spent = clock(), 0.0, time.process_time()
    budget = Budget()
    gathered: list[Timed] = []
    while True:
        if poll.poll(max(0.0, due - clock()) * 1000):
            asked = os.read(commands, 64)
            if not asked:
                os._exit(0)
            if asked.endswith(FULL) and not sampler.thinning.full:
                gathered += sampler.attend()
                budget.forgive()
                due = clock()
            elif asked.endswith(CALM):
                sampler.rest()
            continue
        gathered += sampler.round()
        now = clock()
        if now >= send_due and gathered:
            send_due = now + SEND_SECONDS
            outlet.send(gathered)
            gathered = []
        spent_before, spent = spent, time.process_time()
        due = max(due, now - PERIOD_SECONDS / 2) + budget.pause(spent - spent_before, sampler.thinning.full)


class _Outlet:
    """Writes frames without ever waiting for the reader; what does not fit is given up, oldest first."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending: list[bytes] = []
        self._size = self._dropped = 0

    def send(self, readings: list[Timed]) -> None:
        self._put(Frame(readings, time.process_time(), self._dropped))  # type: ignore[arg-type]

    def refuse(self, why: Unavailable) -> None:
        self._put(Frame(cpu_seconds=time.process_time(), reason=why.reason, advice=why.advice))

    def _put(self, frame: Frame) -> None:
        packed = ENCODER.encode(frame)
        self._pending.append(LENGTH.pack(len(packed)) + packed)
        self._size += len(self._pending[-1])
        while self._pending:
            try:
                sent = os.write(self._descriptor, self._pending[0])
            except BlockingIOError:
                break
            self._size -= sent
            self._pending[0] = self._pending[0][sent:]
            if not self._pending[0]:
                del self._pending[0]
        while self._size > MOST_PENDING_BYTES and len(self._pending) > 2:
            self._size -= len(self._pending.pop(1))  # the first may be half sent
            self._dropped += 1
