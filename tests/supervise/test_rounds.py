"""The watcher of ``run`` is woken by much, and looks at the job when it is time, or has a reason to."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfwatch.processes.channel import Channel
from perfwatch.processes.place import Place, enter
from perfwatch.recording.recording import load
from perfwatch.run.request import Request
from perfwatch.run.watcher import Watcher
from perfwatch.watching.cadence import CALM_SECONDS
from perfwatch_probes.readings import ProcessEnded
from tests.supervise.test_letting_end import ENDED, STANDS, Clock, looked_at

pytestmark = pytest.mark.live


class Run:
    """A watched program that stands; ``heard`` is a round in which the launcher has said something, so that none waits."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.session = Clock(), folder / "session"
        self.job = subprocess.Popen([sys.executable, "-c", STANDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.job.stdout is not None
        assert self.job.stdout.readline() == b"ready\n"
        self.launcher, ours = Channel.pair()
        self.place: Place = enter({}, (folder,))
        request = Request(command=(sys.executable,), agent=False, session=self.session, arm="none")
        self.watcher = Watcher(ours, self.place, request, self.job.pid, self.clock)

    def heard(self, at: float) -> None:
        """One round at this second."""
        self.clock.now = at
        self.launcher.send({"suspended": False})
        self.watcher.round()

    def end(self) -> None:
        """The launcher says that the program has ended."""
        self.launcher.send(ENDED)
        self.watcher.serve()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """One that has just begun."""
    one = Run(tmp_path)
    yield one
    one.job.kill()
    one.job.communicate()


def test_what_the_launcher_says_is_no_reason_to_look(run: Run) -> None:
    """Nor is a client, or each line of a capture: a look comes when it is due."""
    for at in (0.0, 0.25, 0.5, 0.75, CALM_SECONDS, 1.25):
        run.heard(at)

    run.end()

    assert looked_at(run.session) == [0.0, CALM_SECONDS, 1.25], "the last one is of the end"


def test_a_process_that_has_ended_is_looked_at_in_the_next_round(run: Run) -> None:
    """Before that one is due."""
    run.heard(0.0)
    run.job.kill()
    run.watcher.round()  # woken by the end
    run.heard(0.25)
    run.heard(0.75)
    run.end()

    assert next(one.at for one in load(run.session).records if isinstance(one.reading, ProcessEnded)) == 0.25


def test_whoever_asks_for_a_verdict_has_a_calm_job_looked_at_in_the_next_round(run: Run) -> None:
    """The first time."""
    run.heard(0.0)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(run.place.control))
        client.sendall(b'{"command": "verdict", "attend": true}\n')
        run.watcher.round()
    run.heard(0.25)
    run.heard(0.5)
    run.end()

    assert 0.25 in looked_at(run.session)
