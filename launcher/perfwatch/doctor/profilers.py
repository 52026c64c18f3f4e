"""The checks of NVIDIA's profilers: found, able to run, and permitted to read the counters."""

from collections.abc import Mapping
from pathlib import Path

from perfwatch.captures.nsight.finding import Run, find, options
from perfwatch.captures.nsight.importer import missing_libraries
from perfwatch.captures.nsight.ncu_command import can_attach
from perfwatch.captures.nsight.ncu_session import check_age
from perfwatch.captures.nsight.permission import check_counters
from perfwatch.doctor.checkup import Ability, limited, ok
from perfwatch.errors import PerfwatchError


def examine_profilers(
    environment: Mapping[str, str], run: Run, proc: Path = Path("/proc"), root: Path = Path("/")
) -> list[Ability]:
    """One line for nsys and one for ncu; none on a machine without NVIDIA's driver, where they are not needed.

    Args:
        environment: PATH and what else says where they are.
        run: runs them to ask for version and options.
        proc: root of /proc.
        root: where installs are looked for.
    """
    if not (proc / "driver/nvidia").exists():
        return []
    return [_nsys(environment, run, root), _ncu(environment, run, proc, root)]


def _nsys(environment: Mapping[str, str], run: Run, root: Path) -> Ability:
    try:
        tool = find("nsys", environment, run, root)
        lacks, fix = missing_libraries(tool, run)
    except PerfwatchError as error:
        return limited("nsys", error.message, error.advice)
    finding = f"{tool.version_text} at {tool.path}: perfwatch run --arm nsys"
    if lacks:
        return limited("nsys", f"{finding}; its reports stay raw, for the importer lacks {', '.join(lacks)}", fix)
    return ok("nsys", finding)


def _ncu(environment: Mapping[str, str], run: Run, proc: Path, root: Path) -> Ability:
    try:
        tool = find("ncu", environment, run, root)
        listed = options(tool, run)
        check_age(tool, listed)
        check_counters(proc)
    except PerfwatchError as error:
        return limited("ncu", error.message, error.advice)
    attaches = "; it attaches to a job of perfwatch run --arm ncu-attach" if can_attach(listed) else ""
    return ok(
        "ncu", f"{tool.version_text} at {tool.path}, and the counters may be read: perfwatch ncu -- COMMAND{attaches}"
    )
