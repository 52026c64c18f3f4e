"""The command lines of Nsight Compute. Pure. Their shared options keep the measurement honest and the job alive.

- Clocks and caches are left as they are (``--clock-control none --cache-control none``): the default locks the clocks.
- A collective is never measured: ncu runs each kernel several times, and one that waits for other ranks then hangs.
- ncu's messages go into a separate file: stdout belongs to the program.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfwatch.captures.nsight.finding import Tool
from perfwatch.errors import UsageError
from perfwatch.traces.ncu_rows import METRICS

WARNING = (
    "every CUDA call of the job passes through ncu until it ends, window or not: on an H200 a small decoder made 16 instead of "
    "67 steps/s, and a measured step of 400 kernels took 15 s"
)
NEVER = "nccl|nvshmem|multimem|all_reduce|allreduce|all_gather|reduce_scatter|symm_mem"
_NAME = re.compile(r"[A-Za-z_]\w*")
OLDEST = {"--import", "--page", "--csv", "--launch-count", "--clock-control", "--metrics", "--log-file"}


@dataclass(frozen=True)
class Choice:
    """Which kernels, and how many.

    Args:
        expression: of the user; a part of the function's name.
        names: functions of which only these are measured; none: all that are no collectives.
        skip: launches of chosen kernels that pass first.
        count: launches to measure.
    """

    expression: str = ""
    names: tuple[str, ...] = ()
    skip: int = 0
    count: int = 300

    def filter(self) -> str:
        """For ncu's ``--kernel-name``, which matches the function's name without its arguments.

        Raises UsageError for an expression that is none.
        """
        if self.expression:
            try:
                re.compile(self.expression)
            except re.error as error:
                raise UsageError(
                    f"--kernel {self.expression}: {error}", "a regular expression, as in --kernel 'nvjet|flash'"
                ) from None
        wanted = f"(?:{self.expression})" if self.expression else ""
        if self.names:
            wanted += f"(?:{'|'.join(map(re.escape, self.names))})"
        return f"regex:^(?!.*(?:{NEVER})).*{wanted}" if wanted else f"regex:^(?!.*(?:{NEVER})).*$"


def run_command(
    tool: Tool, choice: Choice, report: Path, log: Path, program: Sequence[str], kill: bool
) -> tuple[str, ...]:
    """Run a program and measure the chosen kernels; pure.

    ``kill``: end the program when they are measured, which is what makes a second run a bounded one.
    """
    return (
        tool.path, "--target-processes", "all", *_common(choice), *(("--kill", "yes") if kill else ()),
        *_written(report, log), *program,
    )  # fmt: skip


def armed_command(tool: Tool, choice: Choice, report: Path, log: Path, program: Sequence[str]) -> tuple[str, ...]:
    """Run a job that measures nothing until it opens a range (cudaProfilerStart) itself, and goes on afterwards; pure."""
    return (
        tool.path, "--target-processes", "all", "--profile-from-start", "off", *_common(choice), *_written(report, log),
        *program,
    )  # fmt: skip


def attach_command(path: str, pid: int, choice: Choice, report: Path, log: Path) -> tuple[str, ...]:
    """Measure a process that has ncu's library and has begun a window (``by_library`` of the agent); ends with the window; pure."""
    return (path, "--mode", "attach", "--process-id", str(pid), *_common(choice), *_written(report, log))


def can_attach(listed: frozenset[str]) -> bool:
    """True if this version attaches to a process by its PID: from 2026.2.1 on (NVIDIA's release notes)."""
    return {"--process-id", "--list-injection-path-64"} <= listed


def function_name(name: str) -> str:
    """The function alone, as ``--kernel-name`` matches it: from a name as Kineto, nsys or ncu spell it."""
    plain = re.sub(r"\(anonymous namespace\)|<unnamed>", "", name)
    head = re.split(r"[<(]", plain.strip().removeprefix("void "), maxsplit=1)[0]
    last = head.rpartition("::")[2].strip()
    return last if _NAME.fullmatch(last) else ""


def _common(choice: Choice) -> tuple[str, ...]:
    return (
        "--clock-control", "none", "--cache-control", "none", "--metrics", ",".join(METRICS),
        "--kernel-name", choice.filter(), "--launch-skip", str(choice.skip), "--launch-count", str(choice.count),
    )  # fmt: skip


def _written(report: Path, log: Path) -> tuple[str, ...]:
    return ("--export", str(report), "--force-overwrite", "--log-file", str(log))
