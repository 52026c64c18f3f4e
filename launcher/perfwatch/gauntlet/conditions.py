"""The settings that all attempts of a gauntlet share."""

import sys
from dataclasses import dataclass
from pathlib import Path

from perfwatch.drills.drill import Drill
from perfwatch.processes.reinvoke import own_command

LOOK_SECONDS = 0.2  # how often something silent is checked for having ended, or for an interruption


@dataclass(frozen=True)
class Conditions:
    """Where, how and how late to ask.

    folder: sessions and programs' output go below it.
    python: the interpreter that has torch.
    perfwatch: the command that is asked, with the words that a user would type.
    patience_seconds: passed on to perfwatch; None leaves its own default.
    limit_seconds: an answer that takes longer is a fault of perfwatch.
    """

    folder: Path
    python: str = sys.executable
    perfwatch: tuple[str, ...] = tuple(own_command())
    mode: str = "attach"
    late_seconds: float = 0.0
    patience_seconds: float | None = None
    limit_seconds: float = 180.0

    def mode_for(self, drill: Drill) -> str:
        """perfwatch cannot attach to what has ended, nor see what was before: such a program is always started under ``run``."""
        return "run" if drill.state == "gone" or drill.from_start else self.mode

    @property
    def patience_option(self) -> tuple[str, ...]:
        """``--patience SECONDS`` for perfwatch, where one was asked for."""
        return () if self.patience_seconds is None else ("--patience", f"{self.patience_seconds:g}")
