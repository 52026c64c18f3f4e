"""A look that fails again and again ends too, with a verdict that says so."""

import io
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from perfwatch.attach.attached import Attached
from perfwatch.processes.stop_signals import Leaving
from perfwatch.recording.recording import load
from perfwatch.verdict import Verdict
from perfwatch.watching.probes_of_job import Look
from perfwatch.watching.status_line import StatusLine
from perfwatch.watching.watch import Watch
from perfwatch.watching.when_to_stop import UNCLEAR_SECONDS
from perfwatch_probes import readings as r

pytestmark = pytest.mark.live

FAR_TOO_LONG_SECONDS = 10 * UNCLEAR_SECONDS


class Waiter(Leaving):
    """Whoever waits: time passes only while they do. ``leaves``: they ask to leave at once."""

    def __init__(self, leaves: bool = False) -> None:
        super().__init__()
        self.asked, self.now = leaves, 0.0

    def wait(self, seconds: float, *sooner: int) -> bool:
        """Let so much time pass."""
        self.now += seconds
        assert self.now < FAR_TOO_LONG_SECONDS, "nobody would have waited so long"
        return self.asked


class NobodyFound(Look):
    """Looks for processes in vain."""

    def processes(self, roots: Iterable[int]) -> list[int]:
        """Never."""
        raise RuntimeError("no tree")


class NothingCollected(Look):
    """Brings no sample back."""

    def collect(self) -> list[tuple[float, r.Reading]]:
        """Never."""
        raise RuntimeError("no sample")


@pytest.fixture
def job() -> Iterator[int]:
    """A program that stands, once it is up."""
    stands = "print('ready', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", stands], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        yield program.pid
        program.kill()


def decided(job: int, waiter: Waiter, look: type[Look], folder: Path, stay: bool = False) -> tuple[Verdict, str]:
    """The verdict of one look, or of one who stays, and what was said meanwhile."""
    stream = io.StringIO()
    watch = partial(Watch, look=look, clock=lambda: waiter.now)
    with waiter:
        attached = Attached(job, waiter, session=str(folder), watch=watch)
        try:
            verdict = attached.stay(stream) if stay else attached.decide(stream, StatusLine(stream))
        finally:
            attached.close()
    return verdict, stream.getvalue()


def test_a_look_whose_rounds_all_fail_ends_and_names_the_failure(job: int, tmp_path: Path) -> None:
    """In CI nobody presses Ctrl-C. It is told once, and the recording has it, and the verdict, at its time."""
    waiter = Waiter()
    verdict, said = decided(job, waiter, NobodyFound, tmp_path / "session")

    assert (verdict.state, verdict.cause) == ("inconclusive", None)
    assert verdict.summary.endswith("perfwatch itself failed (RuntimeError: no tree)")
    assert UNCLEAR_SECONDS <= waiter.now < UNCLEAR_SECONDS + 2.0
    assert said == "perfwatch: internal error: RuntimeError: no tree\n"
    told = {event.kind: event.at for event in load(tmp_path / "session").events}
    assert told == {"note": 0.0, "verdict": waiter.now}


@pytest.mark.parametrize("stay", [False, True], ids=["decide", "stay"])
def test_who_leaves_while_no_verdict_can_be_made_is_told_why(job: int, tmp_path: Path, stay: bool) -> None:
    """Not with an error of ours and without a word on the job."""
    verdict, said = decided(job, Waiter(leaves=True), NothingCollected, tmp_path / "session", stay)

    assert (verdict.state, verdict.cause) == ("inconclusive", None)
    assert verdict.summary.endswith("perfwatch itself failed (RuntimeError: no sample)")
    assert "internal error: RuntimeError: no sample" in said
