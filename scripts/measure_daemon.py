"""What ``perfwatch daemon`` costs in its steady state beside 0, 1, 8 ... calm jobs, each watched in a process of its own.

scripts/measure daemon
scripts/measure daemon --jobs 0 32 --seconds 120 --settle 120

As root, in a PID namespace: nothing else on this machine is adopted. CPU is that of the daemon, its watches and their helpers,
py-spy included; memory is proportional (pages that they share are split among them).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import measured_quiet
import psutil
from measuring import PERFWATCH, tree, usage

QUIET = Path(__file__).with_name("measured_quiet.py")


def measure(jobs: int, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """One row."""
    measured_quiet.prepare(folder)
    quiet = f"{sys.executable} {QUIET} {folder}"
    daemon = f"{' '.join(PERFWATCH)} daemon --directory {folder}/sessions --metrics-port 0"
    script = f'for n in $(seq {jobs}); do {quiet} & done; exec {daemon} 2>"{folder}/log"'
    command = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script)
    with subprocess.Popen(command) as space:
        try:
            time.sleep(options.settle)
            ours = [one for one in tree(psutil.Process(space.pid))[1:] if str(QUIET) not in _command(one)]
            before, began = usage(ours), time.monotonic()
            time.sleep(options.seconds)
            after, seconds = usage(ours), time.monotonic() - began
        finally:
            space.kill()
    recorded = sum(path.stat().st_size for path in (folder / "sessions").rglob("*.jsonl"))
    log = (folder / "log").read_text()
    watched = log.count("recorded in")
    if options.show:
        print(log, file=sys.stderr)
    return {
        "jobs": jobs,
        "watched": watched,
        "core_share": (after.cpu_seconds - before.cpu_seconds) / seconds,
        "memory_mib": after.memory_bytes / 2**20,
        "processes": after.processes,
        "recorded_mib": recorded / 2**20,
    }


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""  # it has ended, and its parent has not reaped it yet


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[0, 1, 8])
    parser.add_argument("--seconds", type=float, default=120.0, help="length of the steady state that is measured")
    parser.add_argument(
        "--settle", type=float, default=90.0, help="left out: adoption, and until each job is found calm"
    )
    parser.add_argument("--show", action="store_true", help="what the daemon said, on stderr")
    options = parser.parse_args()
    if os.getuid() != 0:
        sys.exit("measure_daemon: needs root, for a PID namespace")
    print("jobs  watched  of one core    memory  processes  recorded")
    for jobs in options.jobs:
        with tempfile.TemporaryDirectory(prefix="perfwatch-daemon-") as folder:
            row = measure(jobs, options, Path(folder))
        print(
            f"{row['jobs']:>4}  {row['watched']:>7}  {row['core_share']:>11.2%}  {row['memory_mib']:>4.0f} MiB  "
            f"{row['processes']:>9}  {row['recorded_mib']:>4.1f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
