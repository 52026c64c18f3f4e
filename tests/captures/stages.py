"""A job that stands still for tests of the guard rails: this very process is its rank."""

import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perfwatch.captures.capture import Collected, File, Request, Scene, Subject, Window
from perfwatch.processes.place import start_ticks


def subject(**changes: Any) -> Subject:
    """This process, as rank 0."""
    facts: dict[str, Any] = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "rank": 0, "uid": os.getuid()}
    return Subject(**facts | changes)


def scene(**changes: Any) -> Scene:
    """A healthy job of one rank, started by ``run``."""
    facts: dict[str, Any] = {"subjects": (subject(),), "armed": {"fake": {}}, "state": "healthy"}
    return Scene(**facts | changes)


def fake(
    collect: Callable[[Request, Scene, Window], Collected] | None = None,
    uses: frozenset[str] = frozenset({"cupti"}),
    estimated: int = 0,
) -> Any:
    """A capture that writes one small file, or does as told."""

    def writes(request: Request, scene: Scene, window: Window) -> Collected:
        path = window.folder / "trace"
        path.write_bytes(b"x" * 1000)
        window.opened()
        window.closed()
        return Collected(files=(File(path=str(path), size_bytes=1000),), window_seconds=0.1)

    return types.SimpleNamespace(
        NAME="fake",
        SUMMARY="",
        DISTURBS="",
        USES=uses,
        TRIGGERED_BY="",
        OPTIONS={},
        belongs_to_the_user=lambda scene: True,
        available=lambda request, scene: None,
        estimated_bytes=lambda request, scene: estimated,
        command=lambda request, scene, folder: (),
        collect=collect or writes,
    )


def home(folder: Path) -> Path:
    """Where captures lock each other out."""
    made = folder / "home"
    made.mkdir(exist_ok=True)
    return made
