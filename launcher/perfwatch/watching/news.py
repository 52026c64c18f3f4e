"""What is reported while a job is watched, and when: a suspicion that lasts, a verdict, a retraction."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from perfwatch.recording.recording import Event, Sink
from perfwatch.recording.session import Session
from perfwatch.text import duration
from perfwatch.verdict import Level, Suspect, Verdict
from perfwatch.watching.reported import ReportedHang, ToldSlow

TELL_AFTER_SHARE = 0.25  # of the patience: every long step begins like a hang
SURE_END = Level.HIGH  # of ``finished`` under ``run``: below it the launcher's own exit code is waited for
PIN_SECONDS = 30.0  # of the recording before a verdict: what it rests on
MOST_EVENTS = 64  # in memory
INCIDENTS = ("hung", "slow", "gone")  # how it came to that is worth keeping
MOVING = ("healthy", "slow", "busy")
STEPPING = ("healthy", "slow")  # states of a job that makes steps
WELL = ("healthy", "busy")


@dataclass(frozen=True)
class News:
    """Something to tell the user: suspicion, verdict or retraction."""

    kind: str
    at: float
    text: str
    verdict: Verdict | None = None

    @property
    def suspect(self) -> Suspect | None:
        """What is suspected, if that is the news."""
        return self.verdict.suspect if self.verdict is not None and self.kind == "suspicion" else None

    def line(self) -> str:
        """All of it in one line, with the seconds since the watch began."""
        named = f"{self.suspect.state} ({self.suspect.cause})" if self.suspect is not None else ""
        if self.verdict is not None and self.kind != "suspicion":
            named = self.verdict.state
        return f"{duration(self.at)} {self.kind}: {named}{': ' if named else ''}{self.text}"


class Teller:
    """Compares each verdict with the last one that was told.

    Args:
        session: dates the events.
        sink: where events are recorded; None: nowhere.
        on_news: who is told.
    """

    def __init__(self, session: Session, sink: Sink | None, on_news: Callable[[News], None]) -> None:
        self.events: list[Event] = []
        self.state = ""  # of the last verdict that was told
        self._cause: str | None = None
        self._told_at = 0.0
        self._feared = False  # whether a hang was told, or suspected: then a job that is slow moves again, too
        self._hung, self._slow = ReportedHang(), ToldSlow()
        self._session = session
        self._sink = sink
        self._on_news = on_news

    def tell(
        self, verdict: Verdict, at: float, late_seconds: float = 0.0, since_step_seconds: float | None = None
    ) -> None:
        """Tell a verdict if it is news.

        Args:
            verdict: of this moment.
            at: seconds since the recording began.
            late_seconds: no step was made for so long, which is told where nothing else is.
            since_step_seconds: since the newest step of any rank; None where steps are not counted. A hang that was told
                stands until there is another one, however much some thread moves: the job may only be ending.
        """
        self._slow.see(verdict, at)
        self._hung.see(verdict, at)
        if (verdict.state, verdict.cause) == (self.state, self._cause) or self._is_told_soon(verdict):
            return
        if self.state == "slow" and self._still_slow(verdict, at):
            return
        if verdict.state == self.state == "hung" and not self._hung.is_news(verdict, at):
            return
        if self.state == "hung" and verdict.state in STEPPING and (since_step_seconds or 0.0) > at - self._told_at:
            return
        kind, text = "verdict", verdict.summary
        if verdict.state == "inconclusive":
            told = lasts(verdict.suspect) if verdict.suspect is not None else late_seconds > 0
            if self.state == "hung" or not told:
                return  # a hang that was told stands until the job moves: it is looked at less often now
            kind, text = "suspicion", verdict.summary.removeprefix("suspected: ")
            text = text if verdict.suspect is not None else _since(late_seconds) + text
        elif verdict.state in (MOVING if self._feared else WELL) and self.state in ("hung", "inconclusive"):
            kind, text = "retraction", f"moves again: {verdict.summary}"
        elif self.state == "slow" and verdict.state in WELL:
            over = "no longer slow" if verdict.state == "healthy" else f"{self._cause} is over"
            kind, text = "retraction", f"{over}: {_since(late_seconds)}{verdict.summary}"
        verdict = msgspec.structs.replace(verdict, supersedes=self._cause)
        if verdict.state == "slow":
            self._slow.tell(verdict.cause)
        elif verdict.state != "inconclusive":
            self._slow.clear()
        if verdict.state == "hung":
            self._hung.report(verdict)
        else:
            self._hung = ReportedHang()
        self._told_at = at
        self._feared = "hung" in (verdict.state, verdict.suspect.state if verdict.suspect is not None else "")
        self.state, self._cause = verdict.state, verdict.cause
        self.note(at, kind, text, verdict)
        if self._sink is not None:
            self._sink.pin(max(0.0, at - PIN_SECONDS), at, verdict.state in INCIDENTS)
        self._on_news(News(kind, at, text, verdict))

    def note(
        self, at: float, kind: str, text: str, verdict: Verdict | None, facts: dict[str, Any] | None = None
    ) -> None:
        """Record an event that later verdicts rest on."""
        self.events.append(Event(at, kind, text, verdict, facts or {}))
        del self.events[1:-MOST_EVENTS]  # the first one says when it began
        if self._sink is not None:
            self._sink.event(at, kind, text, verdict, facts)

    def _still_slow(self, verdict: Verdict, at: float) -> bool:
        """True if what was told as slow stands: it takes turns with another cause, or it is too soon to say that it is over."""
        if verdict.state == "slow":
            return self._slow.has(verdict.cause)
        return verdict.state in WELL and not self._slow.are_away(at)

    def _is_told_soon(self, verdict: Verdict) -> bool:
        """True if a run seems to have ended and its exit code is not known yet: its launcher is about to tell it."""
        return verdict.cause == "finished" and verdict.confidence < SURE_END and self._session.mode == "run"


def _since(late_seconds: float) -> str:
    return f"no step for {duration(late_seconds)}; " if late_seconds > 0 else ""


def lasts(suspect: Suspect) -> bool:
    """True if a good part of the patience is gone; what may be work is told when it is known to be."""
    patience = suspect.silent_seconds + suspect.decides_in_seconds
    return suspect.state != "busy" and suspect.silent_seconds >= TELL_AFTER_SHARE * patience
