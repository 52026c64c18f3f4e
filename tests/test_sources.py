"""Which lines are read: the program's own at which threads stand, and the innermost of a library."""

from perfwatch.triage.history import History
from perfwatch.watching.sources import Sources
from perfwatch_probes import readings as r

PACKAGES = "/usr/lib/python3.11/site-packages"
OWN = r.Frame("load", "/app/train.py", 15)


class Looks:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int]] = []

    def source(self, pid: int, frame: r.Frame) -> None:
        """Instead of a look at the file."""
        self.lines.append((frame.file, frame.line))


def read(*frames: r.Frame) -> list[tuple[str, int]]:
    """The lines that are asked for where a thread stands so."""
    history, looks = History(), Looks()
    history.add(1.0, r.Stack(pid=7, tid=7, frames=frames))
    history.at = 1.0
    Sources(looks).of_threads(history)  # type: ignore[arg-type]
    return looks.lines


def test_a_librarys_innermost_line_is_read_for_it_may_take_a_lock() -> None:
    """Not those between it and the program, and none of the standard library, whose functions are known."""
    fetch = r.Frame("fetch", f"{PACKAGES}/reader/core.py", 3)
    between = r.Frame("read", f"{PACKAGES}/reader/api.py", 9)
    wait = r.Frame("wait", "/usr/lib/python3.11/threading.py", 327)

    assert read(fetch, between, OWN) == [("/app/train.py", 15), (fetch.file, 3)]
    assert read(wait, between, OWN) == [("/app/train.py", 15)]
    assert read(OWN) == [("/app/train.py", 15)]
