"""What other commands ask of a watcher: a capture, and where it records."""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfwatch.captures.capture import Request
from perfwatch.errors import CaptureFailed, CaptureRefused
from perfwatch.processes.channel import Message
from perfwatch.processes.control import ControlServer
from perfwatch.processes.place import enter
from perfwatch.top.asking import capture_watched, session_of
from perfwatch.top.errands import Errands
from tests.commands.test_top import once

pytestmark = pytest.mark.live

LATER_SECONDS = 50.0
BEGUN: Message = {"ok": True, "number": 1}
DONE: Message = {"ok": True, "outcome": {"kind": "torch", "summary": "a window of 1.2 s"}}
FORGOTTEN: Message = {"ok": False, "error": "there is no capture 1"}


class Passing:
    """A clock on which each wait takes long."""

    now = 0.0

    def __call__(self) -> float:  # noqa: D102
        return self.now

    def wait(self, seconds: float) -> None:
        """Until something may have happened."""
        self.now += LATER_SECONDS


@contextlib.contextmanager
def watcher(control: Path, *answers: Message) -> Iterator[None]:
    """One that answers so, request by request, and the last time again and again."""
    left, over = list(answers), threading.Event()

    def answer(request: Message) -> Message:
        return left.pop(0) if len(left) > 1 else left[0]

    server = ControlServer(control, answer)

    def serve() -> None:
        while not over.wait(0.01):
            server.serve()

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        yield
    finally:
        over.set()
        serving.join()
        server.close()


def asked(control: Path, tell: Callable[[str], None] = lambda text: None) -> str:
    """What a capture brings."""
    clock = Passing()
    return capture_watched(control, Request(kind="torch"), tell, clock, clock.wait).summary


def test_a_capture_is_waited_for_and_what_it_does_is_told(tmp_path: Path) -> None:
    """Once, and again with how long that takes where it takes long."""
    told: list[str] = []
    with watcher(tmp_path / "control", BEGUN, *2 * [{"ok": True, "said": "tracing"}], DONE):
        summary = asked(tmp_path / "control", told.append)

    assert (summary, told) == ("a window of 1.2 s", ["tracing", "tracing, for 50 s so far"])


def test_a_watcher_that_knows_nothing_of_the_capture_is_not_waited_for(tmp_path: Path) -> None:
    """Another one has taken over: five minutes later it would be said that it did not finish in time."""
    with watcher(tmp_path / "control", BEGUN, FORGOTTEN), pytest.raises(CaptureFailed, match="there is no capture 1"):
        asked(tmp_path / "control")


def test_a_capture_that_is_refused_says_why(tmp_path: Path) -> None:
    """In the watcher's words."""
    refused: Message = {"ok": False, "error": "one is at work"}
    with watcher(tmp_path / "control", refused), pytest.raises(CaptureRefused, match="one is at work"):
        asked(tmp_path / "control")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(DONE, "captured: a window of 1.2 s"), (FORGOTTEN, "no capture: there is no capture 1")],
    ids=["done", "forgotten"],
)
def test_the_screen_says_what_became_of_its_capture(tmp_path: Path, answer: Message, expected: str) -> None:
    """As the command does: both ask in one way."""
    errands = Errands(tmp_path / "control", "", clock=lambda: 0.0)
    with watcher(tmp_path / "control", BEGUN, answer):
        before = set(threading.enumerate())
        errands.capture()
        for thread in set(threading.enumerate()) - before:
            thread.join(20.0)

    assert errands.said(0.0) == expected
    assert errands.at_work(0.0) is None


def hangs_up(control: Path, before: Callable[[], object]) -> threading.Thread:
    """A watcher that is there, and is gone when it is asked the first time; ``before`` it goes, this is done."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(control))
    listener.listen()

    def serve() -> None:
        with listener:
            listener.accept()[0].close()  # who looks whether anybody listens
            asking, _ = listener.accept()
            before()
            asking.close()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    return serving


@pytest.mark.end_to_end
def test_a_job_that_ends_while_top_asks_its_watcher_is_told_as_gone() -> None:
    """Not as a bug of ours."""
    job = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def end() -> None:
        job.kill()
        job.communicate()

    place = enter({})
    try:
        place.register(job.pid)
        serving = hangs_up(place.control, end)
        done = once(str(job.pid), "--once")
        serving.join(20.0)
    finally:
        end()
        place.leave()

    assert (done.returncode, "internal error" in done.stderr) == (3, False), done.stderr
    assert str(job.pid) in done.stderr


def test_a_watcher_that_hangs_up_records_nowhere(tmp_path: Path) -> None:
    """Its job may have ended just now."""
    with socket.socket(socket.AF_UNIX) as looking:
        serving = hangs_up(tmp_path / "control", lambda: None)
        looking.connect(str(tmp_path / "control"))
        assert session_of(tmp_path / "control") is None
    serving.join(20.0)
