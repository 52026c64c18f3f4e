"""A job that was asked to end is let end: its ranks do so in some order, and those that go first are no fault."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfwatch.processes.channel import Channel
from perfwatch.processes.place import enter
from perfwatch.recording.recording import load
from perfwatch.run.request import Request
from perfwatch.run.watcher import LET_END_SECONDS, Watcher
from perfwatch_probes.readings import ProbeCall

pytestmark = pytest.mark.live

STANDS = "print('ready', flush=True); input()"
ENDED = {"ended": {"exit_code": 0, "signal": None, "elapsed_seconds": 1.0}}
JUST_BEFORE_SECONDS = LET_END_SECONDS - 0.5


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        """The time that it shows."""
        return self.now


@pytest.fixture
def job() -> Iterator[int]:
    """A program that stands, once it is up."""
    with subprocess.Popen([sys.executable, "-c", STANDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        yield program.pid
        program.kill()


def looked_at(folder: Path) -> list[float]:
    """When the job was looked at, in seconds since the session began; cards are sampled beside it, by a clock of their own."""
    calls = [one for one in load(folder).records if isinstance(one.reading, ProbeCall) and one.reading.probe != "gpu"]
    return sorted({one.at for one in calls})


def test_a_job_that_was_asked_to_end_is_not_looked_at_for_a_while(job: int, tmp_path: Path) -> None:
    """The last look comes with the request, and the next one where the job has not ended by then."""
    clock = Clock()
    launcher, ours = Channel.pair()
    request = Request(command=(sys.executable,), agent=False, session=tmp_path / "session", arm="none")
    watcher = Watcher(ours, enter({}, (tmp_path,)), request, job, clock)
    # A message is there before each round: none waits for one.
    launcher.send({"terminating": True})
    watcher.round()
    for clock.now in (0.5, JUST_BEFORE_SECONDS, LET_END_SECONDS):
        launcher.send({"suspended": False})
        watcher.round()
    launcher.send(ENDED)
    watcher.serve()

    assert {"snapshot": True} in launcher.receive()
    assert looked_at(tmp_path / "session") == [0.0, LET_END_SECONDS]
