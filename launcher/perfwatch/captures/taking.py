"""The one way in which a capture is made, whatever its kind: checks, the window, the cap, the look afterwards.

``take`` runs in a helper process (``perfwatch.captures.helper``) and never raises: what went wrong is in the outcome.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfwatch.captures.capture import Capture, Collected, File, Outcome, Request, Scene, Subject
from perfwatch.captures.guard import alive, held, preflight
from perfwatch.captures.pace import Pace, Pacer, as_fast, cost
from perfwatch.errors import CaptureFailed, PerfwatchError
from perfwatch.processes.programs import run_program
from perfwatch.text import duration
from perfwatch_probes.external import Finished

TURN_SECONDS = 0.2
RECOVER_SECONDS = 5.0  # what the steps may take to come back to speed before that is worth a word
SLOWER = 1.5  # of the pace before: a job that is a little slower just then is not harmed
FRESH_STEPS = 5  # after the window, before its pace is judged
STOP_SECONDS = 120.0  # what a profiler may take to end its window and write; a trace of 100 MB takes 10 s

Tell = Callable[[str], None]


def take(
    capture: Capture,
    request: Request,
    scene: Scene,
    folder: Path,
    home: Path,
    tell: Tell = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Make one capture.

    Args:
        capture: the kind.
        request: what is asked for.
        scene: the job.
        folder: where its files go; made here, removed again when nothing came.
        home: where captures lock each other out, in memory.
        tell: told one line now and then.
        clock: monotonic seconds.
    """
    began = clock()
    try:
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
        collected, sentence, notes = _guarded(capture, request, scene, folder, home, tell, clock)
    except PerfwatchError as error:
        _clear(folder)
        return failed(request, error.message, error.advice, error.exit_code, clock() - began)
    except OSError as error:
        _clear(folder)
        return failed(request, f"{folder}: {error.strerror or error}", "", CaptureFailed.exit_code, clock() - began)
    except Exception as error:  # a bug of ours, or a hostile trace: never the job's business
        _clear(folder)
        text = f"internal error: {type(error).__name__}: {error}"
        return failed(request, text, "this is a bug of perfwatch; the job is not touched", 1, clock() - began)
    kept, dropped = _capped(collected.files, request.most_bytes)
    return Outcome(
        kind=request.kind,
        files=kept,
        notes=(*collected.notes, *dropped, *notes),
        window_seconds=collected.window_seconds,
        total_seconds=round(clock() - began, 3),
        cost=sentence,
        summary=collected.summary,
        report=dict(collected.report),
        readings=tuple(dict(one) for one in collected.readings),
    )


def _guarded(
    capture: Capture, request: Request, scene: Scene, folder: Path, home: Path, tell: Tell, clock: Callable[[], float]
) -> tuple[Collected, str, tuple[str, ...]]:
    """What was collected, what it cost, and what there is to say of the job afterwards."""
    capture.available(request, scene)
    preflight(capture, request, scene, folder)
    subjects = scene.wanted(request)
    with held(capture, subjects, home):
        pacer = Pacer(scene.place, subjects, clock)
        window = LiveWindow(folder, subjects, pacer, tell, clock, scene.proc)
        before = pacer.look()
        collected = capture.collect(request, scene, window)
        after, note = _recovered(before, pacer, subjects, scene.proc, clock)
    return collected, cost(before, window.opened_at, window.closed_at, after), (note,) if note else ()


def _recovered(
    before: Pace, pacer: Pacer, subjects: tuple[Subject, ...], proc: Path, clock: Callable[[], float]
) -> tuple[Pace, str]:
    """Wait until the ranks step as before; what to say if they do not."""
    first = after = pacer.look()
    if not before.stepping or before.seconds is None:
        return after, ""
    ends = clock() + max(RECOVER_SECONDS, 3 * FRESH_STEPS * before.seconds)
    while clock() < ends:
        after = pacer.look()
        fresh = all(after.counts.get(pid, 0) >= count + FRESH_STEPS for pid, count in first.counts.items())
        if fresh and as_fast(after, before, SLOWER):
            return after, ""
        gone = len(subjects) - len(alive(subjects, proc))
        if gone:
            return after, f"{gone} of {len(subjects)} ranks ended in or right after the window"
        time.sleep(TURN_SECONDS)
    if after.counts == first.counts:
        return (
            after,
            f"no step was made in the {duration(RECOVER_SECONDS)} after the window: look again with perfwatch attach",
        )
    return after, "the steps have not come back to the pace of before the window yet"


@dataclass
class LiveWindow:
    """The window of a real capture (``perfwatch.captures.capture.Window``)."""

    folder: Path
    subjects: tuple[Subject, ...]
    pacer: Pacer
    say: Tell
    clock: Callable[[], float]
    proc: Path = Path("/proc")
    deadline_seconds: float = STOP_SECONDS
    opened_at: Pace | None = field(default=None, init=False)
    closed_at: Pace | None = field(default=None, init=False)

    def run(
        self, command: Sequence[str], deadline_seconds: float, environment: Mapping[str, str] | None = None
    ) -> Finished:
        """Run a program to its end or to the deadline."""
        return run_program(command, deadline_seconds, environment)

    def wait(self, seconds: float) -> None:
        """Let time pass. Raises CaptureFailed when no rank of the capture lives any more."""
        ends = self.clock() + seconds
        while True:
            if not alive(self.subjects, self.proc):
                raise CaptureFailed(
                    "every rank that was to be captured has ended", "perfwatch replay says how the job ended"
                )
            if (left := ends - self.clock()) <= 0:
                return
            time.sleep(min(left, TURN_SECONDS))

    def opened(self) -> None:
        """The profiler records from now on."""
        self.opened_at = self.pacer.look()

    def closed(self) -> None:
        """It records no more."""
        self.closed_at = self.pacer.look()

    def tell(self, text: str) -> None:
        """One line on what goes on."""
        self.say(text)


def _capped(files: Sequence[File], most_bytes: int) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """The files that fit, in order; the others are removed, and that is said."""
    kept: list[File] = []
    dropped: list[File] = []
    for file in files:
        fits = sum(one.size_bytes for one in kept) + file.size_bytes <= most_bytes
        (kept if fits else dropped).append(file)
    for file in dropped:
        os.unlink(file.path)
    if not dropped:
        return tuple(kept), ()
    names = ", ".join(os.path.basename(file.path) for file in dropped)
    return tuple(kept), (
        f"{names} would have exceeded the {most_bytes / 2**20:.0f} MiB of a capture and was removed: ask for fewer steps or "
        "ranks, or --most-mib",
    )


def failed(request: Request, error: str, advice: str, exit_code: int, seconds: float = 0.0) -> Outcome:
    """The outcome of a capture that came to nothing."""
    return Outcome(kind=request.kind, error=error, advice=advice, exit_code=exit_code, total_seconds=round(seconds, 3))


def _clear(folder: Path) -> None:
    """Take the folder back if nothing came into it: a raw file that cannot be read is kept for a program that can."""
    try:
        folder.rmdir()
    except OSError:
        pass
