"""Captures by a running watcher: find its control socket, request the capture, wait for the outcome."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from perfwatch.captures.capture import Outcome, Request
from perfwatch.captures.helper import DEADLINE_SECONDS
from perfwatch.captures.telling import Progress
from perfwatch.errors import CaptureFailed, CaptureRefused, UsageError
from perfwatch.processes.control import ask, find_watcher, watchers

ANSWER_SECONDS = 10.0  # a round of looks takes 2 s at most
EVERY_SECONDS = 0.2


def find(pid: int | None, session: str | None) -> Path | None:
    """The control socket of the watcher that is meant; None when this process has none, and we look ourselves.

    Raises UsageError when it is not clear which job is meant.
    """
    if pid is not None:
        return find_watcher(pid)
    found = {control: session_of(control) for control in watchers()}
    meant = [control for control, folder in found.items() if session is None or _same(folder, session)]
    if len(meant) == 1:
        return meant[0]
    if session is not None:
        raise UsageError(f"no watcher writes the session {session}", "perfwatch ps lists the jobs; name a PID")
    if not meant:
        raise UsageError("no job is watched on this machine", "perfwatch capture KIND PID, of any process of the job")
    sessions = "\n".join(f"perfwatch capture KIND --session {folder}" for folder in found.values())
    raise UsageError(f"{len(meant)} jobs are watched on this machine: say which", sessions)


def capture_watched(
    control: Path,
    request: Request,
    tell: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], object] = time.sleep,
) -> Outcome:
    """Have the watcher make the capture, and wait for its outcome.

    Raises CaptureRefused (the watcher says why) and CaptureFailed (it has gone, or knows nothing of the capture any more).
    """
    try:
        begun = ask(control, {"command": "capture", "request": msgspec.to_builtins(request)}, ANSWER_SECONDS)
        if not begun["ok"]:
            refused = CaptureRefused(begun["error"], begun.get("advice", ""))
            refused.exit_code = begun.get("exit_code", CaptureRefused.exit_code)
            raise refused
        progress, ends = Progress(tell, clock), clock() + DEADLINE_SECONDS + ANSWER_SECONDS
        while clock() < ends:
            answer = ask(control, {"command": "captured", "number": begun["number"]}, ANSWER_SECONDS)
            if "outcome" in answer:
                return msgspec.convert(answer["outcome"], Outcome)
            if not answer["ok"]:
                raise CaptureFailed(answer["error"], "perfwatch capture KIND PID tries again")
            progress.now(answer.get("said", ""))
            wait(EVERY_SECONDS)
    except (OSError, LookupError, ValueError) as error:
        raise CaptureFailed(
            f"the watcher exited during the capture ({error})", "perfwatch replay says how the job ended"
        ) from None
    raise CaptureFailed(
        "the watcher did not finish the capture in time", "perfwatch attach PID says how the job is doing"
    )


def session_of(control: Path) -> str | None:
    """Where the watcher records; None where it records nothing, or does not answer: its job may have ended just now."""
    try:
        session = ask(control, {"command": "status"}, ANSWER_SECONDS).get("session")
    except (OSError, ValueError):
        return None
    return str(session) if session else None


def root_of(control: Path | None) -> int | None:
    """A process at the top of the job that the watcher watches; None where it does not answer."""
    try:
        roots = () if control is None else ask(control, {"command": "status"}, ANSWER_SECONDS).get("roots", ())
    except (OSError, ValueError):
        return None
    return next((root for root in roots if isinstance(root, int)), None)


def _same(folder: str | None, asked: str) -> bool:
    return folder is not None and (Path(asked).absolute() == Path(folder) or Path(folder).name == asked)
