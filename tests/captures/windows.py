"""A window for tests of captures: programs answer as they are told, time passes only when somebody waits."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perfwatch.captures.capture import Scene, Subject
from perfwatch_probes.external import Finished

Answer = Callable[[tuple[str, ...], Mapping[str, str]], Finished | None]
SUBJECT = Subject(pid=700, start_ticks=1, rank=0, torch_loaded=True)


def finished(code: int | None = 0, output: str = "", errors: str = "") -> Finished:
    """How a program ended."""
    return Finished(code, output.encode(), errors, 0.1)


class RecordedWindow:
    """See ``perfwatch.captures.capture.Window``.

    Args:
        folder: where files go; made when it is not there.
        answer: how each program ends; None: well, without a word.
    """

    deadline_seconds = 120.0

    def __init__(self, folder: Path, answer: Answer = lambda command, environment: None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self._answer = folder, answer
        self.commands: list[tuple[str, ...]] = []
        self.events: list[str] = []
        self.said: list[str] = []
        self.now = 100.0

    def run(
        self, command: Sequence[str], deadline_seconds: float, environment: Mapping[str, str] | None = None
    ) -> Finished:
        """Answer."""
        self.commands.append(tuple(command))
        return self._answer(tuple(command), environment or {}) or finished()

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.events.append(f"wait {seconds:g}")
        self.now += seconds

    def opened(self) -> None:
        """Noted."""
        self.events.append("opened")

    def closed(self) -> None:
        """Noted."""
        self.events.append("closed")

    def tell(self, text: str) -> None:
        """Noted."""
        self.said.append(text)

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds that were waited for."""
        return lambda: self.now


def scene(*subjects: Subject, **known: object) -> Scene:
    """A job of these ranks; one if none is given."""
    return Scene(subjects=subjects or (SUBJECT,), **known)  # type: ignore[arg-type]
