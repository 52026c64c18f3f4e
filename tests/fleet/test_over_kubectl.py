"""``perfwatch fleet --kubernetes`` through a real kubectl: what its streams carry, how it ends, and real ranks in pods."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.machines import PATIENCE_SECONDS, free_port
from tests.fleet.pods import LABELS, Pods, pods, why_not
from tests.fleet.stuck_ranks import assert_named, stuck_ranks

pytestmark = pytest.mark.live

FAKE = Path(__file__).parent / "fake_host.py"
DEADLINE_SECONDS = 10.0
DOES = {
    "train-0": "0",
    "train-1": "1",
    "train-broken": "broken",
    "train-bare": "missing",
    "train-flood": "flood",
    "train-hang": "hang",
}
TWO = ("train-0", "train-1")


def fleet(made: Pods, folder: Path, *words: str, selector: str = LABELS) -> "subprocess.CompletedProcess[str]":
    """Run the command as a user would."""
    command = [sys.executable, "-m", "perfwatch", "fleet", "--json", "--kubernetes", selector, *words]
    names = {**os.environ, "KUBECONFIG": str(made.config), "PERFWATCH_DIR": str(folder)}
    return subprocess.run(command, env=names, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


@pytest.fixture(scope="module")
def sick() -> Iterator[Pods]:
    """Two pods that answer; others that do not do as they should, one in which nobody may run anything, one that is gone."""
    if reason := why_not():
        pytest.skip(reason)
    with pods(*DOES, "train-shut", gone="train-gone") as made:
        made.refused["train-shut"] = (
            403,
            'pods "train-shut" is forbidden: User "me" cannot create resource "pods/exec"',
        )
        yield made


@pytest.fixture(scope="module")
def answer(sick: Pods, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any]]:
    """What the whole fleet says."""
    folder = tmp_path_factory.mktemp("pods")
    does = folder / "does"
    does.write_text(json.dumps(DOES))
    words = ("--command", f"{sys.executable} {FAKE} {does}", "--deadline", str(DEADLINE_SECONDS), "--seconds", "1")
    done = fleet(sick, folder / "sessions", *words)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_one_verdict_comes_out_whatever_other_pods_do(answer: tuple[int, dict[str, Any]]) -> None:
    """The stuck worker is named, in its pod; the exit code is that of a hang."""
    code, said = answer
    (culprit,) = said["verdict"]["culprits"]

    assert (code, said["verdict"]["cause"]) == (30, "stalled_collective")
    assert (culprit["rank"], culprit["host"], culprit["worker_pid"]) == (9, "train-1", 2000)
    assert said["verdict"]["coverage"] == {"ranks_seen": 16, "world_size": 16}


def test_what_became_of_each_pod_is_said_in_the_words_of_who_failed(answer: tuple[int, dict[str, Any]]) -> None:
    """Not in kubectl's, which closes with the exit code of any program that fails."""
    state = {one["host"]: (one["state"], one["reason"]) for one in answer[1]["hosts"]}
    (late,) = [one for one in answer[1]["hosts"] if one["host"] == "train-hang"]

    assert state["train-0"][0] == state["train-1"][0] == "answered"
    assert state["train-broken"] == ("failed", "perfwatch: PermissionError: /var/tmp")
    assert (late["state"], late["advice"]) == ("silent", "kubectl exec train-hang -- true")
    assert state["train-flood"][0] == "garbled"
    assert state["train-bare"][0] == "failed"
    assert "perfwatch could not be started there: sh: 1: exec: /no/such/perfwatch: not found" in state["train-bare"][1]
    assert 'cannot create resource "pods/exec"' in state["train-shut"][1]
    assert 'pods "train-gone" not found' in state["train-gone"][1]


def test_labels_and_namespaces_without_pods_are_no_target(sick: Pods, tmp_path: Path) -> None:
    """With the command that shows which there are."""
    for words, selector in ((("--options", "--namespace=web"), LABELS), ((), "app=other")):
        done = fleet(sick, tmp_path, *words, selector=selector)

        assert done.returncode == 3, done.stderr
        assert f"no pod has the labels {selector}" in done.stderr
        assert f"{' '.join(['kubectl', *words[1:], 'get', 'pods'])} --show-labels" in done.stderr


@pytest.mark.end_to_end
def test_the_worker_of_a_rank_in_another_pod_is_named_in_a_real_job(repository: Path, tmp_path: Path) -> None:
    """Four gloo ranks in two pods; the stuck worker of rank 1 in the second is found, with its line."""
    if reason := why_not():
        pytest.skip(reason)
    with pods(*TWO) as made, stuck_ranks(repository, tmp_path, TWO, made.start, str(free_port())):
        done = fleet(made, tmp_path / "sessions", "--command", f"{sys.executable} -m perfwatch", "--seconds", "15")
        assert_named(TWO, done.returncode, json.loads(done.stdout))
