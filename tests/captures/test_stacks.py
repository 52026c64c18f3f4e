"""``capture stacks``: everybody on one page, the odd one out first; a pause only where the design allows one."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from perfwatch.captures import stacks
from perfwatch.captures.capture import Request, Subject
from perfwatch.errors import CaptureFailed, CaptureRefused
from perfwatch.processes.place import start_ticks
from tests.captures.windows import RecordedWindow, finished, scene

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
    with pytest.raises(CaptureRefused, match="for a confirmed hang alone"):
        stacks.available(NATIVE, scene(state=state, suspected="hung"))


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
