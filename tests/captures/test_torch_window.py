"""A window of torch.profiler whose ranks do not write: how long is waited for them, and what is told."""

import itertools
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from perfwatch.captures.capture import Request, Scene, Subject
from perfwatch.captures.kineto_link import Asking, check
from perfwatch.captures.torch_files import TraceFolder
from perfwatch.captures.torch_profiler import unequal
from perfwatch.captures.torch_window import TorchWindow
from perfwatch.errors import CaptureFailed, CaptureUnavailable
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.readings import TorchTrace
from tests.captures.stages import scene, subject
from tests.captures.windows import RecordedWindow
from tests.probes.test_steps import page


class TakenLink:
    """Every profiler asks, takes the window, and is not heard of again; time passes when somebody waits."""

    poll_seconds = 1.0

    def __init__(self, window: RecordedWindow, *pids: int) -> None:
        self._window, self._pids, self._given = window, pids, itertools.count()

    def asking(self) -> dict[int, Asking]:
        """All of them."""
        return {pid: Asking(pid=pid, idle=True, ago_seconds=0.0, given=next(self._given)) for pid in self._pids}

    def offer(self, texts: Mapping[int, str], seconds: float) -> None:
        """Taken."""

    def wait(self, seconds: float) -> None:
        """Passed."""
        self._window.wait(seconds)

    def close(self) -> None:
        """Nothing is open."""


def failure(tmp_path: Path, state: str, begun: bool) -> tuple[str, float]:
    """What is told of a window of which nothing comes, and for how long it was waited."""
    stage = scene(armed={"torch": {"traces": str(tmp_path / "r" / "traces")}}, state=state)
    (tmp_path / "r").mkdir(mode=0o700)
    window = RecordedWindow(tmp_path / "w")
    folder = TraceFolder(stage, stage.subjects)
    pid = stage.subjects[0].pid
    if begun:
        (folder.path / f"trace_{pid}.json.tmp").touch()
    recorded = TorchWindow(Request(kind="torch", seconds=2.0), stage, window, TakenLink(window, pid), folder)
    began = window.now
    with pytest.raises(CaptureFailed) as failed:
        recorded.record(stage.subjects)
    return failed.value.message, window.now - began


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a file away")
def test_only_the_rank_itself_speaks_in_the_folder_that_is_open_to_all(tmp_path: Path) -> None:
    """A file of the right name that another user has put there, or a link, is not its trace."""
    rank = Subject(os.getpid(), 1)
    (tmp_path / "r").mkdir(mode=0o700)
    folder = TraceFolder(scene(armed={"torch": {"traces": str(tmp_path / "r" / "traces")}}), (rank,))
    usual = Path(f"/tmp/libkineto_activities_{rank.pid}.json")
    usual.touch()
    soon = time.time() + 60.0
    os.utime(usual, (soon, soon))
    try:
        found = []
        for owner in (65534, os.getuid()):
            os.chown(usual, owner, owner)
            found.append(folder.trace_of(rank))
    finally:
        usual.unlink()

    assert found == [None, usual]


def test_a_hung_jobs_trace_that_does_not_end_is_given_up_soon(tmp_path: Path) -> None:
    """On an H200 with a kernel that never ends the profiler waited for the card, and we for it: 97 s, and a wrong reason."""
    message, seconds = failure(tmp_path, "hung", begun=True)

    assert "rank 0 began a trace and has not ended it within 20 s: the job hangs" in message
    assert seconds < 30.0


def test_a_large_trace_has_its_time(tmp_path: Path) -> None:
    """Of a job that goes on."""
    message, seconds = failure(tmp_path, "slow", begun=True)

    assert "the trace is very large" in message
    assert seconds > 90.0


def test_a_rank_that_never_began_is_not_waited_for(tmp_path: Path) -> None:
    """Its own profiler was first, or it cannot write."""
    message, seconds = failure(tmp_path, "slow", begun=False)

    assert "the job profiles itself" in message
    assert seconds < 15.0


def test_steps_whose_pace_has_just_changed_are_recorded_by_time(tmp_path: Path) -> None:
    """By the quick steps of before, every rank would be told to begin at a step that is minutes away by now."""
    ends = [1.0 + 0.005 * number for number in range(31)] + [1.15 + number for number in range(1, 4)]
    offset = time.monotonic() - ends[-1]
    times = {number: int((at + offset) * 1e9) for number, at in enumerate(ends, start=1)}
    rank = subject()
    (tmp_path / f"steps-{rank.pid}").write_bytes(page(times, rank.pid, rank.start_ticks))
    (tmp_path / "r").mkdir(mode=0o700)
    stage = scene(place=AgentFolder(tmp_path), armed={"torch": {"traces": str(tmp_path / "r" / "traces")}})
    window = RecordedWindow(tmp_path / "w")
    recorded = TorchWindow(
        Request(kind="torch", steps=5), stage, window, TakenLink(window, rank.pid), TraceFolder(stage, stage.subjects)
    )
    with pytest.raises(CaptureFailed, match="no rank has written a trace"):
        recorded.record(stage.subjects)

    assert recorded.notes == ["steps have just changed their pace: recorded 2 s instead"]


def traces(*steps: int) -> list[TorchTrace]:
    """One of each rank."""
    return [TorchTrace(pid=100 + rank, rank=rank, window_seconds=1.0, steps=count) for rank, count in enumerate(steps)]


def test_ranks_whose_windows_ended_late_are_told() -> None:
    """Seen on two cores: the thread that ends a window came 5 steps late in one rank, 16 in the other."""
    (note,) = unequal(traces(10, 21), 5)

    assert note.startswith("the ranks recorded 10 to 21 steps, not 5:")


@pytest.mark.parametrize(("steps", "asked"), [((5, 5), 5), ((6, 6), 5), ((7,), 5), ((10, 21), None), ((4, 5), 5)])
def test_nothing_is_said_where_traces_are_alike(steps: tuple[int, ...], asked: int | None) -> None:
    """As many in each, one rank alone, a window of time; too few is another matter."""
    assert unequal(traces(*steps), asked) == []


def test_a_job_that_is_not_armed_is_told_what_arms_it_on_this_machine(tmp_path: Path) -> None:
    """Without a GPU either way does; with one the agent arms it later, for CUDA must not begin at the import of torch."""
    (tmp_path / "700").mkdir()
    (tmp_path / "700" / "environ").write_bytes(b"HOME=/root\0")
    bare = Scene(subjects=(Subject(700, 1, rank=0),), proc=tmp_path)
    with pytest.raises(CaptureUnavailable) as without:
        check(bare, bare.subjects, drivers=())
    with pytest.raises(CaptureUnavailable) as with_one:
        check(bare, bare.subjects, drivers=(tmp_path,))

    assert "GPU" not in without.value.advice
    assert "perfwatch run -- COMMAND, without --no-agent" in with_one.value.advice
