"""Ranks whose profiler writes nonsense, or nothing: the others' traces come, and each reason is told."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perfwatch.captures import torch_memory, torch_profiler
from perfwatch.captures.capture import Outcome, Request, Scene, Subject
from perfwatch.captures.kineto.endpoint import Endpoint
from perfwatch.captures.taking import take
from perfwatch.errors import CaptureUnavailable
from perfwatch.processes.control import ControlServer
from perfwatch.processes.place import start_ticks
from tests.captures.stages import home, scene, subject

PROFILER = Path(__file__).parent / "fake_profiler.py"


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Path]:
    """A folder whose endpoint is served, as ``run`` does it."""
    folder = tmp_path / "k"
    folder.mkdir(mode=0o700)
    endpoint = Endpoint(str(folder / "dynolog"))
    control = ControlServer(folder / "ask", endpoint.answer)
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.wait(0.005):
            endpoint.serve()
            control.serve()

    thread = threading.Thread(target=serve)
    thread.start()
    yield folder
    stopped.set()
    thread.join()
    control.close()
    endpoint.close()


@pytest.fixture
def ranks(sockets: Path) -> Iterator[Callable[..., Scene]]:
    """Starts one fake rank per behaviour; gives the scene."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*behaviours: str) -> Scene:
        subjects: list[Subject] = []
        for number, behaviour in enumerate(behaviours):
            command = [sys.executable, str(PROFILER), str(sockets), behaviour]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
            assert started[-1].stdout is not None
            assert started[-1].stdout.readline() == b"asks\n"
            pid = started[-1].pid
            subjects.append(Subject(pid=pid, start_ticks=start_ticks(pid) or 0, rank=number, uid=os.getuid()))
        facts = {"ask": str(sockets / "ask"), "traces": str(sockets.parent / "r" / "traces")}
        (sockets.parent / "r").mkdir(mode=0o700)
        return Scene(subjects=tuple(subjects), armed={"torch": facts}, state="healthy")

    yield start
    for one in started:
        one.kill()
        one.communicate()


def taken(capture: Any, stage: Scene, folder: Path) -> Outcome:
    """A window of a tenth of a second."""
    request = Request(kind=capture.NAME, seconds=0.1)
    return take(capture, request, stage, folder / "c" / "001", home(folder))


@pytest.mark.live
def test_nonsense_is_kept_and_said_and_silence_too(ranks: Callable[..., Scene], tmp_path: Path) -> None:
    """One rank writes garbage, the other takes the window and writes nothing; neither holds us."""
    outcome = taken(torch_profiler, ranks("garbage", "ignores"), tmp_path)

    assert outcome.error == ""
    assert [file.rank for file in outcome.files] == [0]
    assert outcome.notes[0] == "rank 1 wrote no trace"
    assert "rank0.pt.trace.json.gz was not read: " in outcome.notes[1]
    assert list((tmp_path / "r" / "traces").iterdir()) == []


@pytest.mark.live
def test_snapshot_of_the_allocator_comes_into_the_session(ranks: Callable[..., Scene], tmp_path: Path) -> None:
    """Torch writes it to /tmp; it is moved, and never unpickled."""
    stage = ranks("memory")
    outcome = taken(torch_memory, stage, tmp_path)

    assert outcome.error == ""
    assert Path(outcome.files[0].path).read_bytes() == b"\x80\x04N."
    assert not Path(f"/tmp/memory_snapshot_{stage.subjects[0].pid}.pickle").exists()


def test_torch_without_cuda_has_no_allocator_to_ask() -> None:
    """It is said at once."""
    with pytest.raises(CaptureUnavailable, match="no torch with CUDA"):
        torch_memory.available(Request(kind="memory"), scene(subjects=(subject(),)))
