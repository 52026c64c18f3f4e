"""What a storm of attaches costs the job, beside the same storm at another process and the same load from elsewhere.

    scripts/measure attach                          about 8 minutes; the machine should be idle otherwise
    scripts/measure attach --rounds 2 --seconds 10 --json
    scripts/measure attach --nice 0                 as if perfwatch did not lower its priority

Each round measures four conditions, each forwards and backwards (ABCDDCBA), so that drift of the machine cancels:

- job: attaches at the job, ``--at-once`` at a time, each killed after 0.1 to 1.4 s at random
- other: the same at a process that is stopped and has nothing to do with the job
- load: as many Python processes at a time, for as long and at the priority of perfwatch, which compile modules as a start does
- nothing: the job alone

The attaches share one session (one terminal) with the job: with autogroup the kernel compares nice values only within a session.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from measuring import END_SECONDS, PERFWATCH, Interval, Job, job

LOOP = (sys.executable, str(Path(__file__).with_name("measured_loop.py")))
EARLIEST_SECONDS, LATEST_SECONDS = 0.1, 1.4
# What a process of the same kind does: it imports, and compiles, until it is killed.
LOAD = """
import ast, inspect, os, sys
if int(sys.argv[1]):
    os.nice(int(sys.argv[1]))
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
text = inspect.getsource(inspect)
while True:
    compile(text, "load", "exec")
"""
STOPPED = """
import mmap, os, signal, sys
with open(sys.argv[1], "rb") as file:
    library = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
os.kill(os.getpid(), signal.SIGSTOP)
"""
CONDITIONS = ("job", "other", "load", "nothing")


class Storm:
    """Starts and kills processes, so many at a time, for the length of a window. Counts them."""

    def __init__(self, folder: Path, at_once: int, nice: int) -> None:
        self.folder, self.at_once, self.nice = folder, at_once, nice
        self.started = 0
        self._chance = random.Random(20261120)

    @contextmanager
    def of(self, command: tuple[str, ...]) -> Iterator[None]:
        """For the length of the block; nothing without a command."""
        ended = threading.Event()
        threads = [threading.Thread(target=self._again_and_again, args=(command, ended)) for _ in range(self.at_once)]
        for thread in threads if command else []:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads if command else []:
                thread.join()

    def _again_and_again(self, command: tuple[str, ...], ended: threading.Event) -> None:
        environment = {**os.environ, "PERFWATCH_DIR": str(self.folder), "PERFWATCH_NICE": str(self.nice)}
        while not ended.is_set():
            with subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
            ) as process:
                self.started += 1
                ended.wait(self._chance.uniform(EARLIEST_SECONDS, LATEST_SECONDS))
                process.send_signal(self._chance.choice((signal.SIGKILL, signal.SIGTERM)))
                try:
                    process.wait(END_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


@contextmanager
def stopped_process(folder: Path) -> Iterator[int]:
    """A process that perfwatch takes for a job, and that is stopped."""
    library = folder / "libtorch_cpu.so"
    library.write_text("not a library\n")
    with subprocess.Popen((sys.executable, "-c", STOPPED, str(library))) as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield process.pid
        finally:
            process.kill()


def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Steps a second in each condition, and the paired differences of each round."""
    rates: dict[str, list[float]] = {name: [] for name in CONDITIONS}
    storm = Storm(folder / "sessions", options.at_once, options.nice)
    with job(LOOP, folder / "stderr", new_session=False) as loop, stopped_process(folder) as other:
        commands = {
            "job": (*PERFWATCH, "attach", str(loop.process.pid)),
            "other": (*PERFWATCH, "attach", str(other)),
            "load": (sys.executable, "-c", LOAD, str(options.nice)),
            "nothing": (),
        }
        for number in range(options.rounds):
            seen: dict[str, list[float]] = {name: [] for name in CONDITIONS}
            order = CONDITIONS if number % 2 else CONDITIONS[::-1]
            for name in (*order, *order[::-1]):
                with storm.of(commands[name]):
                    time.sleep(options.settle)
                    seen[name].append(_window(loop, options.seconds))
            for name, values in seen.items():
                rates[name].append(statistics.fmean(values))
            said = ", ".join(f"{name} {rates[name][-1]:.0f}" for name in CONDITIONS)
            print(f"round {number + 1}: steps/s: {said}", file=sys.stderr)
    pairs = {
        f"job against {name}": vars(Interval.of([a / b - 1 for a, b in zip(rates["job"], rates[name], strict=True)]))
        for name in CONDITIONS[1:]
    }
    return {
        "cpus": psutil.cpu_count(),
        "nice": options.nice,
        "attaches": storm.started,
        "steps_per_second": {name: vars(Interval.of(values)) for name, values in rates.items()},
        "pairs": pairs,
    }


def _window(loop: Job, seconds: float) -> float:
    first = time.monotonic()
    time.sleep(seconds)
    return loop.rate(first, time.monotonic())[0]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each window")
    parser.add_argument("--settle", type=float, default=2.0, help="left out at the start of each window")
    parser.add_argument("--at-once", type=int, default=4, help="attaches at a time")
    parser.add_argument("--nice", type=int, default=10, help="of perfwatch and of the load; 0 keeps the caller's")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    load_1min = psutil.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="perfwatch-storm-") as folder:
        report = {"load_1min": load_1min, **measure(options, Path(folder))}
    if options.json:
        print(json.dumps(report))
        return
    print(f"machine: {report['cpus']} CPUs, load {load_1min:.1f} at the start; nice {report['nice']}")
    for name, rate in report["steps_per_second"].items():  # type: ignore[attr-defined]
        print(
            f"  {name:20} {rate['mean']:7.1f} steps/s ({rate['low']:.1f} .. {rate['high']:.1f}, n = {rate['samples']})"
        )
    for name, pair in report["pairs"].items():  # type: ignore[attr-defined]
        print(f"  {name:20} {Interval(**pair).percent()}")


if __name__ == "__main__":
    main()
