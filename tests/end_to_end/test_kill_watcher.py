"""kill -9 perfwatch at random moments: the job is never stopped, left with a tracer, or delayed, and nothing of ours stays.

Few kills by default; PERFWATCH_KILLS=200 for the full run, PERFWATCH_SEED for other moments.
"""

import os
import random
import select
import subprocess
from pathlib import Path

import pytest

from perfwatch_probes.stacks import left_traced
from tests.end_to_end.conftest import PERFWATCH, Job, StartJob, until

pytestmark = [pytest.mark.live, pytest.mark.end_to_end]
KILLS = int(os.environ.get("PERFWATCH_KILLS", "5"))
SEED = int(os.environ.get("PERFWATCH_SEED", "20261120"))
LATEST_SECONDS = 4.0  # an attach starts within 1 s, dumps and records stacks within 3 s more
STRAY_SECONDS = 5.0  # the writer stores what is in its pipe before it ends
MARK = f"/perfwatch-was-killed-here-{os.getpid()}"  # on PATH, the one variable that also py-spy gets from us


def marked() -> list[str]:
    """Processes that descend from a perfwatch that we started, the job's own excepted."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and MARK.encode() in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if "trainer.py" not in command or " -m perfwatch " in command:
                    found.append(f"{folder.name}: {(folder / 'comm').read_text().strip()}: {command}")
        except OSError:
            continue  # it has ended
    return found


def unharmed(job: Job) -> None:
    """Nobody holds or has stopped a thread of the job, it goes on, and nothing of ours is left."""
    until(lambda: not marked(), STRAY_SECONDS)
    assert [left_traced(pid) for pid in (job.pid, *job.workers)] == [[]] * (1 + len(job.workers))
    before = job.steps()
    assert job.steps() > before


def moment(chance: random.Random) -> None:
    """Let a random time pass: the one thing that is to be tried out."""
    select.select([], [], [], chance.uniform(0.0, LATEST_SECONDS))


def test_attach_is_killed(job: StartJob, tmp_path: Path) -> None:
    """At any moment of its life, a --watch that never ends by itself."""
    chance = random.Random(SEED)
    trainer = job(workers=2)
    environment = {
        **os.environ,
        "PATH": f"{os.environ['PATH']}:{MARK}",
        "PERFWATCH_DIR": str(tmp_path),
    }

    for _ in range(KILLS):
        with subprocess.Popen(
            [*PERFWATCH, "attach", str(trainer.pid), "--watch"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        ) as look:
            moment(chance)
            assert look.poll() is None
            assert marked()
            look.kill()
        unharmed(trainer)

    assert trainer.finish() == 0


def test_the_launcher_of_run_is_killed(job: StartJob, tmp_path: Path) -> None:
    """The job makes its steps without it and ends by itself, at once and well."""
    chance = random.Random(SEED + 1)
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}:{MARK}", "PERFWATCH_DIR": str(tmp_path)}

    for _ in range(KILLS):
        trainer = job(*PERFWATCH, "run", "-q", "--", workers=1, env=environment)
        moment(chance)
        assert marked()
        trainer.process.kill()
        trainer.process.wait()
        unharmed(trainer)
        ended = os.pidfd_open(trainer.pid)
        assert trainer.process.stdin is not None
        trainer.process.stdin.close()
        ready, _, _ = select.select([ended], [], [], 5.0)
        os.close(ended)

        assert ready, "the job did not end"
