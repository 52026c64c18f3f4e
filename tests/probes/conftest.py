"""Living things for the probes' tests: a killable child, and tiny programs that are where they should be."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.filesystem import Filesystem
from tests.probes.ras_services import Services
from tests.ttar import unpack

PATIENCE_SECONDS = 20.0  # a loaded machine; passing tests wait milliseconds

Start = Callable[[str], int]
Until = Callable[[Callable[[], bool]], None]


@pytest.fixture
def child() -> Iterator[KillableChild]:
    """A killable child, ended after the test."""
    one = KillableChild()
    yield one
    one.close()


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Filesystem:
    """A recorded machine: process 4100 sleeps in its main thread, 4101 reads an empty pipe, 4102 waits for a lock."""
    text = (Path(__file__).parent / "blocked_process.ttar").read_text()
    return Filesystem(proc=unpack(text, tmp_path_factory.mktemp("machine")) / "proc")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a Python program that must print one line when it is set up; returns its pid."""
    programs: list[subprocess.Popen[str]] = []

    def begin(source: str) -> int:
        programs.append(
            subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stdout = programs[-1].stdout
        assert stdout is not None
        assert stdout.readline(), "the program ended before it was set up"
        return programs[-1].pid

    yield begin
    for program in programs:
        program.kill()
        program.communicate()


@pytest.fixture
def wake() -> Callable[[int], None]:
    """Writes a line to the standard input of a program that ``start`` started."""

    def write(pid: int) -> None:
        Path(f"/proc/{pid}/fd/0").write_text("\n")

    return write


@pytest.fixture
def until() -> Until:
    """Looks again until something is true: for what a program cannot announce, such as being blocked."""

    def look(condition: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < ends, "it did not become true"

    return look


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Services]:
    """Starts stand-ins for NCCL's RAS service."""
    services = Services(tmp_path)
    yield services
    services.close()
