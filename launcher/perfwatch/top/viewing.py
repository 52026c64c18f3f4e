"""The loop of ``perfwatch top``: follow the recording, judge it at intervals, show it, handle keys."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from perfwatch.postmortem import judge
from perfwatch.recording.recording import CAPTURE_BEGUN
from perfwatch.text import duration
from perfwatch.top.board import Board, board
from perfwatch.top.board_pages import Page, help_page, stacks_page, verdict_page
from perfwatch.top.board_view import Screen, Scroll
from perfwatch.top.errands import LONGEST_SECONDS, USUAL_SECONDS, Errands
from perfwatch.top.follow import Follower
from perfwatch.top.keyboard import ESCAPE, WHEEL_OFF, WHEEL_ON, Keyboard
from perfwatch.verdict import Verdict

REFRESH_SECONDS = 1.0
JUDGE_SECONDS = 2.0
PAGES = {"s": "stacks", "v": "verdict", "?": "help", "h": "help"}
PAGE, END = 10_000, 1_000_000  # a screen; further than anything is long
ARROWS = {
    f"{ESCAPE}[B": 1, f"{ESCAPE}OB": 1, f"{ESCAPE}[A": -1, f"{ESCAPE}OA": -1, f"{ESCAPE}[6~": PAGE, f"{ESCAPE}[5~": -PAGE,
    f"{ESCAPE}[H": -END, f"{ESCAPE}[1~": -END, f"{ESCAPE}[F": END, f"{ESCAPE}[4~": END,
}  # fmt: skip
MOST_OF_TIME = 0.1  # that judging may take: a job of a thousand threads is judged less often


class Viewer:
    """One session on one terminal.

    Args:
        follower: the recording.
        console: the terminal.
        errands: reaches the watcher, where there is one.
        others: opens the next job that is watched here, with its place among them ("2 of 3"); None where there is no other.
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
        others: Callable[[Path], tuple[Follower, Errands, str] | None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._follower, self._console, self._errands = follower, console, errands
        self._clock, self._wall, self._wait, self._others = clock, wall, wait, others
        self._verdict: Verdict | None = None
        self._judged_at, self._judging = -1e9, 0.0
        self._page, self._scroll, self._place = "board", Scroll(), ""
        self._board: Board | None = None

    def once(self, most_seconds: float = 0.0, fitted: bool = False) -> RenderableType:
        """All that is known, as soon as something can be said, or after so long; ``fitted``: to a screen, with its keys."""
        ends = self._clock() + most_seconds
        self._look()
        while (self._verdict is None or self._verdict.state == "inconclusive") and self._clock() < ends:
            self._wait(REFRESH_SECONDS)
            self._look()
        return self._shown(interactive=fitted)

    def run(self, keyboard: Keyboard) -> None:
        """Show until the user quits."""
        with Live(console=self._console, screen=True, auto_refresh=False, transient=True) as live, self._wheel():
            due = 0.0
            while not keyboard.leaving:
                if self._clock() >= due:
                    self._look()
                    due = self._clock() + REFRESH_SECONDS
                live.update(self._shown(), refresh=True)
                key = keyboard.wait(max(0.0, due - self._clock()))
                if key == "q" or (key == ESCAPE and self._page == "board"):
                    return
                if self._press(key):
                    due = 0.0

    @contextmanager
    def _wheel(self) -> Iterator[None]:
        """A mouse wheel scrolls."""
        self._console.file.write(WHEEL_ON)
        try:
            yield
        finally:
            self._console.file.write(WHEEL_OFF)

    def _look(self) -> None:
        self._follower.read()
        case = self._follower.case(self._wall())
        now = self._clock()
        if now - self._judged_at >= max(JUDGE_SECONDS, self._judging / MOST_OF_TIME):
            self._verdict = judge(case)
            self._judged_at, self._judging = now, self._clock() - now
        self._board = board(case, self._verdict)
        self._case = case

    def _press(self, key: str) -> bool:
        """True if what is shown has to be read anew."""
        by = {"j": 1, "k": -1, " ": PAGE, "g": -END, "G": END, **ARROWS}.get(key)
        if by is not None:
            self._scroll.top += by if by not in (PAGE, -PAGE) else (self._console.height - 2) * (by // PAGE)
            self._scroll.top = max(0, self._scroll.top)
        elif key in PAGES:
            self._page, self._scroll = "board" if self._page == PAGES[key] else PAGES[key], Scroll()
        elif key in (ESCAPE, "b"):
            self._page, self._scroll = "board", Scroll()
        elif key == "c":
            self._errands.capture()
        elif key == "\t":
            found = self._others(self._follower.folder)
            if found is None:
                self._errands.say("no other job is watched")
                return False
            self._follower, self._errands, self._place = found
            self._board, self._verdict, self._judged_at, self._scroll = None, None, -1e9, Scroll()
            return True
        return False

    def _shown(self, interactive: bool = True) -> RenderableType:
        if self._board is None:
            return Text("reading the recording ...")
        if self._page == "board":
            at_work = self._errands.at_work(self._clock()) or self._capturing()
            said = self._errands.said(self._clock())
            return Screen(self._board, self._status(), said, at_work, scroll=self._scroll, interactive=interactive)
        inner = (
            help_page()
            if self._page == "help"
            else stacks_page(self._case)
            if self._page == "stacks"
            else verdict_page(self._verdict)
        )
        return Page(self._page, inner, self._scroll, self._errands.said(self._clock()))

    def _capturing(self) -> tuple[str, float] | None:
        """What a capture that another process has begun does, and how much of the usual time has passed."""
        newest = next((one for one in reversed(self._follower.events) if one.kind.startswith("capture")), None)
        if newest is None or newest.kind != CAPTURE_BEGUN or not self._follower.live(self._wall()):
            return None
        passed = max(0.0, self._follower.now(self._wall()) - newest.at)
        return None if passed > LONGEST_SECONDS else (newest.text, min(0.99, passed / USUAL_SECONDS))

    def _status(self) -> str:
        ended, wall = self._follower.ended, self._wall()
        place = f"job {self._place}  " if self._place else ""
        if ended is not None:
            return f"{place}ended: {ended.text}"
        if self._follower.live(wall):
            return f"{place}for {duration(self._follower.now(wall))}"
        return f"{place}recording ended at {duration(self._follower.history.at)}"
