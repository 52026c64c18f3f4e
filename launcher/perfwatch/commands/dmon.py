"""``perfwatch dmon``: one row per GPU and interval, with the ranks and steps of the jobs on it."""

import sys
from typing import Annotated

from perfwatch.options import Option, Seconds

FULL_BELOW_SECONDS = 10.0  # longer rows are filled by what the sampler looks at anyway, at a tenth of the cost


def dmon(
    gpus: Annotated[str | None, Option("--gpus", "-i", metavar="0,1", help="Only these cards.")] = None,
    select: Annotated[
        str,
        Option(
            "--select", "-s", metavar="LETTERS",
            help="Columns: p power, u utilisation, g units (GPM), c clocks, v violations, m memory, e errors, t traffic,"
            " j jobs; a capital adds details.",
        ),
    ] = "",
    gpm_metrics: Annotated[
        str | None,
        Option(
            "--gpm-metrics", metavar="30,62-65,dfma_tensor_util",
            help="Further columns: any metric of NVML's nvmlGpmMetricId_t by number or name, as nvidia-smi dmon takes them"
            " (Hopper and newer).",
        ),
    ] = None,
    interval: Annotated[
        float, Option("--interval", "-d", metavar="TIME", kind=Seconds(0.2), help="The time from row to row.")
    ] = 1.0,
    count: Annotated[int | None, Option("--count", "-c", metavar="N", min=1, help="Stop after N intervals.")] = None,
    csv: Annotated[bool, Option("--csv", help="Every column, comma-separated, with one heading.")] = False,
    json: Annotated[bool, Option("--json", help="One JSON object for each card and interval.")] = False,
) -> None:  # fmt: skip
    """Show what the GPUs do.

    One row per card and interval, as in nvidia-smi dmon. Figures are averages of up to ten samples a second: four with
    eight cards, one for intervals of 10 s or more. The last columns are the ranks on the card and, under perfwatch run,
    their steps.

    \b
    Examples:
      perfwatch dmon
      perfwatch dmon -s pUcvMet -d 5    what nvidia-smi dmon -s pucvmet shows
      perfwatch dmon --gpm-metrics 30-37,62-97    each decoder, each NVLink
      perfwatch dmon --csv --count 60 > gpus.csv
      perfwatch dmon --json | jq '{gpu, graphics, tensor}'
    """
    from perfwatch.dmon.rows import Monitor
    from perfwatch.dmon.stream import MonitorStream
    from perfwatch.dmon.table import GROUPS, further
    from perfwatch.errors import UsageError
    from perfwatch.processes.linux import volunteer_for_the_oom_killer
    from perfwatch.processes.stop_signals import Leaving
    from perfwatch_probes.deadline import KillableChild
    from perfwatch_probes.filesystem import Filesystem
    from perfwatch_probes.gpu import GpuProbe
    from perfwatch_probes.nvml_metrics import MOST, chosen

    if csv and json:
        raise UsageError("--csv and --json exclude each other", "perfwatch dmon --json")
    unknown = set(select.lower()) - set(GROUPS)
    if unknown:
        listed = "\n".join(f"{letter}  {what}" for letter, what in GROUPS.items())
        raise UsageError(f"--select has no column group {''.join(sorted(unknown))!r}", listed)
    try:
        wanted = None if gpus is None else {int(one) for one in gpus.split(",")}
    except ValueError:
        raise UsageError(f"--gpus {gpus!r} is not a list of numbers", "perfwatch dmon --gpus 0,1") from None

    try:
        others = chosen(gpm_metrics) if gpm_metrics else {}
    except ValueError as word:
        raise UsageError(
            f"--gpm-metrics: NVML has no metric {str(word)!r}", "numbers from 1, or names: sm_util"
        ) from None
    if len(others) > MOST:
        raise UsageError(f"--gpm-metrics: {len(others)} metrics, and a driver answers {MOST} at once", "name fewer")

    volunteer_for_the_oom_killer()
    filesystem, child, probe = Filesystem(), KillableChild(), GpuProbe(others=others)
    monitor = Monitor(probe, filesystem, child, full=interval < FULL_BELOW_SECONDS)
    stream = MonitorStream(sys.stdout, "csv" if csv else "json" if json else "text", select, wanted, further(others))
    try:
        with Leaving() as leaving:
            stream.run(monitor, leaving.wait, interval, count, sys.stderr)
    finally:
        probe.close()
        child.close()
