"""Whatever the disk does, the watcher goes on and knows what was lost."""

import contextlib
import errno
import os
import resource
import select
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfwatch.recording.segments import EVENTS, READINGS, Segments
from perfwatch.recording.writer import MOST_RESTARTS, QUEUE_BYTES, STALLED_SECONDS, Writer
from perfwatch.recording.writer_process import Files
from tests.limits import open_files, room_for
from tests.sessions import content_of

pytestmark = pytest.mark.live

PATIENCE_SECONDS = 20.0  # a loaded machine; passing tests wait milliseconds
BUDGET = 2**22
LINE = b'{"at":1.0,"reading":{"type":"X"}}'


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        """The time that it shows."""
        return self.now


def dead_disk(folder: Path, budget: int, say: Callable[[str], None]) -> Files:
    """A disk that never answers: opening a FIFO without a reader blocks like a dead mount."""
    os.mkfifo(folder / "mount")
    os.open(folder / "mount", os.O_WRONLY)
    raise AssertionError("the FIFO was opened")


def full_disk(folder: Path, budget: int, say: Callable[[str], None]) -> Files:
    """A disk with room for 200 bytes in each file."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
    return Segments(folder, budget, say)


def put(writer: Writer, stream: str, line: bytes = LINE) -> None:
    """Put one line and send it."""
    writer.put(stream, line)
    writer.flush()


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    """Writers to be ended after the test, also where it failed."""
    made: list[Writer] = []
    yield made
    for writer in made:
        writer.close(0.0)


def test_lines_are_stored(tmp_path: Path, writers: list[Writer]) -> None:
    """In order, each in its file, and nothing is lost."""
    writer = Writer(tmp_path, BUDGET)
    writers.append(writer)
    for number in range(1000):
        writer.put(READINGS, b'{"at":%d}' % number)
    put(writer, EVENTS)
    writer.close(PATIENCE_SECONDS)

    assert content_of(tmp_path / "readings-0001.jsonl").splitlines() == [b'{"at":%d}' % n for n in range(1000)]
    assert (tmp_path / "events.jsonl").read_bytes() == LINE + b"\n"
    assert writer.lost == 0


def test_a_dead_disk_holds_up_nothing(tmp_path: Path, writers: list[Writer]) -> None:
    """Every call returns, the queue is bounded, the silence is noticed, and all that was not stored is counted."""
    clock = Clock()
    writer = Writer(tmp_path, BUDGET, dead_disk, clock)
    writers.append(writer)
    lines = 3 * QUEUE_BYTES // 1000
    for _ in range(lines):
        put(writer, READINGS, b"x" * 1000)
    clock.now = STALLED_SECONDS + 1
    put(writer, READINGS)

    assert writer.dropped > 0
    assert "has not answered for 6.0 s" in writer.reason

    writer.close(0.0)

    assert writer.lost == lines + 1


def test_a_verdict_finds_room_when_readings_have_filled_the_queue(tmp_path: Path, writers: list[Writer]) -> None:
    """Events are few and worth more: a part of the queue is theirs."""
    writer = Writer(tmp_path, BUDGET, dead_disk)
    writers.append(writer)
    while not writer.dropped:
        put(writer, READINGS, b"x" * 1000)
    dropped = writer.dropped
    put(writer, EVENTS)

    assert writer.dropped == dropped


def test_a_full_disk_is_counted_and_named(tmp_path: Path, writers: list[Writer]) -> None:
    """What fits is stored whole, what does not leaves no half line behind, and the reason is the kernel's."""
    writer = Writer(tmp_path, BUDGET, full_disk)
    writers.append(writer)
    for _ in range(20):
        put(writer, READINGS)
    assert writer.settle(PATIENCE_SECONDS)

    stored = (tmp_path / "readings-0001.jsonl").read_bytes()
    assert stored == (LINE + b"\n") * (200 // (len(LINE) + 1))
    assert writer.lost == 20 - 200 // (len(LINE) + 1)
    assert writer.reason == "File too large"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_fills_up_and_gets_room_again_is_used_again(tmp_path: Path, writers: list[Writer]) -> None:
    """A real file system of 64 KiB: ENOSPC in the middle of the recording, then somebody cleans up."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], capture_output=True).returncode:
        pytest.skip("this container may not mount")
    try:
        (disk / "ballast").write_bytes(b"x" * 40_000)
        writer = Writer(disk, BUDGET)
        writers.append(writer)
        for _ in range(1000):
            put(writer, READINGS)
        assert writer.settle(PATIENCE_SECONDS)
        lost = writer.lost
        (disk / "ballast").unlink()
        put(writer, READINGS, b'{"at":2.0}')
        writer.close(PATIENCE_SECONDS)

        assert 0 < lost < 1000
        assert writer.reason == "No space left on device"
        lines = content_of(disk / "readings-0001.jsonl").splitlines()
        assert lines == [LINE] * (1000 - lost) + [b'{"at":2.0}']
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_still_takes_the_verdict(tmp_path: Path, writers: list[Writer]) -> None:
    """Readings filled it to the last byte; a little room was set aside for what matters most."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], capture_output=True).returncode:
        pytest.skip("this container may not mount")
    try:
        writer = Writer(disk, BUDGET)
        writers.append(writer)
        while not writer.lost:
            put(writer, READINGS)
            assert writer.settle(PATIENCE_SECONDS)
        put(writer, EVENTS, b'{"verdict":1}')
        writer.close(PATIENCE_SECONDS)

        assert (disk / "events.jsonl").read_bytes() == b'{"verdict":1}\n'
        assert writer.lost == 1
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], capture_output=True).returncode:
        pytest.skip("this machine or container may not mount")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_takes_one_verdict_after_another(small_disk: Path, writers: list[Writer]) -> None:
    """Readings that come between two verdicts do not use the room that was set aside for the second."""
    writer = Writer(small_disk, BUDGET)
    writers.append(writer)
    writer.describe(b'{"schema":"x"}')
    verdict = b'{"at":1.0,"verdict":"' + b"v" * 3000 + b'"}'
    for _ in range(6):
        lost = writer.lost
        while writer.lost == lost:
            put(writer, READINGS)
            assert writer.settle(PATIENCE_SECONDS)
        put(writer, EVENTS, verdict)
    writer.close(PATIENCE_SECONDS)

    assert (small_disk / "events.jsonl").read_bytes() == (verdict + b"\n") * 6
    assert (small_disk / "session.json").read_bytes() == b'{"schema":"x"}'


def test_a_description_without_room_is_stored_when_there_is_room_again(small_disk: Path, writers: list[Writer]) -> None:
    """Without it the readings of days could not be opened."""
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError):
        ballast.write_bytes(bytes(2**20))
    writer = Writer(small_disk, BUDGET)
    writers.append(writer)
    writer.describe(b'{"schema":"x"}')
    put(writer, READINGS)
    assert writer.settle(PATIENCE_SECONDS)
    assert not (small_disk / "session.json").exists()

    ballast.unlink()
    put(writer, READINGS)
    writer.close(PATIENCE_SECONDS)

    assert (small_disk / "session.json").read_bytes() == b'{"schema":"x"}'
    assert content_of(small_disk / "readings-0001.jsonl") == LINE + b"\n"


def test_a_killed_writer_leaves_no_hidden_file(tmp_path: Path, writers: list[Writer]) -> None:
    """What it had set aside on the disk ends with it."""
    writer = Writer(tmp_path, BUDGET)
    writers.append(writer)
    writer.describe(b'{"schema":"x"}')
    put(writer, READINGS)
    assert writer.settle(PATIENCE_SECONDS)
    os.kill(writer.pid, signal.SIGKILL)
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["readings-0001.jsonl", "session.json"]


def test_a_killed_writer_is_replaced(tmp_path: Path, writers: list[Writer]) -> None:
    """It is the first to go when memory runs out; its successor knows the session, and the loss is counted."""
    writer = Writer(tmp_path, BUDGET)
    writers.append(writer)
    writer.describe(b'{"schema":"x"}')
    put(writer, READINGS, b'{"at":1.0}')
    assert writer.settle(PATIENCE_SECONDS)
    first = writer.pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    (tmp_path / "session.json").unlink()
    put(writer, READINGS, b'{"at":2.0}')
    put(writer, READINGS, b'{"at":3.0}')
    writer.close(PATIENCE_SECONDS)

    assert writer.lost == 1
    assert content_of(tmp_path / "readings-0002.jsonl") == b'{"at":3.0}\n'
    assert (tmp_path / "session.json").read_bytes() == b'{"schema":"x"}'


def test_a_writer_that_dies_again_and_again_is_given_up(tmp_path: Path, writers: list[Writer]) -> None:
    """No endless forking on a machine without memory; the watcher goes on without a recording."""
    writer = Writer(tmp_path, BUDGET)
    writers.append(writer)
    for _ in range(MOST_RESTARTS + 1):
        os.kill(writer.pid, signal.SIGKILL)
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
        put(writer, READINGS)

    put(writer, READINGS)

    assert writer.pid == 0
    assert writer.reason == "the writing process died repeatedly"
    assert writer.lost == MOST_RESTARTS + 2


def killed(folder: Path) -> Writer:
    """A writer whose process was killed while the watcher goes on."""
    writer = Writer(folder, BUDGET)
    os.kill(writer.pid, signal.SIGKILL)
    os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
    return writer


def test_a_writer_that_cannot_be_replaced_for_want_of_a_process_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call raises, no file of ours stays open, and all that follows is counted as lost."""

    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    before = open_files()
    writer = killed(tmp_path)
    monkeypatch.setattr(os, "fork", refuse)
    for _ in range(3):
        put(writer, EVENTS)

    assert writer.lost == 3
    assert writer.reason == "the writing process died and none can be started: Resource temporarily unavailable"
    assert open_files() == before


def test_a_writer_that_cannot_be_replaced_for_want_of_files_is_given_up(tmp_path: Path) -> None:
    """Its own two are free again, and one more: that is a pipe and a half."""
    before = open_files()
    writer = killed(tmp_path)
    with room_for(1):
        put(writer, EVENTS)

    assert writer.lost == 1
    assert writer.reason == "the writing process died and none can be started: Too many open files"
    assert open_files() == before


def test_what_the_watcher_handed_over_is_stored_after_its_death(tmp_path: Path) -> None:
    """SIGKILL of the watcher loses nothing that was in the pipe, and no process of ours stays behind."""
    told, tell = os.pipe()
    watcher = os.fork()
    if watcher == 0:  # the watcher: hands over and is killed at once
        writer = Writer(tmp_path, BUDGET)
        for number in range(500):
            writer.put(READINGS, b'{"at":%d}' % number)
        writer.flush()
        os.write(tell, writer.pid.to_bytes(4, "little"))
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(tell)
    orphan = int.from_bytes(os.read(told, 4), "little")
    try:
        handle = os.pidfd_open(orphan)
    except ProcessLookupError:
        pass  # it has ended already
    else:
        ended, _, _ = select.select([handle], [], [], PATIENCE_SECONDS)
        assert ended, "the writer stayed behind"
        os.close(handle)
    os.waitpid(watcher, 0)
    os.close(told)

    assert len(content_of(tmp_path / "readings-0001.jsonl").splitlines()) == 500


def test_the_writer_holds_nothing_of_the_terminal_or_the_job(tmp_path: Path, writers: list[Writer]) -> None:
    """A pipeline ``attach --json | jq`` ends although the writer lives, and Ctrl-C does not reach it."""
    ours, other_end = os.pipe()
    writer = Writer(tmp_path, BUDGET)
    writers.append(writer)
    put(writer, READINGS)
    assert writer.settle(PATIENCE_SECONDS)
    folder = Path(f"/proc/{writer.pid}/fd")
    links = {path.name: os.readlink(path) for path in folder.iterdir()}

    assert os.readlink(f"/proc/self/fd/{ours}") not in links.values()
    assert {links["0"], links["1"], links["2"]} == {"/dev/null"}
    assert os.getsid(writer.pid) == writer.pid
    assert Path(f"/proc/{writer.pid}/oom_score_adj").read_text() == "1000\n"
    os.close(ours)
    os.close(other_end)
