"""``capture ncu`` on a job that ``run --arm ncu-attach`` started: the agent begins, ncu attaches, and leaves when the agent ends.

The job waits for ncu from the beginning of the window on, so whatever goes wrong here must end it: the door to the window is
locked as long as we live, and the agent shuts the window when the door or its lock is gone.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from perfwatch.captures.capture import Collected, Subject, Window
from perfwatch.captures.ncu_files import NAME, brought, last_error, log_text, measured
from perfwatch.captures.nsight.finding import Tool
from perfwatch.captures.nsight.ncu_command import Choice, attach_command
from perfwatch.captures.nsight.permission import refused
from perfwatch.errors import CaptureFailed, CaptureUnavailable
from perfwatch.text import duration

MOST_KERNELS = 2000  # ncu holds them in memory
BEGIN_SECONDS = 60.0  # until the end of a step
ATTACHED_SECONDS = 80.0  # for ncu, from its start to its end; the agent ends a window after 150 s by itself
_LOOK_SECONDS = 0.1
_ANSWERS = {
    "1": "an error that it does not name",
    "2": "that it was called wrongly: this ncu expects something else",
    "3": "that CUDA had started in the process before the library was loaded",
}


def collect(tool: Tool, subject: Subject, place: Path, steps: int, window: Window) -> Collected:
    """Open the door, run ncu until the window is over, bring its report.

    Args:
        tool: the ncu that attaches.
        subject: the rank to measure.
        place: the agent's folder.
        steps: to measure.
        window: what a capture works with.

    Raises CaptureUnavailable where the library is not in the process; CaptureFailed.
    """
    answer = place / f"kernels-open-{subject.pid}"
    _forget(answer)
    report, log = window.folder / NAME, window.folder / "ncu.log"
    with _door(place / f"kernels-{subject.pid}", steps):
        _begun(answer, window)
        began = window.clock()
        window.opened()
        command = attach_command(tool.path, subject.pid, Choice(count=MOST_KERNELS), report, log)
        ended = window.run(command, ATTACHED_SECONDS)
    window.closed()
    answer.unlink(missing_ok=True)
    said = log_text(log) + ended.errors
    log.unlink(missing_ok=True)
    if denied := refused(said):
        raise denied
    if not report.is_file():
        late = f"it did not end within {ATTACHED_SECONDS:g} s" if ended.returncode is None else ""
        why = last_error(said) or late or f"it ended with {ended.returncode}, and no kernel ran in the window"
        raise CaptureFailed(
            f"ncu measured nothing in pid {subject.pid}: {why}", "perfwatch ncu -- COMMAND: a second run"
        )
    return brought(report, tool, subject, window, window.clock() - began, measured(said))


@contextlib.contextmanager
def _door(path: Path, steps: int) -> Iterator[None]:
    """A file that the agent sees whole and locked, or not at all."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, str(steps).encode())
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        fresh.rename(path)
        yield
    finally:
        for left in (fresh, path):
            left.unlink(missing_ok=True)
        os.close(descriptor)


def _forget(answer: Path) -> None:
    """Drop the answer of an earlier window. Raises CaptureUnavailable for what was said when the library was loaded."""
    text = _text(answer)
    if text and not text.isdecimal():
        raise CaptureUnavailable(
            f"ncu's library could not be loaded into the process: {text}",
            "perfwatch ncu -- COMMAND measures a second run",
        )
    answer.unlink(missing_ok=True)


def _begun(answer: Path, window: Window) -> None:
    since = window.clock()
    while not (text := _text(answer)):
        if window.clock() - since > BEGIN_SECONDS:
            raise CaptureFailed(
                f"no step ended within {duration(BEGIN_SECONDS)}, or this process has no agent: the window was not opened",
                "perfwatch attach says how the job is doing",
            )
        window.wait(_LOOK_SECONDS)
    if text != "0":
        raise CaptureFailed(
            f"ncu's library in the process answers {_ANSWERS.get(text, text)}", "perfwatch ncu -- COMMAND: a second run"
        )


def _text(path: Path) -> str:
    return log_text(path).strip()
