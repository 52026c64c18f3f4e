"""A flight-recorder dump that a rank writes later than it was asked for is not lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch_probes.group_variables import PIPE_VARIABLE
from perfwatch_probes.readings import Frame, Reading, Stack, Thread
from tests.watched_groups import Watched, dumps

pytestmark = pytest.mark.live

RECORDED = Path(__file__).parent / "probes" / "nccl"
REDUCES = (
    Frame("all_reduce", "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py", 3068),
    Frame("average", "/srv/train.py", 20),
    Frame("<module>", "/srv/train.py", 40),
)
ANSWERS = """
import os, sys
pipe = os.open(sys.argv[1], os.O_RDWR)
print("ready", flush=True)
while os.read(pipe, 1):
    open(sys.argv[3], "wb").write(open(sys.argv[2], "rb").read())
"""


def test_what_a_rank_writes_too_late_for_the_question_is_read_yet(tmp_path: Path) -> None:
    """Of two that wait for each other one answers at once; beside its dump lies the other's a while later."""
    environment = {
        "PATH": os.environ["PATH"],
        PIPE_VARIABLE: f"{tmp_path}/fr_",
        "TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_",
    }
    recorded = [RECORDED / f"fr_torch2.11_hung_rank{rank}.pickle" for rank in range(2)]
    for rank in range(2):
        os.mkfifo(tmp_path / f"fr_{rank}.pipe")
    answers = [sys.executable, "-c", ANSWERS, f"{tmp_path}/fr_0.pipe", str(recorded[0]), f"{tmp_path}/dump_0"]
    ours = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for command in (answers, ["sleep", "600"])
    ]
    try:
        assert ours[0].stdout is not None
        assert ours[0].stdout.readline()
        watched = Watched([one.pid for one in ours])
        history = watched.case.history
        for pid in (one.pid for one in ours):
            history.add(
                0.0, Thread(pid=pid, tid=pid, name="pt_nccl_watchdg", state="S", cpu_seconds=1.0, ran_ago_seconds=30.0)
            )
            history.add(0.0, Stack(pid=pid, tid=pid, frames=REDUCES))
        first: list[Reading] = []
        while not dumps(first):
            first += watched.look()
            watched.clock.now += 1.0
        (tmp_path / "dump_1").write_bytes(recorded[1].read_bytes())
        then: list[Reading] = []
        for _ in range(60):
            then += watched.look()
            watched.clock.now += 1.0
    finally:
        for one in ours:
            one.kill()
            one.communicate()

    assert dumps(first) == [(0, 3217, "pipe")]
    assert (1, 3198, "file") in dumps(then)
    watched.groups.close()
