"""Reports and profilers that the user names from where he stands: ours run in another folder, and still find them."""

from pathlib import Path

import pytest

from perfwatch.captures.nsight.finding import find
from perfwatch.captures.nsight.ncu_report import read_report
from perfwatch.captures.nsight.nsys_report import exported
from perfwatch.errors import TraceUnreadable
from perfwatch.processes.programs import run_program

pytestmark = pytest.mark.live

TABLE = Path(__file__).parents[1] / "traces" / "ncu_kernels.csv.gz"
# Both say what they are; asked for a report they read it, and write what is asked for into the last word, or the named file.
NCU = f"""#!/bin/sh
case $1 in --version) echo Version 2025.3.1; exit;; esac
[ -r "$2" ] || {{ echo "==ERROR== cannot open $2"; exit 1; }}
for last; do :; done
gzip -dc {TABLE} > "$last"
"""
NSYS = """#!/bin/sh
case $1 in --version) echo NVIDIA Nsight Systems version 2025.3.1; exit;; esac
for last; do :; done
[ -r "$last" ] || { echo "cannot open $last"; exit 1; }
for word; do case $word in --output=*) echo made > "${word#--output=}";; esac; done
"""
SILENT = """#!/bin/sh
case $1 in --version) echo Version 2025.3.1;; esac
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with both profilers and a report of each."""
    (tmp_path / "tools").mkdir()
    for name, text in (("ncu", NCU), ("nsys", NSYS), ("silent", SILENT)):
        (tmp_path / "tools" / name).write_text(text)
        (tmp_path / "tools" / name).chmod(0o755)
        (tmp_path / f"train.{name}-rep").write_text("a report")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("environment", [{"PERFWATCH_NCU": "tools/ncu"}, {"PATH": "tools"}, {"PATH": "/bin:tools"}])
def test_report_of_ncu_is_read_from_the_working_directory(here: Path, environment: dict[str, str]) -> None:
    """By the ncu that is named, or found, from there too."""
    assert read_report(Path("train.ncu-rep"), environment, run_program).kernels


def test_report_of_nsys_is_exported_from_the_working_directory(here: Path) -> None:
    """By the nsys that is named from there."""
    tool = find("nsys", {"PERFWATCH_NSYS": "./tools/nsys"}, run_program)
    with exported(Path("train.nsys-rep"), tool, run_program) as database:
        assert database.read_text() == "made\n"


def test_ncu_that_is_named_without_a_folder_is_looked_up_on_the_path(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a shell does it."""
    monkeypatch.setenv("PATH", f"{here}/tools:/usr/bin:/bin")

    assert find("ncu", {"PERFWATCH_NCU": "ncu"}, run_program).path == "ncu"


def test_ncu_that_writes_no_table_is_told_so(here: Path) -> None:
    """Though it ends with 0."""
    with pytest.raises(TraceUnreadable, match=r"cannot read train\.ncu-rep: it wrote no table"):
        read_report(Path("train.ncu-rep"), {"PERFWATCH_NCU": "tools/silent"}, run_program)
