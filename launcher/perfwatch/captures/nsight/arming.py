"""What ``run --arm nsys``, ``ncu`` and ``ncu-attach`` prepare before the job starts. If that fails, the job starts without it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfwatch.captures.nsight import ncu_attach, ncu_session, nsys_session
from perfwatch.captures.nsight.ncu_command import WARNING
from perfwatch.errors import PerfwatchError
from perfwatch.processes.programs import run_program


@dataclass(frozen=True)
class Prepared:
    """How the job starts, and what there is to say about it on stderr."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    words: tuple[str, ...] = ()


def prepare(kind: str, command: tuple[str, ...], environment: Mapping[str, str], place: Path) -> Prepared:
    """Prepare a profiler for a job that is about to start; without one it starts as ever, and that is said.

    Args:
        kind: ``nsys``, ``ncu`` or ``ncu-attach``.
        command: what the user typed.
        environment: with which the job would start.
        place: the job's place.
    """
    try:
        if kind == "nsys":
            return Prepared(command, nsys_session.arm(environment, place, run_program, sys.executable))
        if kind == "ncu-attach":
            attachable = ncu_attach.arm(environment, place, run_program)
            return Prepared(command, attachable, (f"perfwatch: --arm ncu-attach: {ncu_attach.WARNING}",))
        wrapped = ncu_session.arm(command, environment, place, run_program)
        return Prepared(wrapped, {**environment, ncu_session.DOOR: "1"}, (f"perfwatch: --arm ncu: {WARNING}",))
    except (PerfwatchError, OSError) as error:
        advice = f" ({error.advice.splitlines()[0]})" if isinstance(error, PerfwatchError) and error.advice else ""
        return Prepared(
            command, environment, (f"perfwatch: not armed with {kind}: {error}{advice}; the job runs without",)
        )
