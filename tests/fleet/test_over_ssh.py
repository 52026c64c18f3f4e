"""``perfwatch fleet --hosts`` over real sshds: one verdict, whatever single hosts do, and real ranks that meet over gloo."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfwatch.errors import UsageError
from perfwatch.fleet.over_ssh import OverSsh
from tests.fleet.machines import PATIENCE_SECONDS, Hosts, hosts, why_not
from tests.fleet.stuck_ranks import assert_named, stuck_ranks

pytestmark = pytest.mark.live

pytest.importorskip("ClusterShell", reason="ClusterShell is not installed: python -m pip install ClusterShell")

FAKE = Path(__file__).parent / "fake_host.py"
DOES = {
    "node-0": "0",
    "node-1": "1",
    "node-garbage": "garbage",
    "node-flood": "flood",
    "node-hang": "hang",
    "node-bare": "missing",
    "node-broken": "broken",
}
DEADLINE_SECONDS = 20.0  # for eight sshds that start their programs at once, on two cores that have other work
TWO = ("node-a", "node-b")


def fleet(made: Hosts, *words: str, among: str) -> tuple[int, dict[str, Any]]:
    """Run the command as a user would: its exit code and its JSON."""
    command = [
        sys.executable,
        "-m",
        "perfwatch",
        "fleet",
        "--json",
        "--hosts",
        among,
        "--options",
        made.options,
        *words,
    ]
    names = {**os.environ, "PERFWATCH_DIR": str(made.folder / "sessions")}
    done = subprocess.run(command, env=names, capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def sick() -> Iterator[Hosts]:
    """Two hosts that answer, and six that do not do as they should."""
    if reason := why_not():
        pytest.skip(reason)
    with hosts(*DOES, silent="node-login") as made:
        (made.folder / "does").write_text(json.dumps({str(made.ports[name]): does for name, does in DOES.items()}))
        yield made


@pytest.fixture(scope="module")
def answer(sick: Hosts) -> tuple[int, dict[str, Any], float]:
    """What the whole fleet says, and how long that took."""
    began = time.monotonic()
    command = f"{sys.executable} {FAKE} {sick.folder / 'does'}"
    words = ("--command", command, "--deadline", str(DEADLINE_SECONDS), "--seconds", "1")
    code, said = fleet(sick, *words, among=",".join(sick.ports))
    return code, said, time.monotonic() - began


def test_one_verdict_comes_out_whatever_other_hosts_do(answer: tuple[int, dict[str, Any], float]) -> None:
    """The stuck worker is named, on its host; the exit code is that of a hang."""
    code, said, _ = answer
    (culprit,) = said["verdict"]["culprits"]

    assert (code, said["verdict"]["cause"]) == (30, "stalled_collective")
    assert (culprit["rank"], culprit["host"], culprit["worker_pid"]) == (9, "node-1", 2000)
    assert said["verdict"]["coverage"] == {"ranks_seen": 16, "world_size": 16}


def test_what_became_of_each_host_is_said(answer: tuple[int, dict[str, Any], float]) -> None:
    """Garbage, a flood, a command that hangs, a login that hangs, no perfwatch at all, and one that fails after a greeting."""
    state = {one["host"]: (one["state"], one["reason"]) for one in answer[1]["hosts"]}

    assert state["node-0"][0] == state["node-1"][0] == "answered"
    assert state["node-garbage"] == ("garbled", "its answer is torn: 1 of 2 parts arrived")
    assert state["node-flood"][0] == "garbled"
    assert state["node-hang"][0] == "silent"
    waited = re.match(r"no answer within (\d+) s", state["node-hang"][1])  # a login shell may have said something
    assert waited is not None
    assert int(waited[1]) >= DEADLINE_SECONDS
    assert state["node-login"][0] == "silent"
    assert state["node-bare"][0] == "failed"
    assert "not found" in state["node-bare"][1]
    assert state["node-broken"] == ("failed", "perfwatch: PermissionError: /var/tmp")


def test_hosts_that_hang_are_not_waited_for_until_they_answer(answer: tuple[int, dict[str, Any], float]) -> None:
    """They sleep for ten minutes."""
    assert answer[2] < PATIENCE_SECONDS


def test_their_clock_is_told_where_it_differs(answer: tuple[int, dict[str, Any], float]) -> None:
    """The simulated hosts live in another year; their readings are compared by age all the same."""
    skews = {one["host"]: one["skew_seconds"] for one in answer[1]["hosts"] if one["state"] == "answered"}

    assert all(abs(skew) > 3600 for skew in skews.values())


def test_without_clustershell_the_error_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an optional extra."""
    monkeypatch.setitem(sys.modules, "ClusterShell.NodeSet", None)

    with pytest.raises(UsageError) as failed:
        OverSsh("node-a")
    assert failed.value.advice.endswith(" install 'ClusterShell>=1.9'")


@pytest.mark.parametrize("wrong", ["a[", "a[1-99999999999]", "", "@nosuchgroup", "a,-oProxyCommand=id"])
def test_a_set_of_hosts_that_makes_no_sense_is_refused(wrong: str) -> None:
    """With an example."""
    with pytest.raises(UsageError, match="--hosts"):
        OverSsh(wrong)


@pytest.mark.end_to_end
def test_the_worker_of_a_rank_on_another_host_is_named_in_a_real_job(repository: Path, tmp_path: Path) -> None:
    """Four gloo ranks on two hosts; from the first, the stuck worker of rank 1 on the second is found, with its line."""
    if reason := why_not():
        pytest.skip(reason)
    with hosts(*TWO) as made:
        port = str(made.ports[TWO[0]] - 1)
        with stuck_ranks(repository, tmp_path, TWO, made.start, port):
            assert_named(TWO, *fleet(made, "--seconds", "15", among=",".join(TWO)))
