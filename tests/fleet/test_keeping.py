"""A look at many hosts is kept, and judged again it is the same verdict, for the same hosts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch.fleet.asking import Question, ask
from perfwatch.fleet.engine import Answer
from perfwatch.fleet.keeping import keep
from perfwatch.fleet.merge.fleet_recording import MODE
from tests.fleet.parts import simulated
from tests.fleet.test_asking import Spoken, snapshot

pytestmark = pytest.mark.live

PATIENCE_SECONDS = 60.0


def replayed(folder: Path) -> dict[str, object]:
    """What ``perfwatch replay --json`` prints."""
    command = [sys.executable, "-m", "perfwatch", "replay", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 30, done.stderr
    said: dict[str, object] = json.loads(done.stdout)
    return said


def test_a_recorded_look_at_many_hosts_is_judged_as_it_was(tmp_path: Path) -> None:
    """The culprit is on the same host, with the pid that it has there; a host that was silent still is."""
    first, second, _ = simulated(3, stuck_rank=9)
    engine = Spoken({"a": snapshot("a", first.view), "b": snapshot("b", second.view), "c": Answer("c", timed_out=True)})
    outcome = ask(engine, Question())
    folder, loss = keep(str(tmp_path / "session"), outcome.merged, outcome.said, outcome.verdict)
    assert (folder, loss) == (tmp_path / "session", "")
    again = replayed(tmp_path / "session")
    live = json.loads(json.dumps([(one.rank, one.pid, one.worker_pid, one.host) for one in outcome.verdict.culprits]))

    assert outcome.merged.session.mode == MODE
    assert (again["state"], again["cause"], again["summary"]) == (
        outcome.verdict.state,
        outcome.verdict.cause,
        outcome.verdict.summary,
    )
    assert [[c["rank"], c["pid"], c["worker_pid"], c["host"]] for c in again["culprits"]] == live  # type: ignore[attr-defined]
    assert live == [[9, 1001, 2000, "b"]]
    assert any(one["source"] == "host c" for one in again["not_observed"])  # type: ignore[attr-defined]
