"""What ``perfwatch top`` asks the watcher for, in a thread of its own: an answer may take seconds, the screen may not."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfwatch.control import ask

ANSWER_SECONDS = 10.0
EVERY_SECONDS = 0.5
USUAL_SECONDS = 20.0  # of a capture: what its bar counts towards, and then waits
LONGEST_SECONDS = 300.0
SAID_SECONDS = 20.0


class Errands:
    """At most one at a time.

    Args:
        control: the watcher's socket; None where nobody watches, or where it is somebody else's job.
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
            self._say(self._reason)
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
            self._say(self._result(control))
        except (OSError, ValueError, LookupError) as error:
            self._say(f"the watcher does not answer: {error}")
        finally:
            self._began = None

    def _result(self, control: Path) -> str:
        begun = ask(
            control, {"command": "capture", "request": {"kind": "torch", "asked_by": "command"}}, ANSWER_SECONDS
        )
        if not begun.get("ok"):
            return f"no capture: {begun.get('error')}"
        ends = self._clock() + LONGEST_SECONDS
        while self._clock() < ends:
            answer: dict[str, Any] = ask(control, {"command": "captured", "number": begun["number"]}, ANSWER_SECONDS)
            outcome = answer.get("outcome")
            if outcome is not None:
                return f"captured: {outcome.get('error') or outcome.get('summary') or 'see perfwatch report'}"
            if not answer.get("ok"):
                return f"no capture: {answer.get('error')}"
            self._doing = str(answer.get("said") or self._doing)
            time.sleep(EVERY_SECONDS)
        return "the capture did not end in time"

    def _say(self, text: str) -> None:
        self._said, self._said_at = text.splitlines()[0] if text else "", self._clock()


def mine(folder: Path) -> bool:
    """Whether a session is this user's: only its owner may ask its watcher for anything."""
    try:
        return folder.stat().st_uid in (os.getuid(), os.geteuid())
    except OSError:
        return False
