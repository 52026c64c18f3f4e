"""Files that a process writes: which, how large, how old."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from perfwatch_probes.deadline import Inline, KillableChild
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Recorded
from perfwatch_probes.output import MOST_FILES, MOST_LOOKED_AT, OutputProbe, is_writable
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import FileGrowth, ProbeCall

T = TypeVar("T")


class DeadMount:
    """A caller whose stat never comes back."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, function: Callable[..., T], *arguments: object, deadline_seconds: float) -> T:
        """Late, always."""
        self.calls += 1
        raise Unavailable(f"no answer within {deadline_seconds} s")


@pytest.fixture
def writer(tmp_path: Path) -> "subprocess.Popen[str]":
    """A program with train.log as stdout and stderr, model.pt open for writing and data.bin for reading."""
    (tmp_path / "data.bin").write_bytes(b"x")
    source = (
        "import sys; sys.stderr.write('hello'); sys.stderr.flush(); model = open(sys.argv[1] + '/model.pt', 'wb', 0);"
        "model.write(b'12'); data = open(sys.argv[1] + '/data.bin'); sys.stdin.read(1); print('x', file=sys.stderr)"
    )
    with (tmp_path / "train.log").open("w") as log:
        program = subprocess.Popen(
            [sys.executable, "-c", source, str(tmp_path)], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
        )
    return program


@pytest.mark.live
def test_files_open_for_writing_are_told_once_each(
    writer: "subprocess.Popen[str]", child: KillableChild, tmp_path: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    """stdout and stderr are one log; the file that is only read, pipes and devices are left out."""
    probe = OutputProbe(child, Recorded(child))
    until(lambda: (tmp_path / "model.pt").exists() and (tmp_path / "model.pt").stat().st_size == 2)

    found = {Path(one.path).name: one for one in probe.look([writer.pid]) if isinstance(one, FileGrowth)}

    assert set(found) == {"train.log", "model.pt"}
    assert (found["train.log"].fd, found["train.log"].size_bytes) == (1, 5)
    assert 0.0 <= found["model.pt"].modified_ago_seconds < 60.0
    writer.communicate("x")


@pytest.mark.live
def test_a_log_is_looked_into_once_it_has_fallen_silent(child: KillableChild, tmp_path: Path) -> None:
    """Half a minute after its last line; of what it says only a count is kept."""
    (tmp_path / "train.log").write_text("".join(f"step {step} loss 0.5\n" for step in range(25)))
    with (tmp_path / "train.log").open("a") as log:
        source = "import sys; sys.stdin.read(1)"
        program = subprocess.Popen(
            [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.DEVNULL, text=True
        )
    now = (tmp_path / "train.log").stat().st_mtime
    (young,) = OutputProbe(child, Recorded(child), clock=lambda: now + 20.0).look([program.pid])
    (silent,) = OutputProbe(child, Recorded(child), clock=lambda: now + 90.0).look([program.pid])
    program.communicate("x")

    assert (young.alike_lines, silent.alike_lines) == (None, 25)  # type: ignore[union-attr]
    assert silent.modified_ago_seconds == pytest.approx(90.0)  # type: ignore[union-attr]


@pytest.mark.live
def test_a_dead_mount_costs_two_deadlines_and_is_evidence(writer: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """The stat that did not come back names the file; the rest are not tried."""
    caller = DeadMount()

    found = list(OutputProbe(caller, Recorded(caller)).look([writer.pid] * 5))

    assert caller.calls == 2
    assert all(isinstance(one, ProbeCall) for one in found)
    assert "train.log" in found[0].reason  # type: ignore[union-attr]
    writer.communicate("x")


@dataclass(frozen=True)
class Noting(Filesystem):
    """A file system that notes the links it reads."""

    links: list[str] = field(default_factory=list)

    def readlink(self, path: str | Path) -> str:
        """As ever, and noted."""
        self.links.append(str(path))
        return super().readlink(path)


def opened(proc: Path, fds: range, folder: Path) -> None:
    """Files that process 10 writes, one a descriptor."""
    for fd in fds:
        (proc / "10/fd").mkdir(parents=True, exist_ok=True)
        (proc / "10/fdinfo").mkdir(exist_ok=True)
        (folder / f"{fd}.log").touch()
        (proc / f"10/fd/{fd}").symlink_to(folder / f"{fd}.log")
        (proc / f"10/fdinfo/{fd}").write_text("flags:\t0100001\n")


def found_by(filesystem: Filesystem) -> list[int]:
    """The descriptors of process 10 that are told."""
    return [
        one.fd
        for one in OutputProbe(Inline(), Recorded(Inline()), filesystem).look([10])
        if isinstance(one, FileGrowth)
    ]


def test_what_lies_beyond_the_files_that_are_wanted_is_not_looked_at(tmp_path: Path) -> None:
    """A process with thousands of open files costs no more than one with a few."""
    filesystem = Noting(proc=tmp_path)
    opened(tmp_path, range(3 * MOST_FILES), tmp_path)

    assert found_by(filesystem) == list(range(MOST_FILES))
    assert len(filesystem.links) == MOST_FILES


def test_a_process_that_writes_few_of_very_many_files_is_not_searched_for_them(tmp_path: Path) -> None:
    """Connections, mostly: its log is among the lowest."""
    filesystem = Noting(proc=tmp_path)
    opened(tmp_path, range(1, 2), tmp_path)
    for fd in range(2, MOST_LOOKED_AT + 50):
        (tmp_path / f"10/fd/{fd}").symlink_to(f"socket:[{fd}]")

    assert found_by(filesystem) == [1]
    assert len(filesystem.links) == MOST_LOOKED_AT


def test_when_no_process_can_be_listed_the_probe_is_unavailable(child: KillableChild) -> None:
    """A process that has ended, or another user's."""
    with pytest.raises(Unavailable):
        OutputProbe(child, Recorded(child)).look([2**22 - 1])


@pytest.mark.parametrize(
    ("flags", "writable"),
    [(os.O_RDONLY, False), (os.O_WRONLY | os.O_APPEND, True), (os.O_RDWR, True), (os.O_RDWR | os.O_PATH, False)],
)
def test_the_flags_tell_whether_it_is_written(flags: int, writable: bool) -> None:
    """They are octal in fdinfo."""
    assert is_writable(f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t3\n") is writable
