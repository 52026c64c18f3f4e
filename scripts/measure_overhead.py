"""What perfwatch costs: a real loop without it, under ``run``, and attached to with ``--watch``, interleaved (ABBA).

    scripts/measure overhead                        about 15 minutes; the machine should be idle otherwise
    scripts/measure overhead --rounds 2 --seconds 10 --json
    scripts/measure overhead --loop launch_bound --ways attach        a loop on a GPU; or compute_bound
    scripts/measure overhead --loop launch_bound --ways gpu --settle 3       the GPU probe alone, ten looks a second
    scripts/measure overhead --ways turns --rounds 10      attached for good, and halted for every other four seconds

Each round gives one paired difference, so that drift of the machine cancels. Measured is the steady state; the first
``--settle`` seconds after an attach, when it looks closely, are left out and shown on their own. In ``turns`` drift cancels best:
ten pairs a round, of windows so short that the loop hardly changes from one to the next. What falls due while perfwatch is halted
it does in its next turn, so that this finds rather too much.
"""

import argparse
import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
from measuring import PERFWATCH, Interval, Usage, beside, halted, job, marked, tree, usage, watcher

from perfwatch.recording.recording import load
from perfwatch.triage.history import quantile
from perfwatch_probes.readings import ProbeCall

LOOPS = {
    "cpu": (sys.executable, str(Path(__file__).with_name("measured_loop.py"))),
    "launch_bound": (sys.executable, str(Path(__file__).with_name("measured_gpu_loop.py")), "launch_bound"),
    "compute_bound": (sys.executable, str(Path(__file__).with_name("measured_gpu_loop.py")), "compute_bound"),
}
AGENT = Path(__file__).with_name("measure_agent.py")
MEMORY_GOAL_BYTES, CPU_GOAL, JOB_GOAL = 80 * 2**20, 0.005, 0.001
HELP_RUNS = 11
TURN_SECONDS, TURNS = 4.0, 10  # of each window; pairs a round
CALM_SECONDS = 120.0  # until then a job that was attached to is looked at more closely


@dataclasses.dataclass
class Cost:
    """One way of watching: paired differences, and what the watcher itself used."""

    slower: list[float] = dataclasses.field(default_factory=list)
    more_cpu_per_step: list[float] = dataclasses.field(default_factory=list)
    watcher_cpu_share: list[float] = dataclasses.field(default_factory=list)
    watcher_memory_bytes: list[int] = dataclasses.field(default_factory=list)
    first_seconds_cpu: list[float] = dataclasses.field(default_factory=list)

    def pair(self, without: list[tuple[float, float]], within: list[tuple[float, float]]) -> None:
        """Note one ABBA round of (steps per second, CPU seconds per step)."""
        rates = [statistics.fmean(rate for rate, _ in side) for side in (without, within)]
        cpus = [statistics.fmean(cpu for _, cpu in side) for side in (without, within)]
        self.slower.append(rates[0] / rates[1] - 1)
        self.more_cpu_per_step.append(cpus[1] / cpus[0] - 1)

    def note(self, before: Usage, after: Usage, seconds: float) -> None:
        """Note what the watcher used in one window."""
        self.watcher_cpu_share.append((after.cpu_seconds - before.cpu_seconds) / seconds)
        self.watcher_memory_bytes.append(after.memory_bytes)


def attached(options: argparse.Namespace, folder: Path, cost: Cost) -> list[Path]:
    """``attach --watch``; returns its sessions."""
    sessions = [folder / f"attached-{number}" for number in range(options.rounds)]
    come_and_go(
        options, folder, cost, "attach --watch", lambda loop, number: watcher(loop, sessions[number], folder / "stderr")
    )
    return sessions


def in_turns(options: argparse.Namespace, folder: Path, cost: Cost) -> list[Path]:
    """``attach --watch`` that stays, halted in every other window; returns its session. The job is never signalled."""
    session = folder / "turns"
    with (
        job(LOOPS[options.loop], folder / "stderr") as loop,
        watcher(loop.process.pid, session, folder / "stderr") as process,
    ):
        time.sleep(options.settle)
        cost.first_seconds_cpu.append(usage(tree(process)).cpu_seconds)
        time.sleep(max(0.0, CALM_SECONDS - options.settle))
        for number in range(TURNS * options.rounds):
            turns: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
            for on in (False, True, True, False) if number % 2 else (True, False, False, True):
                before = usage(tree(process))
                with contextlib.nullcontext() if on else halted(process):
                    turns[on].append(_window(loop, TURN_SECONDS))
                if on:
                    cost.note(before, usage(tree(process)), TURN_SECONDS)
            cost.pair(turns[False], turns[True])
            _progress("in turns", number, cost)
    return [session]


def beside_the_cards(options: argparse.Namespace, folder: Path, cost: Cost) -> list[Path]:
    """``dmon``: the GPU probe alone, ten looks a second. There is no session."""
    come_and_go(options, folder, cost, "dmon", lambda loop, number: beside(("dmon", "--csv"), folder / "stderr"))
    return []


def come_and_go(
    options: argparse.Namespace,
    folder: Path,
    cost: Cost,
    what: str,
    watch: Callable[[int, int], AbstractContextManager[psutil.Process]],
) -> None:
    """Off, on, on, off: perfwatch comes to and leaves one and the same job. ``watch``: of the job's pid, in this round."""
    with job(LOOPS[options.loop], folder / "stderr") as loop:
        time.sleep(options.settle)
        for number in range(options.rounds):
            without = [_window(loop, options.seconds)]
            with watch(loop.process.pid, number) as process:
                time.sleep(options.settle)
                cost.first_seconds_cpu.append(usage(tree(process)).cpu_seconds)
                within = []
                for _ in range(2):
                    before = usage(tree(process))
                    within.append(_window(loop, options.seconds))
                    cost.note(before, usage(tree(process)), options.seconds)
            without.append(_window(loop, options.seconds))
            cost.pair(without, within)
            _progress(what, number, cost)


def under_run(options: argparse.Namespace, folder: Path, cost: Cost) -> list[Path]:
    """Off, on, on, off: each time a new job, with or without ``perfwatch run`` in front."""
    sessions = []
    for number in range(options.rounds):
        rates: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for place, on in enumerate((False, True, True, False)):
            session = folder / f"run-{number}-{place}"
            front = (*PERFWATCH, "run", "--session", str(session), "--") if on else ()
            with job((*front, *LOOPS[options.loop]), folder / "stderr") as loop:
                time.sleep(options.settle)
                ours = _launcher(loop.mark) if on else []
                before = usage(ours)
                rates[on].append(_window(loop, options.seconds))
                if on:
                    sessions.append(session)
                    cost.first_seconds_cpu.append(before.cpu_seconds)
                    cost.note(before, usage(ours), options.seconds)
        cost.pair(rates[False], rates[True])
        _progress("run", number, cost)
    return sessions


WAYS = {"attach": attached, "run": under_run, "gpu": beside_the_cards, "turns": in_turns}


def probe_costs(sessions: list[Path]) -> dict[str, dict[str, float]]:
    """What each probe took, from the recordings' own records of every look."""
    calls: dict[str, list[ProbeCall]] = defaultdict(list)
    watched_seconds = 0.0
    for session in sessions:
        recording = load(session)
        watched_seconds += recording.end
        for record in recording.records:
            if isinstance(record.reading, ProbeCall):
                calls[record.reading.probe].append(record.reading)
    return {
        probe: {
            "calls_per_minute": 60 * len(looks) / watched_seconds,
            "p50_ms": 1000 * (quantile([look.duration_seconds for look in looks], 0.5) or 0.0),
            "p95_ms": 1000 * (quantile([look.duration_seconds for look in looks], 0.95) or 0.0),
            "core_share": sum(look.cpu_seconds or 0.0 for look in looks) / watched_seconds,
        }
        for probe, looks in sorted(calls.items())
    }


def help_seconds() -> float:
    """Median wall time of ``perfwatch --help``."""
    times = []
    for _ in range(HELP_RUNS):
        begun = time.perf_counter()
        subprocess.run((*PERFWATCH, "--help"), check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def _window(loop: Any, seconds: float) -> tuple[float, float]:
    first = time.monotonic()
    time.sleep(seconds)
    return loop.rate(first, time.monotonic())  # type: ignore[no-any-return]


def _launcher(mark: str) -> list[psutil.Process]:
    """The processes of perfwatch under ``run``: everything marked that is neither the loop nor its worker."""
    everything = marked(mark)
    loops = {p.pid for p in everything if "scripts/measured_" in " ".join(p.cmdline()) and "run" not in p.cmdline()}
    return [p for p in everything if p.pid not in loops]


def _progress(what: str, number: int, cost: Cost) -> None:
    print(f"{what}: round {number + 1}: {cost.slower[-1]:+.2%}", file=sys.stderr)


def _print(report: dict[str, Any]) -> None:
    print(f"machine: {report['cpus']} CPUs, load {report['load_1min']:.1f} at the start")
    for way, cost in report["ways"].items():
        print(f"\n{way}")
        print(f"  job slower by          {Interval(**cost['slower']).percent()}   goal {JOB_GOAL:.1%}")
        print(f"  job CPU per step       {Interval(**cost['more_cpu_per_step']).percent()}")
        print(f"  watcher, of one core   {cost['watcher_cpu_share']:.2%}   goal {CPU_GOAL:.1%}")
        memory = cost["watcher_memory_bytes"] / 2**20
        print(f"  watcher, memory (PSS)  {memory:.0f} MiB   goal {MEMORY_GOAL_BYTES / 2**20:.0f} MiB")
        print(f"  first {report['settle_seconds']:g} s, CPU        {cost['first_seconds_cpu']:.2f} s")
    print(f"\n{'probe':24} {'calls/min':>9} {'p50 ms':>8} {'p95 ms':>8} {'of a core':>9}")
    for probe, line in report["probes"].items():
        figures = (
            f"{line['calls_per_minute']:9.1f} {line['p50_ms']:8.2f} {line['p95_ms']:8.2f} {line['core_share']:9.3%}"
        )
        print(f"{probe:24} {figures}")
    if "agent" in report:
        print(f"\nperfwatch --help: {report['help_seconds'] * 1000:.0f} ms   goal 150 ms")
        print(f"\nagent\n{report['agent']}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="ABBA rounds of each way of watching")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each window")
    parser.add_argument("--settle", type=float, default=15.0, help="left out after a start or an attach")
    parser.add_argument("--loop", choices=LOOPS, default="cpu", help="what is watched; all but the first need a GPU")
    parser.add_argument("--ways", choices=("both", *WAYS), default="both")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    load_1min = psutil.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="perfwatch-overhead-") as folder:
        costs, sessions = {}, []
        for way, measure in WAYS.items():
            if way in {"both": ("attach", "run")}.get(options.ways, (options.ways,)):
                costs[way] = Cost()
                sessions += measure(options, Path(folder), costs[way])
        probes = probe_costs(sessions)
    ways = {
        way: {
            "slower": dataclasses.asdict(Interval.of(cost.slower)),
            "more_cpu_per_step": dataclasses.asdict(Interval.of(cost.more_cpu_per_step)),
            "watcher_cpu_share": statistics.fmean(cost.watcher_cpu_share),
            "watcher_memory_bytes": max(cost.watcher_memory_bytes),
            "first_seconds_cpu": statistics.fmean(cost.first_seconds_cpu),
        }
        for way, cost in costs.items()
    }
    report: dict[str, Any] = {
        "cpus": psutil.cpu_count(),
        "load_1min": load_1min,
        "settle_seconds": options.settle,
        "ways": ways,
        "probes": probes,
    }
    if options.loop == "cpu":  # neither depends on what is watched
        report["help_seconds"] = help_seconds()
        agent = subprocess.run((sys.executable, AGENT), check=True, capture_output=True, text=True)
        report["agent"] = agent.stdout
    if options.json:
        print(json.dumps(report))
    else:
        _print(report)


if __name__ == "__main__":
    main()
