"""nsys and ncu are found where their packages put them, and what this version can do is read from its own help."""

import stat
from pathlib import Path

import pytest

from perfwatch.captures.nsight.finding import find, listed_options, options
from perfwatch.captures.nsight.permission import check_counters, refused
from perfwatch.errors import CaptureUnavailable, PermissionDenied
from perfwatch.processes.programs import run_program

pytestmark = pytest.mark.live

HELP = Path(__file__).parent  # as nsys and ncu 2025.3 print it


def program(path: Path, text: str) -> Path:
    """A shell script in the place of a profiler."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_the_newest_of_the_installed_versions_is_taken(tmp_path: Path) -> None:
    """None on PATH: it is looked for where CUDA and the Nsight packages put it, nsys also within Nsight Compute."""
    for version in ("2023.4.4", "2025.3.1", "2025.10.1"):
        program(
            tmp_path / f"opt/nvidia/nsight-compute/{version}/host/target-linux-x64/nsys",
            f"echo NVIDIA Nsight Systems version {version}.90-df98",
        )

    tool = find("nsys", {"PATH": str(tmp_path / "none")}, run_program, tmp_path)

    assert tool.version_text == "2025.10.1"
    assert tool.path.endswith("2025.10.1/host/target-linux-x64/nsys")


def test_the_one_on_path_comes_first_and_a_broken_one_is_passed_over(tmp_path: Path) -> None:
    """A script that crashes does not hide the install that works."""
    program(tmp_path / "bin/ncu", "echo cannot open shared object >&2; exit 127")
    program(tmp_path / "usr/local/cuda/bin/ncu", "echo 'Version 2024.1.1.0 (build 33998838)'")

    assert find("ncu", {"PATH": str(tmp_path / "bin")}, run_program, tmp_path).version == (2024, 1, 1, 0)


def test_a_named_one_leaves_no_choice(tmp_path: Path) -> None:
    """And if it does not work, that is said of it."""
    program(tmp_path / "usr/local/cuda/bin/ncu", "echo Version 2024.1.1.0")
    named = program(tmp_path / "mine", "kill -SEGV $$")

    with pytest.raises(CaptureUnavailable, match=r"mine was ended by signal 11"):
        find("ncu", {"PERFWATCH_NCU": str(named)}, run_program, tmp_path)


def test_a_missing_one_names_the_package(tmp_path: Path) -> None:
    """With the command that installs it."""
    with pytest.raises(CaptureUnavailable, match="not on PATH") as raised:
        find("nsys", {"PATH": ""}, run_program, tmp_path)

    assert "apt-get install nsight-systems-cli" in raised.value.advice
    assert raised.value.exit_code == 61


def test_one_that_never_answers_is_given_up(tmp_path: Path) -> None:
    """At the deadline, together with whatever it started."""
    never = program(tmp_path / "nsys", "echo started; sleep 1000 & wait")

    finished = run_program((str(never), "--version"), 0.3, None)

    assert finished.returncode is None
    assert finished.output == b"started\n"


@pytest.mark.parametrize(
    ("text", "has", "has_not"),
    [
        (
            "nsys_2025.3_start",
            {"--session", "--sample", "--cpuctxsw", "--output", "--gpu-metrics-devices"},
            {"--duration"},
        ),
        ("nsys_2025.3_launch", {"--session-new", "--trace", "--cuda-graph-trace"}, {"--sample", "--output"}),
        ("nsys_2025.3_profile", {"--duration", "--gpu-metrics-devices", "--sample"}, {"--gpu-metrics-device"}),
        ("ncu_2025.3", {"--import", "--launch-count", "--kernel-name", "--kill", "--metrics"}, {"--process-id"}),
    ],
)
def test_the_options_are_read_from_the_help(text: str, has: set[str], has_not: set[str]) -> None:
    """What this version lists, it can; the rest it is not asked for."""
    listed = listed_options((HELP / f"{text}_help.txt").read_text())

    assert has <= listed
    assert not has_not & listed


def test_a_help_without_options_is_an_error(tmp_path: Path) -> None:
    """Something of that name is there, and it is no profiler."""
    tool = find("nsys", {"PERFWATCH_NSYS": str(program(tmp_path / "nsys", "echo version 1.0"))}, run_program)

    with pytest.raises(CaptureUnavailable, match="lists no options"):
        options(tool, run_program, "start")


def driver(tmp_path: Path, only_administrators: int, effective: int) -> Path:
    """A /proc with this setting of the driver and these capabilities of ours."""
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/params").write_text(
        f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {only_administrators}\n"
    )
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text(f"Name:\tpython\nCapEff:\t{effective:016x}\n")
    return tmp_path


@pytest.mark.parametrize(("only_administrators", "effective"), [(0, 0), (1, 1 << 21), (1, 1 << 38)])
def test_counters_that_may_be_read_are_no_error(tmp_path: Path, only_administrators: int, effective: int) -> None:
    """The driver lets everybody, or we are somebody."""
    check_counters(driver(tmp_path, only_administrators, effective))


def test_counters_that_are_kept_for_administrators_are_refused_before_anything_runs(tmp_path: Path) -> None:
    """With the line for modprobe and the one for a container."""
    with pytest.raises(PermissionDenied, match="ERR_NVGPUCTRPERM") as raised:
        check_counters(driver(tmp_path, 1, 0))

    assert "NVreg_RestrictProfilingToAdminUsers=0" in raised.value.advice
    assert "--cap-add SYS_ADMIN" in raised.value.advice


def test_a_machine_without_the_driver_is_not_judged(tmp_path: Path) -> None:
    """Nothing is known against it; ncu itself will say what is missing."""
    check_counters(tmp_path)

    assert refused("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission") is not None
    assert refused("==PROF== Disconnected") is None
