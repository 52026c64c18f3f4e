"""Which kernels to measure: those with the most time in a capture of the real job, by function name.

Reads the traces of torch.profiler (``.json``, ``.json.gz``) and the reports of nsys (``.nsys-rep``, ``.sqlite``).
Collectives are left out: they may not be measured.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from perfwatch.captures.nsight.finding import Run, find
from perfwatch.captures.nsight.ncu_command import function_name
from perfwatch.captures.nsight.nsys_report import exported
from perfwatch.errors import TraceUnreadable, no_file
from perfwatch.traces.families import family
from perfwatch.traces.nsys_trace import kernel_times
from perfwatch.traces.torch_events import events


def longest(capture: Path, top: int, environment: Mapping[str, str], run: Run) -> tuple[str, ...]:
    """Functions of the ``top`` kernels with the most time, longest first.

    Raises TraceUnreadable for a file of another kind, or without kernels; CaptureUnavailable where nsys is needed and missing.
    """
    if not capture.is_file():
        raise no_file(capture, "perfwatch capture torch makes one")
    totals: dict[str, float] = {}
    for name, time in _kernels(capture, environment, run):
        function = function_name(name)
        if function and family(name) != "collective":
            totals[function] = totals.get(function, 0.0) + time
    if not totals:
        raise TraceUnreadable(f"{capture} holds no kernels", "a capture of a job on a GPU: perfwatch capture torch")
    return tuple(sorted(totals, key=lambda function: -totals[function])[:top])


def _kernels(capture: Path, environment: Mapping[str, str], run: Run) -> Iterator[tuple[str, float]]:
    if capture.suffix == ".nsys-rep":
        with exported(capture, find("nsys", environment, run), run) as database:
            yield from kernel_times(database).items()
    elif capture.suffix == ".sqlite":
        yield from kernel_times(capture).items()
    else:
        yield from ((event.name, event.dur) for event in events(capture) if event.cat == "kernel")
