"""Days of watching in some minutes: the real loop, rules and recorder beside a simulated job and clock (scripts/simulated_job.py).

scripts/soak                                24 hours, 2 ranks, workers renewed every two minutes
scripts/soak --hours 48 --cards 8 --json

Says what became of memory and disk; exit code 1 where memory is not flat, the disk budget was exceeded, or the last half hour of the
recording is not whole.
"""

import argparse
import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from simulated_job import LAUNCHER, Clock, SimulatedJob, SimulatedLook

from perfwatch.exporters.gauges import Gauges
from perfwatch.recording.recording import Recorder, load
from perfwatch.recording.segments import BLACK_BOX_SECONDS
from perfwatch.recording.session import Session, this_machine
from perfwatch.recording.writer import Writer
from perfwatch.watching.watch import Watch
from perfwatch_probes import readings as r

SAMPLES = 96
SETTLE_SECONDS = (
    10.0  # of the simulation; the writer is real and must keep up with a clock that runs a hundred times as fast
)
PATIENCE_SECONDS = 60.0
FLAT = 1.10  # the second half against the first, its first quarter left out


def soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run it and measure."""
    clock = Clock()
    job = SimulatedJob(folder / "proc", options.ranks, options.workers, options.epoch, options.stand_every)
    place = folder / "session"
    place.mkdir(mode=0o700)
    session = Session(
        version="soak", created=time.time(), mode="run", machine=this_machine(), root_pids=(LAUNCHER,),
        conditions={"patience_seconds": PATIENCE_SECONDS},
    )  # fmt: skip
    budget = options.budget * 2**20
    writer = Writer(place, budget)
    recorder = Recorder(place, session, writer=writer)
    gauges = Gauges(recorder, session, "soak")
    watch = Watch(
        [LAUNCHER],
        session,
        recorder=gauges,
        clock=clock,
        look=lambda sink: SimulatedLook(sink, job, clock, options.cards),
    )
    samples: list[dict[str, float]] = []
    began, settled, sampled, largest = time.monotonic(), 0.0, 0.0, 0
    while clock.now < options.hours * 3600:
        job.move(clock.now)
        clock.now += max(0.1, watch.tick())
        if clock.now - settled >= SETTLE_SECONDS:
            settled = clock.now
            writer.settle(PATIENCE_SECONDS)
            largest = max(largest, _bytes(place))
        if clock.now - sampled >= options.hours * 3600 / SAMPLES:
            sampled = clock.now
            gauges.snapshot()
            mib, writer_mib = _resident("self"), _resident(str(writer.pid))
            samples.append({"at": clock.now, "mib": mib, "writer_mib": writer_mib, "entities": _entities(watch)})
            if sys.stderr.isatty():
                print(f"\r{clock.now / 3600:.1f} h, {samples[-1]['mib']:.0f} MiB", end="", file=sys.stderr)
    watch.close()
    loss = recorder.close(PATIENCE_SECONDS)
    return {
        "hours": options.hours,
        "took_seconds": round(time.monotonic() - began, 1),
        "processes_seen": job.processes_so_far,
        "told": dict(gauges.snapshot().told),
        "loss": loss,
        "budget_bytes": budget,
        "largest_bytes": largest,
        "memory": _halves(samples, "mib"),
        "writer_memory": _halves(samples, "writer_mib"),
        "entities": _halves(samples, "entities"),
        "black_box_gap_seconds": _gap(place, clock.now),
    }


def _halves(samples: list[dict[str, float]], name: str) -> dict[str, float]:
    """The most in the first half, its first quarter (start, caches) left out, and in the second."""
    values = [sample[name] for sample in samples]
    half = len(values) // 2
    return {"first_half": round(max(values[half // 2 : half]), 1), "second_half": round(max(values[half:]), 1)}


def _gap(session: Path, end: float) -> float:
    """The longest time within the last half hour of which no step of a rank is recorded: one a second is read."""
    times = sorted(
        record.at
        for record in load(session).records
        if isinstance(record.reading, r.Steps) and record.at >= end - BLACK_BOX_SECONDS
    )
    return max((after - before for before, after in pairwise(times)), default=BLACK_BOX_SECONDS)


def _resident(pid: str) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def _entities(watch: Watch) -> int:
    """How many things the loop remembers something about."""
    return sum(len(by_key) for by_key in watch._history._index.values())


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix == ".jsonl")


def failures(report: dict[str, Any], flat: float) -> list[str]:
    """What is not as it should be; ``flat``: memory may grow by this factor between the halves."""
    found = []
    for name in ("memory", "writer_memory", "entities"):
        if report[name]["second_half"] > flat * report[name]["first_half"]:
            found.append(f"{name} is not flat: {report[name]}")
    if report["largest_bytes"] > report["budget_bytes"]:
        found.append(f"the recording took {report['largest_bytes']} bytes")
    if report["black_box_gap_seconds"] > 5.0:
        found.append(f"{report['black_box_gap_seconds']:.0f} s are missing in the last half hour")
    if report["loss"]:
        found.append(report["loss"])
    if not report["told"].get("hung"):
        found.append(f"no hang was told: {report['told']}")
    return found


def main() -> int:
    """Soak and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="of each rank")
    parser.add_argument("--cards", type=int, default=2)
    parser.add_argument("--epoch", type=float, default=120.0, help="seconds after which workers are started anew")
    parser.add_argument("--stand-every", type=float, default=7200.0, help="seconds between two hangs")
    parser.add_argument("--budget", type=int, default=64, help="MiB for the recording")
    parser.add_argument("--flat", type=float, default=FLAT, help="how much more memory the second half may take")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perfwatch-soak-", dir="/dev/shm") as folder:
        report = soak(options, Path(folder))
    report["failures"] = failures(report, options.flat)
    if options.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name:<24}{value}")
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
