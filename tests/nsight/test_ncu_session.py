"""``run --arm ncu``: where ncu will write, before the job starts; a script stands for ncu."""

import os
from pathlib import Path

import pytest

from perfwatch.captures.nsight.ncu_session import arm
from perfwatch.processes.armed import read_armed
from perfwatch.processes.programs import run_program
from perfwatch_probes.agent_folder import AgentFolder
from tests.nsight.attachable import attachable_ncu

pytestmark = pytest.mark.live


def armed(folder: Path) -> tuple[str, ...]:
    """The command with which the job would start, and ``folder`` as the disk."""
    environment = {"PERFWATCH_NCU": str(attachable_ncu(folder))}
    return arm(("python", "train.py"), environment, folder, run_program, proc=folder, disk=folder)


def test_the_report_goes_into_a_folder_of_ours(tmp_path: Path) -> None:
    """Nobody else can enter it."""
    command = armed(tmp_path)
    report = Path(read_armed(AgentFolder(tmp_path))["ncu"]["report"])

    assert report.parent.stat().st_mode & 0o777 == 0o700
    assert report.parent.parent == tmp_path / f"perfwatch-{os.getuid()}"
    assert str(report) in command


def test_a_link_where_the_report_would_go_is_not_followed(tmp_path: Path) -> None:
    """Nothing is prepared then."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"perfwatch-{os.getuid()}").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(PermissionError, match="not a folder of ours"):
        armed(tmp_path)
    assert read_armed(AgentFolder(tmp_path)) == {}


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a folder away")
def test_a_folder_that_another_user_made_first_is_refused(tmp_path: Path) -> None:
    """He could replace what is in it by a link before ncu writes there."""
    theirs = tmp_path / f"perfwatch-{os.getuid()}"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)

    with pytest.raises(PermissionError, match="not a folder of ours"):
        armed(tmp_path)
