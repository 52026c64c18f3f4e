"""``capture ncu`` by attaching: the window is open as long as ncu works for it, and shut whatever happens."""

import fcntl
import gzip
from collections.abc import Mapping
from pathlib import Path

import pytest

from perfwatch.captures import ncu
from perfwatch.captures.capture import Collected, Request, Scene, Subject
from perfwatch.errors import CaptureFailed, CaptureUnavailable, PermissionDenied
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.external import Finished
from tests.captures.test_ncu import Job
from tests.captures.windows import RecordedWindow, finished, scene

SUBJECT = Subject(pid=700, start_ticks=1, rank=0)
TABLE = gzip.decompress((Path(__file__).parents[1] / "traces/ncu_kernels.csv.gz").read_bytes())


class Window(RecordedWindow):
    """ncu and the agent: each look lets the agent see the door; ncu writes what it is given, and ends as it is told.

    Args:
        folder: the window's.
        place: the agent's.
        answer: of the library; empty: no step ends.
        log: ncu's words.
        code: how ncu ends; None: it is late.
    """

    def __init__(self, folder: Path, place: Path, answer: str = "0", log: str = "", code: int | None = 0) -> None:
        super().__init__(folder, self._ncu)
        self._place, self._begun, self._log, self._code = place, answer, log, code
        self.steps = ""

    def wait(self, seconds: float) -> None:
        """The agent begins when a step ends."""
        self.now += 5.0
        door = self._place / "kernels-700"
        if self._begun and door.exists():
            with door.open() as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self.steps = door.read_text()
            (self._place / "kernels-open-700").write_text(self._begun)

    def _ncu(self, command: tuple[str, ...], environment: Mapping[str, str]) -> Finished:
        def value(name: str) -> Path:
            return Path(command[command.index(name) + 1])

        if "--import" in command:
            value("--log-file").write_bytes(TABLE)
        else:
            assert (self._place / "kernels-700").exists()
            value("--log-file").write_text(self._log)
            if self._code == 0 and "ERROR" not in self._log:
                value("--export").write_text("report")
        return finished(self._code)


def collect(place: Path, window: Window, steps: int | None = None) -> Collected:
    """The capture on a job that was prepared for it."""
    Job(place)
    facts = {"ncu": "/opt/ncu", "version": "2026.2.1", "attaches": "yes"}
    job: Scene = scene(
        SUBJECT, armed={"ncu": facts}, place=AgentFolder(place), environment={"PERFWATCH_NCU": "/opt/ncu"}
    )
    request = Request(kind="ncu", steps=steps)
    ncu.available(request, job)
    return ncu.collect(request, job, window)


def test_the_window_brings_the_report_and_its_table(tmp_path: Path) -> None:
    """As many steps as asked; nothing is left in the agent's folder."""
    window = Window(tmp_path / "w", tmp_path, log='==PROF== Profiling "k" - 0: 3 passes\n' * 330)
    brought = collect(tmp_path, window, steps=2)

    assert window.steps == "2"
    assert " ".join(window.commands[0]).startswith("/opt/ncu --mode attach --process-id 700 --clock-control none")
    assert window.events[-2:] == ["opened", "closed"]
    assert brought.notes == ("330 kernels were measured",)
    assert [Path(file.path).name for file in brought.files] == ["kernels.ncu-rep"]
    assert "gemm" in str(brought.report)
    assert not list(tmp_path.glob("*kernels*"))


@pytest.mark.parametrize(
    ("answer", "log", "code", "error", "says"),
    [
        ("", "", 0, CaptureFailed, "no step ended within 60 s, or this process has no agent"),
        ("3", "", 0, CaptureFailed, "CUDA had started in the process before the library was loaded"),
        ("0", "", None, CaptureFailed, "measured nothing in pid 700: it did not end within 80 s"),
        ("0", "==ERROR== No attachable process\n", 1, CaptureFailed, "in pid 700: No attachable process"),
        ("0", "", 9, CaptureFailed, "it ended with 9, and no kernel ran in the window"),
        ("0", "==ERROR== ERR_NVGPUCTRPERM - The user\n", 1, PermissionDenied, "ERR_NVGPUCTRPERM"),
    ],
)
def test_a_window_that_brings_nothing_says_why_and_is_shut(
    tmp_path: Path, answer: str, log: str, code: int | None, error: type[Exception], says: str
) -> None:
    """No door is left for the agent to open."""
    with pytest.raises(error, match=says):
        collect(tmp_path, Window(tmp_path / "w", tmp_path, answer, log, code))

    assert not (tmp_path / "kernels-700").exists()


def test_a_library_that_could_not_be_loaded_is_told(tmp_path: Path) -> None:
    """In the loader's words, before any window."""
    (tmp_path / "kernels-open-700").write_text("libcuda-injection.so: wrong ELF class")
    with pytest.raises(CaptureUnavailable, match=r"loaded into the process: libcuda-injection\.so: wrong"):
        collect(tmp_path, Window(tmp_path / "w", tmp_path))
