"""``capture stacks``: everybody on one page, the odd one out first; a pause only where the design allows one."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from perfwatch.captures import stacks
from perfwatch.captures.capture import Request, Subject
from perfwatch.errors import CaptureFailed, CaptureRefused, PermissionDenied
from perfwatch.processes.place import start_ticks
from perfwatch_probes.deadline import KillableChild
from tests.captures.windows import RecordedWindow, finished, scene
from tests.command_line import perfwatch
from tests.uids import own_uid

ALIKE = "import sys\ndef waiting():\n    sys.stdin.readline()\nprint(1, flush=True)\nwaiting()\n"
ODD = "import sys\ndef sleeping():\n    import time; time.sleep(1000)\nprint(1, flush=True)\nsleeping()\n"


@pytest.fixture
def ranks() -> Iterator[tuple[Subject, ...]]:
    """Three ranks; the second stands apart."""
    jobs = [
        subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for text in (ALIKE, ODD, ALIKE)
    ]
    for job in jobs:
        assert job.stdout is not None
        job.stdout.readline()
    yield tuple(Subject(job.pid, start_ticks(job.pid) or 0, rank=rank) for rank, job in enumerate(jobs))
    for job in jobs:
        job.kill()
        job.communicate()


@pytest.mark.live
@pytest.mark.end_to_end
def test_equal_stacks_are_one_and_the_odd_one_stands_apart(ranks: tuple[Subject, ...], tmp_path: Path) -> None:
    """Two groups, with their ranks; every thread is in the file below the page."""
    window = RecordedWindow(tmp_path / "w")
    brought = stacks.collect(Request(kind="stacks"), scene(*ranks), window)

    groups = brought.report["groups"]
    assert [group["ranks"] for group in groups] == [[1], [0, 2]]  # type: ignore[attr-defined]
    assert "ranks 0,2 (2 of 3)" in brought.summary
    text = (window.folder / "stacks.txt").read_text()
    assert f"rank 1, pid {ranks[1].pid}" in text
    assert "sleeping (<string>:3)" in text
    assert len(brought.readings) == 3
    assert window.commands == []  # nothing but nonblocking dumps, which the probe makes


@pytest.mark.live
@pytest.mark.end_to_end
def test_a_rank_that_has_ended_is_named_and_the_others_are_shown(ranks: tuple[Subject, ...], tmp_path: Path) -> None:
    """All gone: an error."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    subject = Subject(gone.pid, 1, rank=7)

    brought = stacks.collect(Request(kind="stacks"), scene(ranks[0], subject), RecordedWindow(tmp_path / "w"))
    assert brought.notes == (f"no stack of pid {gone.pid}: pid {gone.pid} is no more",)
    with pytest.raises(CaptureFailed, match="is no more"):
        stacks.collect(Request(kind="stacks"), scene(subject), RecordedWindow(tmp_path / "v"))


NATIVE = Request(kind="stacks", options={"native": "yes"})


@pytest.mark.parametrize("state", ["", "healthy", "slow", "busy", "inconclusive"])
def test_native_frames_are_for_a_confirmed_hang_alone(state: str) -> None:
    """A suspicion is not enough: the pause would fall on a job that may be well."""
    with pytest.raises(CaptureRefused, match="for a confirmed hang alone; a hang is suspected"):
        stacks.available(NATIVE, scene(state=state, suspected="hung"))
    seen = "seen: the job is" if state not in ("", "inconclusive") else "confirmed"
    with pytest.raises(CaptureRefused, match=f"for a confirmed hang alone; no hang is {seen}"):
        stacks.available(NATIVE, scene(state=state))


def test_native_frames_are_for_named_ranks(tmp_path: Path) -> None:
    """Not for all 512."""
    many = tuple(Subject(700 + rank, 1, rank=rank) for rank in range(8))

    with pytest.raises(CaptureRefused, match="would pause 8 ranks"):
        stacks.available(NATIVE, scene(*many, state="hung", proc=tmp_path))
    stacks.available(
        Request(kind="stacks", ranks=(3,), options={"native": "yes"}), scene(*many, state="hung", proc=tmp_path)
    )


@pytest.mark.parametrize("state", ["D", "T", "t"])
def test_native_frames_are_refused_while_a_thread_is_blocked_in_the_kernel(tmp_path: Path, state: str) -> None:
    """A pause would wait for it, perhaps for ever."""
    for tid, now in ((700, "S"), (705, state)):
        (tmp_path / f"700/task/{tid}").mkdir(parents=True)
        (tmp_path / f"700/task/{tid}/stat").write_text(f"{tid} (a (thread)) {now} 1 1 1")

    with pytest.raises(CaptureRefused, match="thread 705 of pid 700 is blocked"):
        stacks.available(NATIVE, scene(state="hung", proc=tmp_path))


def test_the_pause_of_native_frames_is_told(tmp_path: Path) -> None:
    """As an upper bound; the frames of C are in the stack."""
    native = (
        '[{"thread_id": 7, "os_thread_id": 700, "thread_name": "MainThread", "owns_gil": false, "frames": ['
        '{"name": "cudaStreamSynchronize", "filename": "libcudart.so", "line": 0},'
        '{"name": "step", "filename": "/app/train.py", "line": 9}]}]'
    )

    def answer(command: tuple[str, ...], environment: Mapping[str, str]) -> object:
        assert "--nonblocking" not in command
        return finished(0, native)

    window = RecordedWindow(tmp_path / "w", answer)  # type: ignore[arg-type]
    brought = stacks.collect(NATIVE, scene(state="hung", proc=tmp_path), window)

    assert brought.notes == ("rank 0 was paused for at most 100 ms",)
    assert [one["target_paused_seconds"] for one in brought.readings if one["type"] == "ProbeCall"] == [0.1]
    assert "cudaStreamSynchronize" in brought.summary
    assert window.commands[0][1:3] == ("dump", "--native")


@pytest.mark.live
def test_the_page_is_private(tmp_path: Path, ranks: tuple[Subject, ...]) -> None:
    """Stacks name paths and functions of the job."""
    window = RecordedWindow(tmp_path / "w")
    stacks.collect(Request(kind="stacks"), scene(*ranks), window)

    assert os.stat(window.folder / "stacks.txt").st_mode & 0o777 == 0o600


SECRETS = """
import sys
def waiting(api_token, batch):
    password = "hunter2-hunter2"
    url = "https://ann:pa55-w0rd@host/data"; command = ["--host", "db-7", "--password", "swordf1sh"]
    print(1, flush=True)
    sys.stdin.readline()
waiting("sk-abcdefghij0123456789", [1, 2, 3])
"""


@pytest.fixture
def job() -> Iterator[int]:
    """One process that stands still with secrets in its variables."""
    process = subprocess.Popen(
        [sys.executable, "-c", SECRETS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process.pid
    process.kill()
    process.communicate()


def captured(home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """What the command says; its recordings would go to ``home``."""
    environment = {**os.environ, "PERFWATCH_DIR": str(home)}
    return perfwatch("capture", "stacks", *words, env=environment)


@pytest.mark.live
def test_the_command_samples_at_once_and_leaves_nothing_behind(job: int, tmp_path: Path) -> None:
    """No session, no file, and of the variables not a word; who wants every thread asks for it."""
    done = captured(tmp_path / "home", str(job))
    whole = captured(tmp_path / "home", str(job), "--threads")

    assert done.returncode == 0
    assert "    waiting (<string>:7)" in done.stdout.splitlines()
    assert "batch" not in done.stdout
    assert "every thread" not in done.stdout
    assert f"pid {job}, thread {job} " in whole.stdout
    assert not (tmp_path / "home").exists()


@pytest.mark.live
def test_a_capture_that_is_refused_leaves_no_recording(job: int, tmp_path: Path) -> None:
    """So the newest one is still the one of a job that was judged."""
    environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path / "home")}
    done = perfwatch("capture", "torch", str(job), env=environment)

    assert done.returncode in (61, 62), done
    assert [one.name for one in (tmp_path / "home").iterdir() if not one.name.startswith(".")] == []


@pytest.mark.live
def test_variables_are_shown_on_request_and_secrets_are_not(job: int, tmp_path: Path) -> None:
    """Neither what is called like one, nor what looks like one."""
    done = captured(tmp_path / "home", str(job), "--locals")

    shown = done.stdout.splitlines()
    assert "        batch = [1, 2, 3]" in shown
    assert "        password = [redacted]" in shown
    assert "        api_token = [redacted]" in shown
    assert '        command = ["--host", "db-7", "--password", "[redacted]"]' in shown
    assert not [
        secret for secret in ("hunter2", "abcdefghij", "pa55", "swordf1sh") if secret in done.stdout + done.stderr
    ]


@pytest.mark.live
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [(("--rank", "3"), 62, "the job has no rank 3 on this machine; its ranks have no numbers"), ((), 3, "no process")],
)
def test_a_rank_or_a_job_that_is_not_there_is_said(
    job: int, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    """With the exit code of its kind."""
    done = captured(tmp_path / "home", str(job) if words else "4194304", *words)

    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


STARTS_ITS_RANKS = """
import multiprocessing, sys, time
import torch, torch.distributed as dist
def rank_main(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=3)
    dist.barrier()
    if rank == 2:
        print("ready", flush=True)
        time.sleep(600)
    dist.barrier()
context = multiprocessing.get_context("fork")
ranks = [context.Process(target=rank_main, args=(rank,), daemon=True) for rank in range(3)]
for one in ranks: one.start()
for one in ranks: one.join()
"""


@pytest.fixture
def started_ranks(tmp_path: Path) -> Iterator[int]:
    """A program that starts three ranks itself, without a launcher: its pid, not that of a rank."""
    command = [sys.executable, "-c", STARTS_ITS_RANKS, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        os.killpg(process.pid, 9)


@pytest.mark.live
def test_ranks_that_the_program_has_started_are_found_by_whichever_pid_is_named(
    started_ranks: int, tmp_path: Path
) -> None:
    """The launcher is none of them; ps counts the same ranks."""
    child = next(int(pid) for pid in Path(f"/proc/{started_ranks}/task/{started_ranks}/children").read_text().split())
    of_all = captured(tmp_path / "home", str(started_ranks))
    of_one = captured(tmp_path / "home", str(child), "--rank", "2")
    listed = json.loads(perfwatch("ps", "--json").stdout)

    assert of_all.stdout.startswith("3 ranks, 2 different stacks\nrank 2, pid "), of_all
    assert "ranks 0-1 (2 of 3)" in of_all.stdout
    assert of_one.stdout.startswith("1 rank\nrank 2, pid "), of_one
    ranks = next(one["ranks"] for one in listed["jobs"] if one["pid"] == started_ranks)
    assert [one["rank"] for one in ranks] == [0, 1, 2]


SPAWNS_TRAININGS = """
import torch.multiprocessing as mp, time
import torch
def training(index, queue):
    queue.put(index)
    time.sleep(600)
if __name__ == "__main__":
    queue = mp.get_context("fork").Queue()
    context = mp.start_processes(training, (queue,), nprocs=2, join=False, start_method="fork")
    for _ in range(2): queue.get()
    print("ready", flush=True)
    context.join()
"""


@pytest.mark.live
def test_ranks_of_torchs_spawn_are_found_before_they_make_a_group(tmp_path: Path) -> None:
    """By the stack of the process that waits for them, as a watch finds them."""
    script = tmp_path / "spawns.py"
    script.write_text(SPAWNS_TRAININGS)
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        done = captured(tmp_path / "home", str(process.pid))
        os.killpg(process.pid, 9)

    assert done.stdout.startswith("2 ranks, all at one stack\nranks 0-1 (2 of 2)"), done


def sampled_as(uid: int, pid: int) -> str:
    """What another user gets."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    try:
        return stacks.sample(pid, Request(kind="stacks")).summary
    except PermissionDenied as denied:
        return f"{denied.exit_code} {denied.advice}"


@pytest.mark.live
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_memory_that_may_not_be_read_is_no_permission(job: int) -> None:
    """Exit code 77, and the command that works."""
    child = KillableChild()
    said = child.call(sampled_as, own_uid(3), job, deadline_seconds=20.0)
    child.close()

    assert re.match(rf"77 sudo \S*perfwatch capture stacks {job}\b", said), said
