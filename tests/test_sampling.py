"""When a suspect is sampled again."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.watching import cadence
from perfwatch.watching.attention import Schedule
from perfwatch.watching.probes_of_job import Look
from perfwatch.watching.sampling import Sampling
from perfwatch.watching.sources import Sources
from perfwatch_probes.readings import Frame, Reading, Thread, Wait
from tests.sessions import session
from tests.triage.rank_looks import FIRST, MODULE, job, process, runs

PY_SPY = """#!/bin/sh
[ "$1" = record ] && read released < {fifo}
exit 1
"""


@pytest.mark.live
def test_a_suspect_is_sampled_again_as_soon_as_a_late_record_of_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a crowded machine a record takes longer than it was meant to: that costs no turn."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "py-spy").write_text(PY_SPY.format(fifo=fifo))
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setenv("PERFWATCH_PY_SPY", str(tmp_path / "py-spy"))
    history, clock = History(), [0.0]

    def sink(readings: Sequence[Reading]) -> None:
        for reading in readings:
            history.add(clock[0], reading)

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        look = Look(sink=sink)
        look.processes([program.pid])
        sampling = Sampling(look, Sources(look), history, Schedule(lambda: clock[0]), lambda: clock[0])
        sampling.begin()
        case = Case(history, session(root_pids=(program.pid,)))
        sampling.of_suspect(case, None, certain=False)
        (first,) = look.records
        clock[0] = cadence.RECORD_SECONDS + 0.6
        sampling.of_suspect(case, None, certain=False)
        still = list(look.records)
        fifo.write_text("released\n")
        while look.records:
            look.collect()
        clock[0] += 2 * cadence.COLLECT_SECONDS
        sampling.of_suspect(case, None, certain=False)
        again = list(look.records)
        look.close()
        program.communicate(b"\n")

    assert still == [first]
    assert len(again) == 1


class Texts(Look):
    """A look that takes no stacks, and remembers whose variables it was to read."""

    def __init__(self) -> None:
        super().__init__(sink=lambda _: None)
        self.read: list[int] = []

    def dump(self, pids: Sequence[int], texts: bool = False) -> list[Reading]:
        """None."""
        self.read += pids if texts else []
        return []

    def behind(self, found: Iterable[Thread], awaited: Mapping[int, str] | None = None) -> None:
        """Nothing is looked at."""

    def source(self, pid: int, frame: Frame) -> None:
        """Nor is a line read."""


def test_the_variables_of_one_that_looks_for_a_file_are_read_once_and_those_of_the_next_with_its_pid_too() -> None:
    """Its path is in them; a pid is used again."""
    takes = (Frame("acquire", "/v/site-packages/filelock/_api.py", 300), MODULE)
    history, look, clock = job(1, trained=False), Texts(), [0.0]
    runs(history, FIRST, (takes,), 0.0, 9.0, share=0.004, wait=Wait(call="clock_nanosleep", number=230, kind="sleep"))
    case = Case(history, session(root_pids=(FIRST,)))
    sampling = Sampling(look, Sources(look), history, Schedule(lambda: clock[0]), lambda: clock[0])
    read = []
    for start_ticks in (1, 1, 2):
        look.known[FIRST] = msgspec.structs.replace(process(FIRST, 1, "python train.py"), start_ticks=start_ticks)
        sampling.begin()
        clock[0] += cadence.dump_seconds(0, certain=True)
        sampling.of_suspect(case, None, certain=True)
        read.append(list(look.read))

    assert read == [[FIRST], [FIRST], [FIRST, FIRST]]
