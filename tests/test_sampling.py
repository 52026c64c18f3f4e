"""When a suspect is sampled again."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfwatch.probes.readings import Reading
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.watching import cadence
from perfwatch.watching.attention import Schedule
from perfwatch.watching.look import Look
from perfwatch.watching.sampling import Sampling
from perfwatch.watching.sources import Sources
from tests.sessions import session

PY_SPY = """#!/bin/sh
[ "$1" = record ] && read released < {fifo}
exit 1
"""


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
