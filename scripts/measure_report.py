"""How long a report of an hour takes, how much memory, and how large it becomes: 8 GPUs, 64 processes, simulated.

scripts/measure report
scripts/measure report --seconds 600 --form md
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the simulated session belongs to the tests

from tests.simulated_hour import write

MOST_SECONDS, MOST_MIB, MOST_PAGE_BYTES = 5.0, 300.0, 300_000


def main() -> int:
    """Make the session, make each report in a process of its own, print; 1 when a page misses its goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="length of the session")
    parser.add_argument("--form", action="append", help="html, md, text, json, perfetto, speedscope; html by default")
    options = parser.parse_args()
    missed = False
    with tempfile.TemporaryDirectory(prefix="perfwatch-report-") as place:
        folder = write(Path(place) / "hour", options.seconds)
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"session: {size / 2**20:.1f} MiB on disk")
        for form in options.form or ["html"]:
            seconds, cpu, mib, made = _report(folder, form, Path(place) / f"report.{form}")
            large = made / 2**20
            print(f"{form:<11}{seconds:6.2f} s ({cpu:.2f} s of CPU) {mib:6.0f} MiB of memory {large:6.2f} MiB large")
            late = seconds > MOST_SECONDS or mib > MOST_MIB or made > MOST_PAGE_BYTES
            missed |= form == "html" and late
    return int(missed)


def _report(folder: Path, form: str, output: Path) -> tuple[float, float, float, int]:
    """Seconds, of CPU, MiB at the peak, bytes."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "perfwatch", "report", str(folder), "--format", form, "-o", str(output)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"perfwatch report --format {form} failed")
    return time.monotonic() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output.stat().st_size


if __name__ == "__main__":
    sys.exit(main())
