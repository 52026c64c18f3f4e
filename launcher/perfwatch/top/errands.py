"""Capture requests of ``perfwatch top``, in a thread: an answer may take seconds, and the screen must not block."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from perfwatch.captures.capture import Request
from perfwatch.errors import CaptureFailed, CaptureRefused
from perfwatch.processes.control import watchers
from perfwatch.top.asking import capture_watched, session_of
from perfwatch.top.follow import Follower

USUAL_SECONDS = 20.0  # of a capture: what its bar counts towards, and then waits
LONGEST_SECONDS = 300.0
SAID_SECONDS = 20.0


class Errands:
    """At most one at a time.

    Args:
        control: the watcher's socket; None where the job is not watched, or is another user's.
        reason: why there is none.
        clock: monotonic seconds.
    """

    def __init__(self, control: Path | None, reason: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._control, self._reason, self._clock = control, reason, clock
        self._said, self._said_at = "", -1e9
        self._began: float | None = None
        self._doing = ""

    def capture(self) -> None:
        """Ask for a window of the armed profiler."""
        if self._control is None:
            self.say(self._reason)
        elif self._began is None:
            self._began, self._doing = self._clock(), "asked for"
            threading.Thread(target=self._captured, args=(self._control,), daemon=True).start()

    def said(self, now: float) -> str:
        """The newest answer, for a while."""
        return self._said if now - self._said_at < SAID_SECONDS else ""

    def at_work(self, now: float) -> tuple[str, float] | None:
        """What a capture at work does, and how much of the usual time has passed."""
        began = self._began
        return None if began is None else (self._doing, min(0.99, (now - began) / USUAL_SECONDS))

    def _captured(self, control: Path) -> None:
        try:
            outcome = capture_watched(control, Request(kind="torch"), self._told)
            self.say(f"captured: {outcome.error or outcome.summary or 'see perfwatch report'}")
        except (CaptureRefused, CaptureFailed) as error:
            self.say(f"no capture: {error.message}")
        finally:
            self._began = None

    def _told(self, what: str) -> None:
        self._doing = what

    def say(self, text: str) -> None:
        """Show this beside the keys for a while."""
        self._said, self._said_at = text.splitlines()[0] if text else "", self._clock()


def mine(folder: Path) -> bool:
    """True if a session is this user's: only its owner may ask its watcher for anything."""
    try:
        return folder.stat().st_uid in (os.getuid(), os.geteuid())
    except OSError:
        return False


def errands_of(folder: Path, control: Path | None) -> Errands:
    """What can be asked of the watcher of a session, where it is ours and there is one."""
    if not mine(folder):
        return Errands(None, "not your session: read-only")
    return Errands(control, "this job is not watched any more: perfwatch capture KIND PID")


def next_watched(folder: Path) -> tuple[Follower, Errands, str] | None:
    """The next of our sessions that are being written, after this one, and its place among them; None where there is no other."""
    found = {Path(session): control for control in watchers() if (session := session_of(control)) is not None}
    ordered = sorted(found)
    place = next((number for number, one in enumerate(ordered) if one > folder), 0)
    if not ordered or ordered[place] == folder:
        return None
    chosen = ordered[place]
    return Follower(chosen), errands_of(chosen, found[chosen]), f"{place + 1} of {len(ordered)}"
