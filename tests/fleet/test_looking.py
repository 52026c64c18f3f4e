"""Which jobs of a host are looked at for ``perfwatch fleet``."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from perfwatch.fleet.looking import JobLook, chosen
from perfwatch.jobs.discovery import FoundJob, find_jobs
from perfwatch.recording.recording import load
from perfwatch.watching.probes_of_job import Look
from perfwatch.watching.watch import Watch
from perfwatch_probes import readings as r
from perfwatch_probes.deadline import Inline, KillableChild
from tests.machines import FakeMachine


def test_ranks_that_say_nothing_of_slurm_may_be_of_its_job_and_those_of_another_job_are_not(tmp_path: Path) -> None:
    """A script of Slurm's that starts ranks by ssh hands its variables to nobody."""
    machine = FakeMachine(tmp_path)
    for number, slurm in enumerate(("SLURM_JOB_ID=12 SLURM_STEP_ID=0", "SLURM_JOB_ID=13 SLURM_STEP_ID=0", "")):
        environ = f"RANK=0 WORLD_SIZE=2 MASTER_ADDR=node-a MASTER_PORT={29500 + number} {slurm}".strip()
        machine.process(100 + number, 1, environ=environ)
    every, _ = find_jobs(machine.filesystem, Inline())

    found, unwanted = chosen(every, "", "slurm job 12 step ")
    assert ([one.tops[0].pid for one in found], unwanted) == ([100, 102], 0)
    found, unwanted = chosen(every, "node-a:29500", "slurm job 12 step ")
    assert ([one.tops[0].pid for one in found], unwanted) == ([100], 1)


class NothingCollected(Look):
    """Brings no sample back."""

    def collect(self) -> list[tuple[float, r.Reading]]:
        """Never."""
        raise RuntimeError("no sample")


@pytest.fixture
def found(tmp_path: Path) -> Iterator[FoundJob]:
    """A job of one process, which stands."""
    machine = FakeMachine(tmp_path / "machine")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        machine.process(program.pid, 1)
        yield find_jobs(machine.filesystem, Inline())[0][0]
        program.kill()


@pytest.mark.live
def test_a_job_that_cannot_be_told_keeps_no_other_from_the_snapshot(
    found: FoundJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recording says what failed."""
    monkeypatch.setenv("PERFWATCH_DIR", str(tmp_path / "sessions"))
    child = KillableChild()
    looks = [JobLook(found, 60.0, child, 0, watch) for watch in (partial(Watch, look=NothingCollected), Watch)]
    child.close()
    for one in looks:
        one.tick()
    views = [one.view() for one in looks]
    for one in looks:
        one.close()

    assert [view is not None for view in views] == [False, True]
    notes = [event.text for path in (tmp_path / "sessions").iterdir() for event in load(path).events]
    assert notes.count("internal error: RuntimeError: no sample") == 2
