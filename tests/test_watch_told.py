"""What a watch has told is what its recording gives, judged again at that moment."""

import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfwatch.recording.recording import Recorder, load
from perfwatch.triage.diagnose import diagnose
from perfwatch.watching.news import News
from perfwatch.watching.watch import Watch
from perfwatch_probes import readings as r
from tests.sessions import PATIENCE_SECONDS, session

pytestmark = pytest.mark.live

# Takes a lock twice beside a thread that works, so that stacks are sampled for a while.
LOCKED = """
import threading, time
lock = threading.Lock()
def work():
    while True:
        sum(range(3000))
        time.sleep(0.01)
threading.Thread(target=work, daemon=True).start()
lock.acquire()
lock.acquire()
"""


@pytest.fixture
def job() -> Iterator[int]:
    """A program that hangs."""
    program = subprocess.Popen([sys.executable, "-c", LOCKED])
    yield program.pid
    program.kill()
    program.wait()


def test_a_verdict_comes_out_again_from_the_recording(job: int, tmp_path: Path) -> None:
    """To the last word, however long judging takes (each look at the clock 10 ms here) and whatever was told late."""
    (tmp_path / "s").mkdir(mode=0o700)
    about = session(root_pids=(job,), conditions={"patience_seconds": 5.0})
    recorder, passed, news = Recorder(tmp_path / "s", about), itertools.count(), list[News]()
    watch = Watch(
        [job],
        about,
        recorder=recorder,
        on_news=news.append,
        eager=True,
        clock=lambda: time.monotonic() + 0.01 * next(passed),
    )
    ends = time.monotonic() + PATIENCE_SECONDS
    while not any(one.kind == "verdict" for one in news) and time.monotonic() < ends:
        time.sleep(min(0.2, watch.tick()))
    watch.close()
    recorder.close(PATIENCE_SECONDS)
    recording = load(tmp_path / "s")

    assert [event.kind for event in recording.events][-1:] == ["verdict"]
    for event in recording.events:
        again = diagnose(recording.until(event.at), event.at)
        assert event.verdict is not None
        assert (again.summary, again.evidence) == (event.verdict.summary, event.verdict.evidence)
    assert any(one.known_at for one in recording.records if isinstance(one.reading, r.Stack))
