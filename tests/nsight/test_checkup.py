"""``perfwatch doctor`` says of nsys and ncu whether they are here, run and may do what they are for."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from perfwatch.doctor.profilers import examine_profilers
from perfwatch_probes.external import Finished
from tests.captures.windows import finished

HELP = (Path(__file__).parent / "ncu_2025.3_help.txt").read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A driver that lets nobody at its counters, and both profilers in the places of NVIDIA's packages."""
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/params").write_text("RmProfilingAdminOnly: 1\n")
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/status").write_text("CapEff:\t0000000000200000\n")
    home = tmp_path / "opt/nvidia/nsight-compute/2025.3.1"
    (home / "host/target-linux-x64").mkdir(parents=True)
    for path in (home / "ncu", home / "host/target-linux-x64/nsys", home / "host/target-linux-x64/QdstrmImporter"):
        path.touch()
    return tmp_path


def asked(
    command: Sequence[str], deadline_seconds: float, environment: Mapping[str, str] | None = None, lacks: str = ""
) -> Finished:
    """As the real ones answer."""
    if command[0] == "ldd":
        return finished(0, lacks)
    return finished(0, HELP if "--help" in command else "Version 2025.3.1.0")


def statuses(machine: Path, lacks: str = "") -> dict[str, tuple[str, str]]:
    """Status and fix by name."""
    found = examine_profilers(
        {}, lambda command, seconds, environment: asked(command, seconds, environment, lacks), machine / "proc", machine
    )
    return {one.name: (one.status, one.fix) for one in found}


def test_both_are_there_and_may(machine: Path) -> None:
    """Root in a container has CAP_SYS_ADMIN."""
    assert statuses(machine) == {"nsys": ("ok", ""), "ncu": ("ok", "")}


def test_an_ncu_that_attaches_is_said_to(machine: Path) -> None:
    """With the option that prepares a job for it."""

    def newer(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None) -> Finished:
        more = "\n  --process-id arg\n  --list-injection-path-64\n"
        return finished(0, HELP + more) if "--help" in command else asked(command, seconds, environment)

    of_ncu = examine_profilers({}, newer, machine / "proc", machine)[1]
    assert "perfwatch run --arm ncu-attach" in of_ncu.finding


def test_counters_that_are_kept_for_administrators_are_a_denial_with_its_fix(machine: Path) -> None:
    """Before somebody starts a long run for it."""
    (machine / "proc/self/status").write_text("CapEff:\t0000000000000000\n")

    status, fix = statuses(machine)["ncu"]
    assert status == "limited"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in fix


def test_an_importer_without_its_library_is_said_with_its_package(machine: Path) -> None:
    """nsys works, but its reports stay raw."""
    assert statuses(machine, "\tlibdw.so.1 => not found\n")["nsys"] == ("limited", "apt-get install libdw1")


def test_a_machine_without_a_driver_is_not_bothered(machine: Path, tmp_path: Path) -> None:
    """And one without the profilers is told what to install."""
    assert examine_profilers({}, asked, tmp_path / "none", machine) == []
    assert [one.status for one in examine_profilers({}, asked, machine / "proc", tmp_path / "none")] == [
        "limited",
        "limited",
    ]
