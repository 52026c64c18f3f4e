"""The loop of ``perfwatch top``: follow the recording, judge it at intervals, show it, handle keys."""

import time
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from perfwatch.postmortem import judge
from perfwatch.recording.recording import CAPTURE_BEGUN
from perfwatch.text import duration
from perfwatch.top.board import Board, board
from perfwatch.top.board_pages import Page, stacks_page, verdict_page
from perfwatch.top.board_view import Screen
from perfwatch.top.errands import LONGEST_SECONDS, USUAL_SECONDS, Errands
from perfwatch.top.follow import Follower
from perfwatch.top.keyboard import ESCAPE, Keyboard
from perfwatch.verdict import Verdict

REFRESH_SECONDS = 1.0
JUDGE_SECONDS = 2.0
MOST_OF_TIME = 0.1  # that judging may take: a job of a thousand threads is judged less often


class Viewer:
    """One session on one terminal.

    Args:
        follower: the recording.
        console: the terminal.
        errands: reaches the watcher, where there is one.
        clock: monotonic seconds.
        wall: unix time.
        wait: for so many seconds.
    """

    def __init__(
        self,
        follower: Follower,
        console: Console,
        errands: Errands,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._follower, self._console, self._errands = follower, console, errands
        self._clock, self._wall, self._wait = clock, wall, wait
        self._verdict: Verdict | None = None
        self._judged_at, self._judging = -1e9, 0.0
        self._page, self._top = "board", 0
        self._board: Board | None = None

    def once(self, most_seconds: float = 0.0) -> RenderableType:
        """One screen, for a pipe or a test: as soon as something can be said, or after so long."""
        ends = self._clock() + most_seconds
        self._look()
        while (self._verdict is None or self._verdict.state == "inconclusive") and self._clock() < ends:
            self._wait(REFRESH_SECONDS)
            self._look()
        return self._shown()

    def run(self, keyboard: Keyboard) -> None:
        """Show until somebody leaves."""
        with Live(console=self._console, screen=True, auto_refresh=False, transient=True) as live:
            due = 0.0
            while not keyboard.leaving:
                if self._clock() >= due:
                    self._look()
                    due = self._clock() + REFRESH_SECONDS
                live.update(self._shown(), refresh=True)
                key = keyboard.wait(max(0.0, due - self._clock()))
                if key == "q" or (key == ESCAPE and self._page == "board"):
                    return
                self._press(key)

    def _look(self) -> None:
        self._follower.read()
        case = self._follower.case(self._wall())
        now = self._clock()
        if now - self._judged_at >= max(JUDGE_SECONDS, self._judging / MOST_OF_TIME):
            self._verdict = judge(case)
            self._judged_at, self._judging = now, self._clock() - now
        self._board = board(case, self._verdict)
        self._case = case

    def _press(self, key: str) -> None:
        if key in ("s", "v"):
            page = {"s": "stacks", "v": "verdict"}[key]
            self._page, self._top = ("board" if self._page == page else page), 0
        elif key in (ESCAPE, "b"):
            self._page, self._top = "board", 0
        elif key in ("j", f"{ESCAPE}[B", " "):
            self._top += 1 if key != " " else self._console.height - 2
        elif key in ("k", f"{ESCAPE}[A"):
            self._top = max(0, self._top - 1)
        elif key == "c":
            self._errands.capture()

    def _shown(self) -> RenderableType:
        if self._board is None:
            return Text("reading the recording ...")
        if self._page == "board":
            at_work = self._errands.at_work(self._clock()) or self._capturing()
            return Screen(self._board, self._status(), self._errands.said(self._clock()), at_work)
        inner = stacks_page(self._case) if self._page == "stacks" else verdict_page(self._verdict)
        return Page(self._page, inner, self._top, self._errands.said(self._clock()))

    def _capturing(self) -> tuple[str, float] | None:
        """What a capture that somebody else has begun does, and how much of the usual time has passed."""
        newest = next((one for one in reversed(self._follower.events) if one.kind.startswith("capture")), None)
        if newest is None or newest.kind != CAPTURE_BEGUN or not self._follower.live(self._wall()):
            return None
        passed = max(0.0, self._follower.now(self._wall()) - newest.at)
        return None if passed > LONGEST_SECONDS else (newest.text, min(0.99, passed / USUAL_SECONDS))

    def _status(self) -> str:
        ended, wall = self._follower.ended, self._wall()
        if ended is not None:
            return f"ended: {ended.text}"
        if self._follower.live(wall):
            return f"for {duration(self._follower.now(wall))}"
        return f"recording ended at {duration(self._follower.history.at)}"
