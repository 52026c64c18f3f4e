"""A real terminal of a chosen size for tests: tmux, which says what is on its screen."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TMUX = shutil.which("tmux")
PATIENCE_SECONDS = 40.0
EVERY_SECONDS = 0.1


class Terminal:
    """One window. ``socket``: of a tmux server of its own."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *arguments: str) -> str:
        """A command of tmux."""
        command = [str(TMUX), "-S", str(self._socket), "-f", "/dev/null", *arguments]
        done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8", timeout=20, env=environment())
        return done.stdout

    def screen(self, *options: str) -> list[str]:
        """What is seen, line by line, without blanks at the ends."""
        return [line.rstrip() for line in self.tmux("capture-pane", "-p", *options).splitlines()]

    def keys(self, *keys: str) -> None:
        """Type."""
        self.tmux("send-keys", *keys)

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the window."""
        self.tmux("resize-window", "-x", str(columns), "-y", str(lines))

    def until(self, holds: Callable[[list[str]], bool]) -> list[str]:
        """The screen as soon as something holds of it."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while not holds(seen := self.screen()):
            if time.monotonic() > ends:
                raise AssertionError("never on the screen, which was:\n" + "\n".join(seen))
            time.sleep(EVERY_SECONDS)
        return seen


@contextmanager
def terminal(folder: Path, columns: int, lines: int, *command: str, **environment: str) -> Iterator[Terminal]:
    """A window in which ``python -m perfwatch`` runs with these arguments, and then says how it ended."""
    window = Terminal(folder / "tmux")
    quoted = " ".join(f"'{word}'" for word in (sys.executable, "-m", "perfwatch", *command))
    variables = {"LC_ALL": "C.UTF-8", **environment}
    settings = [part for name, value in variables.items() for part in ("-e", f"{name}={value}")]
    window.tmux(
        "new-session", "-d", "-x", str(columns), "-y", str(lines), *settings, f"{quoted}; echo ended with $?; read line"
    )
    try:
        yield window
    finally:
        window.tmux("kill-server")


def environment() -> dict[str, str]:
    """Ours, without what changes how a terminal is used."""
    return {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES", "TERM")}
