"""What the user asked ``run`` for; a file of its own, for it is made before anything else is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfwatch.exporters.wanted import Wanted
from perfwatch.hang_timeout import HANG_TIMEOUT_SECONDS

ARMS = ("torch", "nsys", "ncu", "ncu-attach", "none")


@dataclass(frozen=True)
class Request:
    """What the user asked ``run`` for."""

    command: tuple[str, ...]
    agent: bool = True
    quiet: bool = False
    session: Path | None = None
    patience_seconds: float = HANG_TIMEOUT_SECONDS
    trigger_signals: str = "all"  # or "rt": leave SIGUSR1 and SIGUSR2 to the job
    outlets: Wanted = field(default_factory=Wanted)
    arm: str = "torch"  # the profiler that the job is prepared for; "none": nothing is prepared
    capture_on: tuple[str, ...] = ()  # states of a verdict that ask for a capture
    model: Mapping[str, float] = field(default_factory=dict)  # what the user says of it, as conditions of the session
