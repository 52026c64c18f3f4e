"""One window of torch.profiler in every rank: who is there, when it begins, and that each has taken and ended it."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from perfwatch.captures.capture import Request, Scene, Subject, Window
from perfwatch.captures.exits import Exits
from perfwatch.captures.kineto.protocol import SWITCHES, Ask, configuration
from perfwatch.captures.kineto_link import FIRST_POLL_SECONDS, Link, connect
from perfwatch.captures.pace import Pace, Pacer
from perfwatch.captures.torch_files import TraceFolder
from perfwatch.errors import CaptureFailed, CaptureRefused
from perfwatch.text import duration

STEPS = 5
SECONDS = 2.0
MOST_SECONDS = 30.0  # of a window
SLOWEST_STEP_SECONDS = 2.0  # beyond it the default window is one of time
LEAD_SECONDS = 1.5  # between the last rank's knowing and the window: Kineto wants its time to prepare
# A client waits 90 ms for its answer; one that comes later is read at its next poll.
POLLS = 2.0
STUCK_SECONDS = 5.0  # without a step (and ten usual steps): the window of steps is given up
REST_SECONDS = 4.0  # what a profiler may take to come to rest after its last window
BEGUN_SECONDS = 5.0  # after the end of the window: a rank that has no file by then never began
WRITE_SECONDS, HUNG_WRITE_SECONDS = 90.0, 20.0  # for a trace of the largest kind, and for one in which nothing happens
LOOK_SECONDS = 0.25


@contextlib.contextmanager
def torch_window(
    request: Request, scene: Scene, window: Window, subjects: tuple[Subject, ...]
) -> Iterator[tuple["TorchWindow", TraceFolder]]:
    """The window of one request and the folder where the ranks write; both ends are let go of, whatever happens.

    Raises CaptureRefused or CaptureFailed when there is no way to the ranks, or no room.
    """
    link = connect(scene, subjects)
    try:
        folder = TraceFolder(scene, subjects)
        try:
            yield TorchWindow(request, scene, window, link, folder), folder
        finally:
            folder.close()
    except OSError as error:
        raise CaptureFailed(f"{error.filename or 'the endpoint'}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):  # it went before us
            link.close()


class TorchWindow:
    """The window of one request.

    Args:
        request: what is asked for.
        scene: the job.
        window: what the capture works with.
        link: the way to the profilers.
        folder: where they write.

    Attributes:
        notes: what was different from what was asked for.
        usual_seconds: of a step before the window; None where steps are not counted.
        steps: of the window, as every rank was asked for them; None for a window of time.
    """

    def __init__(self, request: Request, scene: Scene, window: Window, link: Link, folder: TraceFolder) -> None:
        self._request, self._scene, self._window, self._link, self._folder = request, scene, window, link, folder
        self.notes: list[str] = []
        self.usual_seconds: float | None = None
        self.steps: int | None = None

    def record(self, subjects: tuple[Subject, ...]) -> list[tuple[Subject, Path]]:
        """Have these ranks record the same window; the trace of each that wrote one.

        Raises CaptureFailed and CaptureRefused.
        """
        subjects = self.reached(subjects)
        pacer = Pacer(self._scene.place, subjects)
        pace = pacer.look()
        self.usual_seconds = max(pace.seconds or 0.0, pace.mean_seconds or 0.0) if pace.stepping else None
        if self._request.options.get("stacks") and pace.counts and not pace.stepping:
            raise CaptureRefused(
                "the job has made steps and makes none now: it may hang, and a trace with Python stacks would hang with it",
                "leave --stacks out; perfwatch attach names the stacks",
            )
        self.steps = steps = self._steps(subjects, pace)
        seconds = self._request.seconds if self._request.seconds is not None else SECONDS
        length = 2 * steps * (pace.seconds or 0.0) if steps is not None else seconds
        exits = Exits(self._scene.place, subjects, time.monotonic() + self._lead + length)
        try:
            if steps is not None:
                self._steps_window(subjects, pace, steps, pacer)
            else:
                self._time_window(subjects, seconds)
            return self._written(subjects, exits)
        finally:
            exits.close()

    @property
    def _lead(self) -> float:
        """Seconds from the offer to the window: every rank must know of it by then."""
        return POLLS * self._link.poll_seconds + LEAD_SECONDS

    def reached(self, subjects: tuple[Subject, ...]) -> tuple[Subject, ...]:
        """Those whose profiler asks for work. Raises CaptureFailed when none does, CaptureRefused when one is busy."""
        self._window.tell("waiting for the ranks' profilers to ask")
        ends = self._window.clock() + FIRST_POLL_SECONDS
        while True:
            asking = self._link.asking()
            fresh = 3 * self._link.poll_seconds
            there = tuple(one for one in subjects if one.pid in asking and asking[one.pid].ago_seconds < fresh)
            if len(there) == len(subjects) or self._window.clock() > ends:
                break
            self._wait(LOOK_SECONDS)
        if not there:
            raise CaptureFailed(
                f"no rank's profiler has asked for work for {duration(FIRST_POLL_SECONDS)}: torch is not imported yet, the job "
                "profiled itself when it began to use CUDA, or torch was "
                "built without Kineto",
                "try again once it trains: python -c 'import torch; print(torch.profiler.kineto_available())'",
            )
        missing = [one for one in subjects if one not in there]
        if missing:
            self.notes.append(f"{names(missing)}: its profiler did not ask, so there is no trace of it")
        rests = self._window.clock() + REST_SECONDS
        while busy := [one for one in there if not self._link.asking()[one.pid].idle]:
            if self._window.clock() > rests:
                raise CaptureRefused(
                    f"a profiler is running in {names(busy)} already, and the job's own comes first",
                    "try again when it is done",
                )
            self._wait(LOOK_SECONDS)  # the end of a window just before this one is told at the next poll
        return there

    def _steps(self, subjects: tuple[Subject, ...], pace: Pace) -> int | None:
        """How many steps to record; None for a window of time."""
        request = self._request
        if request.seconds is not None:
            return None
        counted = len(pace.counts) == len(subjects) and pace.stepping and pace.seconds is not None
        if request.steps is not None and not counted:
            self.notes.append(f"the job's steps are not counted, or it makes none: recorded {SECONDS:g} s instead")
            return None
        wanted = request.steps or STEPS
        if not counted or pace.seconds is None:
            return None
        if pace.seconds * wanted > MOST_SECONDS:
            self.notes.append(
                f"{wanted} steps take longer than {duration(MOST_SECONDS)} here: recorded {SECONDS:g} s instead"
            )
            return None
        if request.steps is None and pace.seconds > SLOWEST_STEP_SECONDS:
            return None
        if pace.changed:
            # By which step every rank will know of the window cannot be told: steps of before would end too late or never.
            if request.steps is not None:
                self.notes.append(f"steps have just changed their pace: recorded {SECONDS:g} s instead")
            return None
        return wanted

    def _steps_window(self, subjects: tuple[Subject, ...], pace: Pace, steps: int, pacer: Pacer) -> None:
        """Let every rank record the same steps."""
        assert pace.seconds is not None
        lead = math.ceil(self._lead / pace.seconds)
        # Ranks in step are a step apart when they are read; others (a pipeline's) have counts of their own.
        common = max(pace.counts.values()) + lead
        alike = max(pace.counts.values()) - min(pace.counts.values()) <= 3
        starts = {one.pid: common if alike else pace.counts[one.pid] + lead for one in subjects}
        self.offer(
            subjects, {pid: Ask(self._folder.file, start_step=start, steps=steps) for pid, start in starts.items()}
        )
        self._window.tell(f"recording {steps} steps")
        first = subjects[0].pid
        ends = self._window.clock() + 3 * (lead + steps) * pace.seconds + WRITE_SECONDS / 3
        began, newest, moved = None, 0, self._window.clock()
        while self._window.clock() < min(ends, moved + STUCK_SECONDS + 10 * pace.seconds):
            count = pacer.look().counts.get(first, 0)
            if count > newest:
                newest, moved = count, self._window.clock()
            if began is None and count >= starts[first]:
                self._window.opened()
                began = self._window.clock()
            if began is not None and count >= starts[first] + steps:
                self._window.closed()
                return
            self._wait(min(LOOK_SECONDS, max(0.005, pace.seconds / 4)))
        raise CaptureFailed(
            f"the job stopped making steps before {steps} were recorded",
            "perfwatch attach says why; perfwatch capture torch --seconds 2 records whatever it does",
        )

    def _time_window(self, subjects: tuple[Subject, ...], seconds: float) -> None:
        """Let every rank record the same stretch of time."""
        starts = time.time() + self._lead
        opens = self._window.clock() + self._lead
        ask = Ask(self._folder.file, start_unix_ms=int(starts * 1000), duration_ms=int(seconds * 1000))
        self.offer(subjects, {one.pid: ask for one in subjects})
        self._wait(opens - self._window.clock())
        self._window.opened()
        self._window.tell(f"recording {seconds:g} s")
        self._wait(seconds)
        self._window.closed()

    def offer(self, subjects: tuple[Subject, ...], asks: Mapping[int, Ask]) -> None:
        """Hand the window to every rank, or say which did not take it."""
        before = self._link.asking()
        switches = tuple(name for name in SWITCHES if self._request.options.get(name))
        texts = {pid: configuration(replace(ask, switches=switches)) for pid, ask in asks.items()}
        patience = self._link.poll_seconds + 1.0
        self._link.offer(texts, patience)
        ends = self._window.clock() + patience
        while self._window.clock() < ends:
            now = self._link.asking()
            late = [one for one in subjects if now[one.pid].given == before[one.pid].given]
            if not late:
                return
            self._wait(LOOK_SECONDS / 5)
        if len(late) == len(subjects):
            raise CaptureFailed(
                f"no rank's profiler has taken the request within {duration(patience)}",
                "the machine may be busy: try again",
            )
        self.notes.append(f"{names(late)} did not take the request in time")

    def _written(self, subjects: tuple[Subject, ...], exits: Exits) -> list[tuple[Subject, Path]]:
        """Wait for the traces: each is renamed to its name when it is complete."""
        self._window.tell("waiting for the traces to be written")
        began = self._window.clock()
        patience = HUNG_WRITE_SECONDS if self._scene.may_be_hung else WRITE_SECONDS
        found: dict[int, Path] = {}
        begun: list[Subject] = []
        while self._window.clock() < began + patience:
            found |= {one.pid: path for one in subjects if (path := self._folder.trace_of(one)) is not None}
            for pid in found:
                exits.release(pid)
            waiting = [one for one in subjects if one.pid not in found]
            begun = [one for one in waiting if self._folder.begun(one)]
            if not waiting or (self._window.clock() > began + BEGUN_SECONDS and not begun):
                break
            self._wait(LOOK_SECONDS)
        if not found:
            raise self._without_trace(begun, patience)
        missing = [one for one in subjects if one.pid not in found]
        if missing:
            self.notes.append(f"{names(missing)} wrote no trace")
        return [(one, found[one.pid]) for one in subjects if one.pid in found]

    def _without_trace(self, begun: list[Subject], patience: float) -> CaptureFailed:
        if not begun:
            return CaptureFailed(
                "no rank has written a trace: the job profiles itself and that comes first, or it cannot write to "
                f"{self._folder.path.parent}",
                "a job that profiles itself has its own trace; try again when it is done",
            )
        why = (
            "the job hangs, and its profiler with it: it waits for the card before it writes"
            if self._scene.may_be_hung
            else "its card has work that does not end, or the trace is very large"
        )
        return CaptureFailed(
            f"{names(begun)} began a trace and has not ended it within {duration(patience)}: {why}",
            "perfwatch attach says whether the job hangs; perfwatch capture stacks works all the same",
        )

    def _wait(self, seconds: float) -> None:
        if seconds > 0:
            self._link.wait(seconds)
            self._window.wait(0.0)


def names(subjects: Sequence[Subject]) -> str:
    """Ranks in words."""
    return ", ".join(f"rank {one.rank}" if one.rank is not None else f"pid {one.pid}" for one in subjects)
