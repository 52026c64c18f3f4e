"""``perfwatch compare`` from the command line: whole, torn, empty, foreign and unfinished sessions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch.recording.recording import Recorder
from perfwatch.recording.writer import Writer
from tests.command_line import perfwatch
from tests.comparison.runs import keep, run, step_times
from tests.sessions import PATIENCE_SECONDS, session

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of 200 ms a step."""
    return keep(run(step_times(300, 0.2)), tmp_path_factory.mktemp("sessions") / "fast")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of 300 ms a step."""
    recording = run(step_times(300, 0.3, seed=1), waiting=0.3, world_size=2, command=("python", "\x1b[2Jevil.py"))
    return keep(recording, tmp_path_factory.mktemp("sessions") / "slow")


def compare(*arguments: "str | Path") -> "subprocess.CompletedProcess[str]":
    """Run the command."""
    return perfwatch("compare", *map(str, arguments))


@pytest.mark.live
def test_the_command_is_a_program(fast: Path, slow: Path) -> None:
    """It prints what it prints here, with the same exit code."""
    command = [sys.executable, "-m", "perfwatch", "compare", str(fast), str(slow), "--fail-if-slower", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    here = compare(fast, slow, "--fail-if-slower", "5")

    assert (done.returncode, done.stdout, done.stderr) == (here.returncode, here.stdout, here.stderr)


def test_it_says_first_that_the_runs_are_not_alike(fast: Path, slow: Path) -> None:
    """Then the steps, with an interval, and what grew; nothing of the job steers the terminal."""
    done = compare(fast, slow)
    lines = done.stdout.splitlines()

    assert done.returncode == 0, done.stderr
    assert lines[0].startswith("These runs are not alike")
    assert {"   python train.py", "   python ?[2Jevil.py"} <= set(lines)
    assert any(line.startswith("steps a second") and "-3" in line for line in lines)
    assert any(line.startswith("wait for data") for line in lines)
    assert "\x1b" not in done.stdout


def test_the_json_is_one_object_and_nothing_else(fast: Path, slow: Path) -> None:
    """Programs read it."""
    found = json.loads(compare(fast, slow, "--json").stdout)

    assert found["schema"] == "perfwatch.comparison/1"
    assert found["rate"]["change"] == pytest.approx(-0.33, abs=0.05)
    assert found["steps"][0]["change"] == pytest.approx(0.5, abs=0.1)
    assert found["steps"][0]["change_interval"][0] > 0.3


@pytest.mark.parametrize(("order", "code"), [((0, 1), 60), ((1, 0), 0)])
def test_the_exit_code_is_a_gate(fast: Path, slow: Path, order: tuple[int, int], code: int) -> None:
    """Slower by half fails, faster passes."""
    both = fast, slow
    done = compare(both[order[0]], both[order[1]], "--fail-if-slower", "5")

    assert done.returncode == code
    assert "steps a second (" in done.stderr


def test_a_session_that_is_still_written_and_torn_is_compared_as_far_as_it_goes(fast: Path, tmp_path: Path) -> None:
    """The last line is half there, and the writer has not ended."""
    folder = tmp_path / "live"
    folder.mkdir(mode=0o700)
    writer = Writer(folder, 2**22)
    recorder = Recorder(folder, session(), writer=writer)
    for record in run(step_times(100, 0.2)).records:
        recorder.append(record.at, [record.reading])
    assert writer.settle(PATIENCE_SECONDS)
    with (folder / "readings-0001.jsonl").open("ab") as file:
        file.write(b'{"at":99,"wall":99,"rea')
    done = compare(fast, folder)
    recorder.close(PATIENCE_SECONDS)

    assert done.returncode == 0, done.stderr
    assert "left out: 1 damaged line" in done.stdout


def test_an_empty_session_is_said_to_be_one(fast: Path, tmp_path: Path) -> None:
    """And the gate cannot tell."""
    (tmp_path / "empty").mkdir(mode=0o700)
    Recorder(tmp_path / "empty", session()).close(PATIENCE_SECONDS)
    done = compare(fast, tmp_path / "empty", "--fail-if-slower", "5")

    assert done.returncode == 50
    assert "it is empty" in done.stdout


@pytest.mark.parametrize(
    ("content", "says"),
    [('{"schema":"perfwatch.session/9"}', "newer perfwatch"), ("[", "damaged"), (None, "not a perfwatch session")],
)
def test_what_is_no_session_is_refused_with_advice(fast: Path, tmp_path: Path, content: str | None, says: str) -> None:
    """Exit code 2, no traceback."""
    if content is not None:
        (tmp_path / "session.json").write_text(content)
    done = compare(fast, tmp_path)

    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
