"""``perfwatch ps --judge``: a verdict on each job, in a bounded time."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from perfwatch.jobs.discovery import Listing
from tests.test_jobs import listed_job

pytestmark = [pytest.mark.live, pytest.mark.end_to_end]

SLEEPS = """
import mmap, sys, time
file = open(sys.argv[1], "rb")
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
print("ready", flush=True)
time.sleep(10**6)
"""
# In a process of its own, as it forks.
JUDGES = """
import sys, time, msgspec
from perfwatch.attach import judging
from perfwatch.jobs.discovery import Listing
judging.MOST_SECONDS = float(sys.argv[1])
listing = msgspec.json.decode(sys.stdin.buffer.read(), type=Listing)
sys.stdout.buffer.write(msgspec.json.encode(judging.judged(listing, sys.stderr)))
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Listing]:
    """Six of them, more than are looked at together."""
    library = tmp_path / "libtorch_cpu.so"
    library.write_bytes(bytes(4096))
    command = [sys.executable, "-c", SLEEPS, str(library)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) for _ in range(6)]
    for one in started:
        assert one.stdout is not None
        one.stdout.readline()
    yield Listing(jobs=tuple(listed_job(one.pid) for one in started), hidden=0)
    for one in started:
        one.kill()
        one.communicate()


def judged(listing: Listing, seconds: float) -> tuple[Listing, str]:
    """The listing with verdicts, and what was said meanwhile."""
    command = [sys.executable, "-c", JUDGES, str(seconds)]
    done = subprocess.run(command, input=msgspec.json.encode(listing), capture_output=True, timeout=120, check=True)
    return msgspec.json.decode(done.stdout, type=Listing), done.stderr.decode()


def test_each_job_gets_a_verdict(jobs: Listing) -> None:
    """Of its own process, and how far it is is said."""
    found, said = judged(jobs, 60.0)

    verdicts = {one.pid: one.verdict for one in found.jobs}
    assert all(one is not None and (one.state, one.by) == ("hung", "judge") for one in verdicts.values()), verdicts
    assert all(one is not None and str(pid) in one.summary for pid, one in verdicts.items())
    assert "judging 6 jobs: 5.0 s of samples each, at most 70 s" in said


def test_what_has_no_time_left_stays_without_a_verdict(jobs: Listing) -> None:
    """Instead of a command that does not come back."""
    found, _ = judged(jobs, 0.0)

    assert [one.verdict for one in found.jobs] == [None] * 6
