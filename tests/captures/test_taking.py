"""Whatever a capture does, the job and the watch go on: checks before, a cap, a reason for every failure."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfwatch.captures.capture import Collected, File, Outcome, Request, Scene, Window
from perfwatch.captures.guard import held, injected
from perfwatch.captures.helper import Helper
from perfwatch.captures.taking import take
from perfwatch.errors import CaptureFailed, CaptureRefused
from tests.captures.stages import fake, home, scene, subject


def taken(folder: Path, capture: Any, request: Request | None = None, stage: Scene | None = None) -> Outcome:
    """The outcome, made in this process."""
    return take(capture, request or Request(kind="fake"), stage or scene(), folder / "c" / "001", home(folder))


def test_capture_that_works_says_what_it_brought(tmp_path: Path) -> None:
    """The file, its size, and that the cost is not known where no steps are counted."""
    outcome = taken(tmp_path, fake())

    assert (outcome.error, outcome.exit_code) == ("", 0)
    assert [file.size_bytes for file in outcome.files] == [1000]
    assert "overhead unknown" in outcome.cost


def test_files_are_private(tmp_path: Path) -> None:
    """A trace holds names and paths of the job."""
    taken(tmp_path, fake())

    assert (tmp_path / "c" / "001").stat().st_mode & 0o777 == 0o700


def test_files_beyond_the_cap_are_removed_and_named(tmp_path: Path) -> None:
    """The first that fit stay."""

    def three(request: Request, scene: Scene, window: Window) -> Collected:
        files = []
        for number in range(3):
            path = window.folder / f"rank{number}"
            path.write_bytes(b"x" * 400)
            files.append(File(path=str(path), size_bytes=400))
        return Collected(files=tuple(files))

    outcome = taken(tmp_path, fake(three), Request(kind="fake", most_bytes=1000))

    assert [os.path.basename(file.path) for file in outcome.files] == ["rank0", "rank1"]
    assert not (tmp_path / "c" / "001" / "rank2").exists()
    assert "rank2 would have exceeded" in outcome.notes[0]


@pytest.mark.parametrize(
    ("stage", "request_", "says"),
    [
        ({"subjects": ()}, {}, "no rank of the job is known"),
        ({}, {"ranks": (0, 5)}, "the job has no rank 5"),
        ({"state": "busy", "cause": "checkpointing"}, {}, "writing a checkpoint"),
    ],
)
def test_what_would_harm_is_refused(tmp_path: Path, stage: dict[str, Any], request_: dict[str, Any], says: str) -> None:
    """Before anything is touched, with exit code 62, and no folder is left."""
    outcome = taken(tmp_path, fake(), Request(kind="fake", **request_), scene(**stage))

    assert says in outcome.error
    assert outcome.exit_code == 62
    assert list((tmp_path / "c").iterdir()) == []


def test_window_that_may_fill_the_disk_is_refused(tmp_path: Path) -> None:
    """An exabyte is free nowhere."""
    outcome = taken(tmp_path, fake(estimated=2**60))

    assert outcome.exit_code == 62
    assert "MiB free" in outcome.error


def test_job_without_memory_to_spare_is_not_traced(tmp_path: Path) -> None:
    """The trace is held in the job's own memory until it is written."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text("MemTotal: 1000000 kB\nMemAvailable:    2048 kB\n")
    outcome = taken(tmp_path, fake(), stage=scene(proc=proc))

    assert outcome.exit_code == 62
    assert "2 MiB of memory left" in outcome.error


def test_rank_under_another_profiler_is_left_to_it(tmp_path: Path) -> None:
    """nsys and ncu inject themselves through the environment."""
    folder = tmp_path / "proc" / "7"
    folder.mkdir(parents=True)
    (folder / "environ").write_bytes(b"PATH=/bin\0CUDA_INJECTION64_PATH=/opt/nsys/libToolsInjection64.so\0")
    (folder / "maps").write_bytes(b"")

    assert injected(7, tmp_path / "proc") == "libToolsInjection64.so"


@pytest.mark.parametrize(("module", "refused"), [("profiling", True), ("health", False)])
def test_counters_that_dcgm_collects_are_left_to_it(tmp_path: Path, module: str, refused: bool) -> None:
    """Its engine loads the module when somebody watches such a metric; a trace without counters does not mind."""
    folder = tmp_path / "proc" / "900"
    folder.mkdir(parents=True)
    (folder / "comm").write_text("nv-hostengine\n")
    (folder / "maps").write_text(f"7f0000-7f1000 r-xp 0 0:0 1 /usr/lib/libdcgmmodule{module}.so.4\n")
    (tmp_path / "proc" / "meminfo").write_text("MemAvailable: 64000000 kB\n")
    stage = scene(proc=tmp_path / "proc")
    counting = taken(tmp_path, fake(uses=frozenset({"counters"})), stage=stage)
    tracing = take(fake(), Request(kind="fake"), stage, tmp_path / "c" / "002", home(tmp_path))

    assert ("dcgmi profile --pause" in counting.advice) is refused
    assert "DCGM" not in tracing.error


def test_two_captures_of_one_rank_exclude_each_other(tmp_path: Path) -> None:
    """Whoever asks for them; what they do not share does not."""
    with held(fake(), (subject(),), home(tmp_path)):
        second = taken(tmp_path, fake())
        other = take(
            fake(uses=frozenset({"ptrace"})), Request(kind="fake"), scene(), tmp_path / "c" / "002", home(tmp_path)
        )

    assert second.exit_code == 62
    assert "another capture" in second.error
    assert other.error == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [(CaptureFailed("the profiler crashed"), 63), (CaptureRefused("busy"), 62), (OSError(28, "No space left"), 63)],
)
def test_failure_leaves_its_reason(tmp_path: Path, error: Exception, code: int) -> None:
    """In the outcome, with its exit code; nothing is raised."""

    def fails(request: Request, scene: Scene, window: Window) -> Collected:
        raise error

    outcome = taken(tmp_path, fake(fails))

    assert outcome.exit_code == code
    assert outcome.error


def test_folder_that_takes_nothing_is_said(tmp_path: Path) -> None:
    """A file stands where the captures should go."""
    (tmp_path / "c").write_text("")
    outcome = taken(tmp_path, fake())

    assert outcome.exit_code == 63
    assert "001" in outcome.error


def test_bug_of_ours_is_an_outcome_too(tmp_path: Path) -> None:
    """A hostile trace may find one."""

    def breaks(request: Request, scene: Scene, window: Window) -> Collected:
        raise ZeroDivisionError

    assert "internal error: ZeroDivisionError" in taken(tmp_path, fake(breaks)).error


@pytest.mark.live
def test_rank_that_dies_in_the_window_ends_it(tmp_path: Path) -> None:
    """There is nobody left to wait for."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as rank:
        from perfwatch.processes.place import start_ticks

        dying = subject(pid=rank.pid, start_ticks=start_ticks(rank.pid))

        def waits(request: Request, scene: Scene, window: Window) -> Collected:
            rank.kill()
            rank.wait()
            window.wait(60.0)
            raise AssertionError("it waited for a dead rank")

        outcome = taken(tmp_path, fake(waits), stage=scene(subjects=(dying,)))

    assert outcome.exit_code == 63
    assert "has ended" in outcome.error


@pytest.mark.live
def test_program_of_a_capture_is_killed_at_its_deadline(tmp_path: Path) -> None:
    """A profiler that never finishes; its exit code is missing."""

    def runs(request: Request, scene: Scene, window: Window) -> Collected:
        finished = window.run([sys.executable, "-c", "import time; time.sleep(1000)"], 0.3)
        assert finished.returncode is None
        raise CaptureFailed("late")

    began = time.monotonic()

    assert taken(tmp_path, fake(runs)).error == "late"
    assert time.monotonic() - began < 20


def helped(folder: Path, capture: Any, deadline_seconds: float = 60.0) -> Helper:
    """The capture in a process of its own."""
    return Helper(capture, Request(kind="fake"), scene(), folder / "c" / "001", home(folder), deadline_seconds)


def ended(helper: Helper, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Its outcome, asked for as by whoever polls it; ``tell`` gets each new line."""
    said = ""
    while (outcome := helper.outcome()) is None:
        if helper.said != said:
            said = helper.said
            tell(said)
        select.select([helper], [], [], 0.1)  # a late one says nothing
    return outcome


@pytest.mark.live
def test_helper_brings_outcome_and_words(tmp_path: Path) -> None:
    """What the capture tells arrives while it works."""

    def tells(request: Request, scene: Scene, window: Window) -> Collected:
        window.tell("half way")
        window.wait(0.3)
        return Collected(files=())

    said: list[str] = []
    outcome = ended(helped(tmp_path, fake(tells)), said.append)

    assert said == ["half way"]
    assert outcome.error == ""


@pytest.mark.live
def test_helper_that_is_late_is_killed(tmp_path: Path) -> None:
    """The watch is never held: the outcome says that it was given up."""

    def sleeps(request: Request, scene: Scene, window: Window) -> Collected:
        signal.pause()
        return Collected(files=())

    outcome = ended(helped(tmp_path, fake(sleeps), 0.3))

    assert outcome.exit_code == 63
    assert "was given up" in outcome.error


@pytest.mark.live
def test_helper_that_dies_is_an_outcome(tmp_path: Path) -> None:
    """Killed by whoever, the reason is told."""

    def dies(request: Request, scene: Scene, window: Window) -> Collected:
        os.kill(os.getpid(), signal.SIGKILL)
        return Collected(files=())

    assert "died" in ended(helped(tmp_path, fake(dies))).error
