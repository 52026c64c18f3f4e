"""The GPUs of this machine, as NVML tells them: the watcher's end of the sampler process.

``look`` never waits: it takes what the sampler has sent and sees for how long the driver has not answered it. A sampler
that does not come back is left behind (one in state D cannot be killed) and another one is tried, a few times.
"""

import os
import select
import time
from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from perfwatch_probes.deadline import fork_with_pipes, hold_child, kill_child, not_started, still_there
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.gpu_files import local_pid
from perfwatch_probes.nvml_driver import DriverNvml
from perfwatch_probes.nvml_gpm import NO_MORE
from perfwatch_probes.nvml_layer import Nvml
from perfwatch_probes.nvml_page import Asked, Page
from perfwatch_probes.nvml_process import CALM, DECODER, FULL, LENGTH, become_sampler
from perfwatch_probes.nvml_sampler import NO_CARDS
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Gpu, GpuSample, GpuSilence, Reading
from perfwatch_probes.stat import parse_stat

DEADLINE_SECONDS = 2.0  # a call takes 1 to 40 us, with a busy machine a few ms
INIT_DEADLINE_SECONDS = 30.0  # without persistence mode the driver wakes every card first
SILENCE_SECONDS = 1.0  # between two readings of one silence
RESTART_SECONDS = 5.0
GIVE_UP_SECONDS = 15.0  # in one call: another process is tried
MOST_ABANDONED = 2  # a third would be stuck for the same reason
REAP_TRIES = 50  # of a millisecond each: a process that is killed is about to end
ABSENT = "there is no NVIDIA driver here"
NONE_HERE = frozenset({ABSENT, NO_CARDS})  # reasons that are no trouble: this machine has no GPU


class GpuProbe:
    """Readings of all GPUs.

    Args:
        open_nvml: makes the layer, in the sampler's process; tests give a stand-in.
        filesystem: where /proc and /dev are.
        clock: CLOCK_MONOTONIC, seconds; the sampler uses it too.
        others: further GPM metrics, by name (see ``nvml_metrics``).
    """

    NAME = "gpu"
    NEEDS = "an NVIDIA driver and its libnvidia-ml.so.1; GPM needs Hopper or newer"
    COST = (
        "a process of its own: at most 0.5 % of a core while the job is calm, 5 % while it is suspect, unless one look in four"
        " seconds takes more; no CUDA context"
    )

    def __init__(
        self,
        open_nvml: Callable[[], Nvml] = DriverNvml,
        filesystem: Filesystem | None = None,
        clock: Callable[[], float] = time.monotonic,
        others: Mapping[str, int] = NO_MORE,
    ) -> None:
        self._others = others
        self._open_nvml, self._filesystem, self._clock = open_nvml, filesystem or Filesystem(), clock
        self._page = Page(clock)
        self._pid = 0
        self._handle: int | None = None  # the pid may have been reaped elsewhere and reused
        self._commands = self._frames = -1
        self._buffer = bytearray()
        self._full = False
        self._cards: dict[str, Gpu] = {}  # as any sampler has described them
        self._refused: Unavailable | None = None  # the driver has said that there will be nothing
        self._abandoned: list[int] = []
        self._silent_since: float | None = None
        self._silence_due = self._start_due = 0.0
        self._trouble: Unavailable | None = None
        self._cpu_before = self._cpu_seconds = 0.0
        self.dropped = 0

    @property
    def present(self) -> bool:
        """True if this machine has an NVIDIA driver, by its files."""
        places = (self._filesystem.proc / "driver/nvidia/version", self._filesystem.dev / "nvidiactl",
                  self._filesystem.dev / "dxg")  # fmt: skip
        return any(place.exists() for place in places)

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the samplers so far."""
        return self._cpu_before + self._cpu_seconds

    @property
    def sampler_pid(self) -> int:
        """Of the process that asks now; 0 when there is none."""
        return self._pid

    @property
    def trouble(self) -> Unavailable | None:
        """Why nothing comes now, if nothing does."""
        return self._trouble or self._refused

    def look(self, full: bool = False) -> list[tuple[float, Reading]]:
        """What has come since the last look: (CLOCK_MONOTONIC, reading). ``full``: all ten looks a second.

        The first call starts the sampler. Raises Unavailable where there is no driver.
        """
        if self._abandoned:
            self._abandoned = still_there(self._abandoned)
        if self._refused is not None or (not self._pid and self._clock() < self._start_due):
            return []
        if not self._pid:
            self._start()
            self._full = False
        if full != self._full:
            self._tell(FULL if full else CALM)
            self._full = full
        found = self._drain()
        # Samples are sent when a whole round has come back; a new sampler's description of the cards is not that.
        return [*found, *self._silence(answered=any(isinstance(one, GpuSample) for _, one in found))]

    def wait(self, seconds: float) -> None:
        """Until something has come, or for so long."""
        if self._pid:
            poll = select.poll()
            poll.register(self._frames, select.POLLIN)
            poll.poll(seconds * 1000)
        else:
            time.sleep(seconds)

    def close(self) -> None:
        """End the sampler, hardly waiting: one that cannot be killed stays behind."""
        self._leave()
        for _ in range(REAP_TRIES):
            self._abandoned = still_there(self._abandoned)
            if not self._abandoned:
                return
            time.sleep(0.001)

    def _start(self) -> None:
        if not self.present:
            raise Unavailable(ABSENT)
        self._page.clear()
        self._buffer.clear()
        parent = os.getpid()
        try:
            self._pid, ((commands_out, self._commands), (self._frames, frames_in)) = fork_with_pipes(2)
        except OSError as error:
            raise not_started("GPU sampler", error) from None
        if self._pid == 0:
            to_local = partial(local_pid, self._filesystem)
            become_sampler(
                parent, commands_out, frames_in, self._page, self._open_nvml, to_local, self._clock, self._others
            )
        self._handle = hold_child(self._pid)
        os.close(commands_out)
        os.close(frames_in)
        os.set_blocking(self._frames, False)
        os.set_blocking(self._commands, False)

    def _tell(self, command: bytes) -> None:
        try:
            os.write(self._commands, command)
        except (BlockingIOError, BrokenPipeError):
            pass  # it is stuck or has ended: both are noticed elsewhere

    def _drain(self) -> list[tuple[float, Reading]]:
        found: list[tuple[float, Reading]] = []
        ended = False
        while not ended:
            try:
                chunk = os.read(self._frames, 2**18)
            except BlockingIOError:
                break
            ended = not chunk
            self._buffer += chunk
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if len(self._buffer) < LENGTH.size + length:
                break
            frame = DECODER.decode(self._buffer[LENGTH.size : LENGTH.size + length])
            del self._buffer[: LENGTH.size + length]
            found += [(at, one) for at, reading in frame.readings for one in self._named(reading)]
            self._cpu_seconds, self.dropped = frame.cpu_seconds, frame.dropped
            if frame.reason:
                self._refused = Unavailable(frame.reason, frame.advice)
        if ended or self._refused is not None:
            self._ended()
        return found

    def _named(self, reading: Reading) -> list[Reading]:
        """A new sampler cannot say who a card is that is lost by then; the one before it could."""
        if not isinstance(reading, Gpu):
            return [reading]
        if reading.stand_in:
            known = [one for one in self._cards.values() if one.index == reading.index]
            return [replace(one, lost=True) for one in known] or [reading]
        self._cards[reading.uuid] = reading
        return [reading]

    def _ended(self) -> None:
        """The sampler is gone (memory, a crash inside the driver's library): another one is started later."""
        self._leave()
        self._start_due = self._clock() + RESTART_SECONDS
        if self._refused is None:
            self._trouble = self._trouble or Unavailable("the GPU sampler died", "dmesg | tail; perfwatch doctor")

    def _silence(self, answered: bool) -> list[tuple[float, Reading]]:
        now = self._clock()
        asked = self._page.asked() if self._pid else None
        late = asked is not None and now - asked.since > _deadline(asked)
        if asked is None or not late:
            if answered:
                self._silent_since = self._trouble = None
            return []
        if self._silent_since is None or asked.since < self._silent_since:
            self._silent_since = asked.since
        if now < self._silence_due:
            return []
        self._silence_due = now + SILENCE_SECONDS
        whom = f" of {asked.uuid}" if asked.uuid else ""
        self._trouble = Unavailable(
            f"the NVIDIA driver does not answer: {asked.call}{whom}",
            "dmesg | grep -iE 'xid|nvrm'; nvidia-smi in another terminal hangs too, if the driver does",
        )
        silence = GpuSilence(
            call=asked.call,
            uuid=asked.uuid or None,
            waited_seconds=round(now - self._silent_since, 3),
            state=self._state(),
            abandoned=len(self._abandoned),
        )
        if now - asked.since > GIVE_UP_SECONDS and len(self._abandoned) < MOST_ABANDONED:
            self._leave()
        return [(now, silence)]

    def _state(self) -> str | None:
        try:
            return parse_stat(self._filesystem.read_text(self._filesystem.proc / str(self._pid) / "stat")).state
        except (Unavailable, ValueError):
            return None

    def _leave(self) -> None:
        if not self._pid:
            return
        kill_child(self._pid, self._handle)
        for descriptor in (self._handle, self._commands, self._frames):
            if descriptor is not None:
                os.close(descriptor)
        self._abandoned.append(self._pid)
        self._pid = 0
        self._cpu_before, self._cpu_seconds = self.cpu_seconds, 0.0
        self._abandoned = still_there(self._abandoned)


def _deadline(asked: Asked) -> float:
    return INIT_DEADLINE_SECONDS if asked.call == "init" else DEADLINE_SECONDS
