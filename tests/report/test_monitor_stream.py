"""The stream of rows: when it starts, what it prints, and when it ends."""

import io
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from rich.text import Text

from perfwatch.dmon.stream import MonitorStream
from perfwatch.dmon.table import further
from perfwatch.errors import NoSuchTarget, PerfwatchError
from perfwatch_probes.gpu import ABSENT
from perfwatch_probes.nvml_layer import Listed
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import GpuActivity
from tests.nvml_layer import FakeNvml, machine
from tests.test_monitoring import PLAIN, RANK, Scene


def run(scene: Scene, form: str = "csv", count: int | None = 2, wanted: set[int] | None = None) -> tuple[str, str]:
    """What was printed, and what was complained about, on the scene's own clock."""
    out, complaints = io.StringIO(), io.StringIO()

    def wait(seconds: float) -> bool:
        scene.pass_time(seconds)
        return scene.now > 1100

    stream = MonitorStream(out, form, "pug", wanted)
    stream.run(scene.monitor, wait, 1.0, count, complaints, lambda: scene.now)
    return out.getvalue(), complaints.getvalue()


@pytest.mark.parametrize(("form", "lines"), [("csv", 1 + 2 * 3), ("json", 2 * 3), ("text", 2 + 2 * 3)])
def test_so_many_intervals_and_then_it_ends(tmp_path: Path, form: str, lines: int) -> None:
    """One row per card each time, one heading."""
    printed, complaints = run(Scene(machine(3), tmp_path), form)

    assert len(printed.splitlines()) == lines
    assert complaints == ""


class Terminal(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_a_terminal_gets_one_line_for_each_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many columns as it has room for; a pipe gets all of them."""
    monkeypatch.setenv("COLUMNS", "80")
    long_name = {"compute": [Listed(PLAIN, 1), Listed(RANK, 1)]}
    narrow, wide = Terminal(), io.StringIO()
    for stream, place in ((narrow, "narrow"), (wide, "wide")):
        scene = Scene(machine(1, processes=long_name), tmp_path / place)
        scene.pass_time()
        MonitorStream(stream, "text", "", None).show(scene.monitor.rows())

    lines = Text.from_ansi(narrow.getvalue()).plain.splitlines()
    assert [len(line) <= 80 for line in lines] == [True] * 3
    assert "smclk" not in lines[0]
    assert "smclk" in wide.getvalue()
    assert wide.getvalue().rstrip().endswith("(python 41)")


def test_metrics_that_were_asked_for_stand_before_the_jobs_and_in_every_form(tmp_path: Path) -> None:
    """Per cent on a terminal, a share in a file, a dash or nothing where the card does not tell."""
    scene = Scene(machine(1, processes={"compute": [Listed(RANK, 1)]}), tmp_path)
    scene.pass_time()
    (row,) = scene.monitor.rows()
    activity = GpuActivity(uuid=row.gpu.uuid, interval_seconds=1.0, others={"nvdec_0_util": 0.25})
    shown = {}
    for form in ("text", "csv", "json"):
        out = io.StringIO()
        columns = further(["nvdec_0_util", "nvlink_l0_rx_per_sec"])
        MonitorStream(out, form, "pj", None, columns).show([msgspec.structs.replace(row, activity=activity)])
        shown[form] = out.getvalue().splitlines()

    assert shown["text"][0].split()[-9:-7] == ["nvdec_0_util", "nvlink_l0_rx_per_sec"]
    assert shown["text"][1].split()[-2:] == ["%", "MiB/s"]
    assert shown["text"][2].split()[5:7] == ["25", "-"]
    assert shown["csv"][0].endswith(",processes,nvdec_0_util,nvlink_l0_rx_per_sec")
    assert shown["csv"][1].endswith(",0.25,")
    assert '"nvdec_0_util":0.25,"nvlink_l0_rx_per_sec":null' in shown["json"][0]


def test_it_ends_when_somebody_leaves(tmp_path: Path) -> None:
    """A hundred seconds of rows, then a signal."""
    printed, _ = run(Scene(machine(1), tmp_path), "json", count=None)

    assert 95 <= len(printed.splitlines()) <= 100


def test_only_the_cards_that_were_asked_for(tmp_path: Path) -> None:
    """One that is not there is an error, with those that are."""
    printed, _ = run(Scene(machine(4), tmp_path), "json", 1, {1, 3})

    assert [line.partition('"gpu":')[2][:3] for line in printed.splitlines()] == ['"1"', '"3"']
    with pytest.raises(NoSuchTarget) as why:
        run(Scene(machine(2), tmp_path / "other"), "json", 1, {7})
    assert why.value.advice == "cards of this machine: 0, 1"


def refusing(trouble: Unavailable) -> Callable[..., list[object]]:
    """A look that raises."""

    def look(full: bool = False) -> list[object]:
        raise trouble

    return look


def test_no_driver_is_said_with_the_exit_code_of_a_missing_target(tmp_path: Path) -> None:
    """Not an internal error."""
    scene = Scene(FakeNvml(), tmp_path)
    scene.look = refusing(Unavailable(ABSENT))  # type: ignore[assignment]

    with pytest.raises(NoSuchTarget) as why:
        run(scene)
    assert why.value.message == ABSENT


def test_a_driver_that_describes_nothing_is_not_waited_for_without_end(tmp_path: Path) -> None:
    """No cards, no trouble: after a while that is said."""
    with pytest.raises(PerfwatchError):
        run(Scene(FakeNvml(), tmp_path))


def test_a_silent_driver_is_said_once_and_the_rows_go_on(tmp_path: Path) -> None:
    """Dashes, and the reason on stderr."""
    scene = Scene(machine(1), tmp_path)
    scene.trouble = None
    scene.pass_time()
    scene.pass_time()
    scene.trouble = Unavailable("the NVIDIA driver does not answer: gpm")

    printed, complaints = run(scene, "csv", 3)

    assert len(printed.splitlines()) == 1 + 3
    assert complaints.count("does not answer") == 1
