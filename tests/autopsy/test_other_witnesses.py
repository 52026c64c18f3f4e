"""RAS answers and stacks of a job that stood, where there are no dumps of its flight recorders."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.autopsy.left_files import judged, ranks


def answer(counts: dict[int, int], missing: tuple[int, ...] = ()) -> str:
    """What RAS says of one communicator, as NCCL 2.28 writes it."""
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    members = [
        {"rank": rank, "host": "10.0.0.1", "pid": 600 + rank, "cuda_dev": rank, "nvml_dev": rank, "status": status,
         "collective_counts": {"AllReduce": count, "Broadcast": 3}} for rank, count in counts.items()
    ]  # fmt: skip
    absent = [
        {"rank": rank, "host": "10.0.0.2", "pid": 700 + rank, "cuda_dev": 0, "nvml_dev": 0,
         "status": {"unresponsive": True, "considered_dead": True}} for rank in missing
    ]  # fmt: skip
    size = len(members) + len(absent)
    group: dict[str, Any] = {"hash": "0xa1b2", "size": size, "ranks_count": len(members), "ranks": members,
                             "missing_ranks_count": len(absent), "missing_ranks": absent}  # fmt: skip
    return json.dumps({"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [group]})


def stack(pid: int, function: str, file: str, line: int) -> str:
    """A dump of a process, as py-spy prints it."""
    called = "    all_reduce (torch/distributed/distributed_c10d.py:3012)\n" if function == "all_reduce" else ""
    called = called.replace("torch/", "/opt/venv/lib/python3.11/site-packages/torch/")
    own = f"    {'step' if called else function} ({file}:{line})\n"
    return (
        f"Process {pid}: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
        f'Thread {pid + 5} (idle): "pt_nccl_watchdg"\n    run (/usr/lib/python3.11/threading.py:982)\n'
        f'Thread {pid} (active+gil): "MainThread"\n{called}{own}    <module> (/srv/train.py:80)\n'
    )


def write(folder: Path, **texts: str) -> Path:
    """A folder of files by name."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    return folder


def test_a_rank_that_called_less_often_is_at_fault_surely_where_two_answers_agree(tmp_path: Path) -> None:
    """Of one answer alone it is to be checked."""
    counts = {0: 90, 1: 88, 2: 90}
    once = judged(write(tmp_path, ras_1=answer(counts)))
    twice = judged(write(tmp_path, ras_2=answer(counts)))

    assert (twice.state, twice.cause) == ("hung", "stalled_collective")
    assert ranks(once) == ranks(twice) == [1]
    assert once.confidence < 0.8 < twice.confidence
    assert (twice.culprits[0].pid, twice.culprits[0].host) == (601, "10.0.0.1")


def test_counts_that_grow_are_of_a_job_that_goes_on(tmp_path: Path) -> None:
    """Its ranks are a few launches apart, as of any."""
    verdict = judged(write(tmp_path, ras_1=answer({0: 90, 1: 88}), ras_2=answer({0: 120, 1: 121})))

    assert verdict.state == "inconclusive"


def test_a_rank_that_ras_does_not_reach_is_at_fault(tmp_path: Path) -> None:
    """It is dead, or its machine is."""
    assert ranks(judged(write(tmp_path, ras=answer({0: 90, 1: 90}, missing=(2,))))) == [2]


@pytest.mark.parametrize("suffix", ["", ".txt"])
def test_stacks_alone_show_who_was_elsewhere(tmp_path: Path, suffix: str) -> None:
    """One rank in its own code, the others in a collective: to be checked, for a stack is of one moment."""
    for rank in (0, 1, 2):
        text = stack(600 + rank, "all_reduce" if rank != 1 else "load_shard", "/srv/data.py", 41)
        (tmp_path / f"rank_{rank}{suffix}").write_text(text)
    verdict = judged(tmp_path)

    assert (verdict.cause, ranks(verdict)) == ("stalled_collective", [1])
    assert verdict.culprits[0].frame == "load_shard (data.py:41)"
    assert verdict.culprits[0].pid == 601
    assert verdict.confidence < 0.8


def test_stacks_in_which_nobody_waits_tell_nothing(tmp_path: Path) -> None:
    """Missing is not zero."""
    for rank in (0, 1):
        (tmp_path / f"rank_{rank}").write_text(stack(600 + rank, "load_shard", "/srv/data.py", 41))

    assert judged(tmp_path).state == "inconclusive"
