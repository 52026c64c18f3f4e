"""Captures of a watched job: one at a time, each in a helper process, so that the watcher never blocks on one."""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from perfwatch.captures.capture import Capture, Outcome, Request, Scene
from perfwatch.captures.helper import Helper
from perfwatch.captures.triggers import Limits, request_for, ruled, signalled
from perfwatch.errors import CaptureFailed, CaptureRefused, PerfwatchError, UsageError
from perfwatch.processes.channel import Message
from perfwatch.processes.place import private_home

MOST_REMEMBERED = 16  # outcomes, for those who asked


class Capturing:
    """The captures of one session.

    Args:
        folder: the session's; None when no disk takes it, and then nothing can be captured.
        scene: the job now.
        done: told each outcome with its request.
        begun: told each request that is at work from now on.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        folder: Path | None,
        scene: Callable[[], Scene],
        done: Callable[[Request, Outcome], None],
        begun: Callable[[Request], None] = lambda request: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._scene, self._done, self._clock = folder, scene, done, clock
        self._told_begun = begun
        self._limits = Limits(clock)
        self._helper: Helper | None = None
        self._number = 0
        self._outcomes: dict[int, Outcome] = {}
        self._waiting = ""  # the state of a verdict that asked for a capture while another was at work

    def filenos(self) -> list[int]:
        """What to wait for."""
        return [self._helper.fileno()] if self._helper is not None else []

    @property
    def said(self) -> str:
        """What the capture at work does now."""
        return self._helper.said if self._helper is not None else ""

    def serve(self) -> str:
        """Take what the helper has said; tell the outcome when it is there.

        Returns what to tell the user of a capture that was waiting for this one's end.
        """
        outcome = self._helper.outcome() if self._helper is not None else None
        if outcome is None or self._helper is None:
            return ""
        request, self._helper = self._helper.request, None
        self._outcomes[self._number] = outcome
        self._outcomes = dict(list(self._outcomes.items())[-MOST_REMEMBERED:])
        self._done(request, outcome)
        waiting, self._waiting = self._waiting, ""
        return self.ruled(waiting) if waiting else ""

    def begin(self, request: Request, scene: Scene | None = None) -> int:
        """Begin a capture; its number. Raises a PerfwatchError when it cannot be begun."""
        capture = find(request.kind)
        if self._helper is not None:
            raise CaptureRefused(
                f"a {self._helper.request.kind} capture of this job is running, and only one can run at a time",
                "wait for it: it ends within a minute or two",
            )
        if self._folder is None:
            raise CaptureRefused(
                "this run is not recorded, so there is no folder for a capture", "perfwatch run --session DIR"
            )
        try:
            home = private_home() / "captures"
            home.mkdir(mode=0o700, exist_ok=True)
            folder = self._folder / "captures" / f"{self._number + 1:03d}-{request.kind}"
            self._helper = Helper(capture, request, scene or self._scene(), folder, home, clock=self._clock)
        except OSError as error:
            raise CaptureRefused(f"no helper can be started: {error.strerror or error}") from None
        self._number += 1
        self._told_begun(request)
        return self._number

    def signalled(self, what: str) -> str:
        """Begin what a signal asks for; what to tell the user, empty for one of a volley."""
        if self._limits.together():
            return ""
        scene = self._scene()
        capture = signalled(what, scene)
        if capture is None:
            return f"no {what} profiler is armed in this run; nothing was captured"
        return self._begun(capture, scene, "signal")

    def ruled(self, state: str) -> str:
        """Begin what helps with a verdict of this state, if it is time for one; what to tell the user."""
        if self._helper is not None:
            self._waiting = state
            return ""
        scene = self._scene()
        for capture in ruled(state, scene):
            request = request_for(capture, scene, "rule")
            try:
                capture.available(request, scene)
            except PerfwatchError:
                continue
            return self._begun(capture, scene, "rule") if self._limits.allow_rule() else ""
        return ""

    def answer(self, request: Message) -> Message:
        """The control socket's ``capture`` and ``captured``."""
        try:
            if request.get("command") == "capture":
                return {"ok": True, "number": self.begin(msgspec.convert(request.get("request"), Request))}
        except PerfwatchError as error:
            return {"ok": False, "error": error.message, "advice": error.advice, "exit_code": error.exit_code}
        except msgspec.ValidationError as error:
            return {"ok": False, "error": f"no capture: {error}"}
        number = request.get("number")
        if not isinstance(number, int):
            return {"ok": False, "error": "a capture has a number"}
        if number in self._outcomes:
            return {"ok": True, "outcome": msgspec.to_builtins(self._outcomes[number])}
        if number == self._number and self._helper is not None:
            return {"ok": True, "said": self._helper.said}
        return {"ok": False, "error": f"there is no capture {number}"}

    def close(self) -> None:
        """End the helper, and say so; the job is not touched."""
        if self._helper is not None:
            request = self._helper.request
            self._helper.close()
            self._helper = None
            ended = "the job ended, or was released, during the capture"
            self._done(request, Outcome(kind=request.kind, error=ended, exit_code=CaptureFailed.exit_code))

    def _begun(self, capture: Capture, scene: Scene, asked_by: str) -> str:
        try:
            self.begin(request_for(capture, scene, asked_by), scene)
        except PerfwatchError as error:
            return f"nothing was captured: {error.message}"
        return f"capturing {capture.NAME}"


def find(kind: str) -> Capture:
    """The capture of this name. Raises UsageError."""
    if kind == "stacks":  # the one that must not take long
        from perfwatch.captures import stacks

        return stacks
    from perfwatch.captures.catalogue import CAPTURES, named  # the profilers' modules cost a watch 0.1 s and 10 MB

    capture = named(kind)
    if capture is None:
        raise UsageError(f"there is no capture {kind!r}", f"one of {', '.join(one.NAME for one in CAPTURES)}")
    return capture
