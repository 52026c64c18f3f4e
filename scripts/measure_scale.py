"""What perfwatch costs beside a job of 64 processes and 2,000 threads, and how soon it sees that such a job is stuck.

scripts/measure scale
scripts/measure scale --processes 128 --threads 4000 --seconds 120 --json
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from measured_crowd import STUCK_AFTER_STEPS
from measuring import PERFWATCH, job, marked, tree, usage, watcher

from perfwatch.recording.recording import load

CROWD = Path(__file__).with_name("measured_crowd.py")


def healthy(options: argparse.Namespace, folder: Path, command: list[str]) -> dict[str, Any]:
    """``attach --watch`` in its steady state."""
    session = folder / "healthy"
    with job(command, folder / "stderr") as loop:
        processes = marked(loop.mark)
        threads = sum(process.num_threads() for process in processes)
        with watcher(loop.process.pid, session, folder / "stderr") as process:
            time.sleep(options.settle)
            before, written, stored = usage(tree(process)), _bytes(session), usage(_writer(process))
            time.sleep(options.seconds)
            after, storing = usage(tree(process)), usage(_writer(process))
            grown = _bytes(session) - written
        began = time.process_time()
        recording = load(session)
        loading = time.process_time() - began
    return {
        "processes": len(processes),
        "threads": threads,
        "watcher_cpu_share": (after.cpu_seconds - before.cpu_seconds) / options.seconds,
        "watcher_memory_bytes": after.memory_bytes,
        "session_bytes_per_minute": 60 * grown / options.seconds,
        "session_bytes": _bytes(session),
        "writer_cpu_share": (storing.cpu_seconds - stored.cpu_seconds) / options.seconds,
        "load_cpu_seconds": loading,
        "shed": [event.text for event in recording.events if event.kind == "shed"],
    }


def stuck(folder: Path, command: list[str]) -> dict[str, Any]:
    """One ``attach`` to the same job after its training thread has gone to sleep."""
    with job([*command, "--stuck"], folder / "stderr") as loop:
        loop.wait_for_steps(STUCK_AFTER_STEPS)
        begun = time.monotonic()
        attach = (*PERFWATCH, "attach", str(loop.process.pid), "--json", "--session", str(folder / "stuck"))
        done = subprocess.run(attach, capture_output=True, text=True, check=False)
        verdict = json.loads(done.stdout)
        return {
            "seconds": time.monotonic() - begun,
            **{key: verdict[key] for key in ("state", "cause", "confidence", "summary", "observer_cost")},
        }


def _writer(watcher: psutil.Process) -> list[psutil.Process]:
    """The process that writes the session."""
    return [process for process in tree(watcher) if process.name() == "perfwatch-write"]


def _bytes(session: Path) -> int:
    return sum(file.stat().st_size for file in session.glob("*"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2000)
    parser.add_argument(
        "--seconds", type=float, default=240.0, help="length of the steady state that is measured: one sample of stacks"
    )
    parser.add_argument("--settle", type=float, default=150.0, help="left out after the attach")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    crowd = [sys.executable, str(CROWD), "--processes", str(options.processes), "--threads", str(options.threads)]
    with tempfile.TemporaryDirectory(prefix="perfwatch-scale-") as folder:
        report = {"healthy": healthy(options, Path(folder), crowd), "stuck": stuck(Path(folder), crowd)}
    if options.json:
        print(json.dumps(report))
        return
    steady, end = report["healthy"], report["stuck"]
    print(f"{steady['processes']} processes, {steady['threads']} threads")
    print(f"  watcher, of one core   {steady['watcher_cpu_share']:.2%}   goal 0.5 %")
    print(f"  watcher, memory (PSS)  {steady['watcher_memory_bytes'] / 2**20:.0f} MiB   goal 80 MiB")
    print(f"  session grows by       {steady['session_bytes_per_minute'] / 2**10:.0f} KiB a minute")
    print(
        f"  session                {steady['session_bytes'] / 2**20:.2f} MiB, loaded in {steady['load_cpu_seconds']:.2f} s of CPU"
    )
    print(f"  writer, of one core    {steady['writer_cpu_share']:.3%}")
    print(f"  shed                   {'; '.join(steady['shed']) or 'nothing'}")
    print(
        f"stuck: {end['state']}/{end['cause']} ({end['confidence']:.2f}) after {end['seconds']:.1f} s: {end['summary']}"
    )
    print(f"  looking cost           {end['observer_cost']}")


if __name__ == "__main__":
    main()
