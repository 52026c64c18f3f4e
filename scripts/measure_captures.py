"""What captures cost a decoder on a GPU: armed and idle (interleaved ABBA), and in two windows in a row.

    scripts/measure captures                                   torch and nsys, one rank: about 8 minutes
    scripts/measure captures --ranks 2 --rounds 1              two ranks, on as many cards as there are
    scripts/measure captures --arm torch --loop launch_bound   another loop, that Python keeps waiting

The job is always watched by ``perfwatch run``: compared is ``--arm KIND`` with ``--arm none``. Needs a card and, for nsys, Nsight
Systems. A job that is armed for nsys starts slower, so its first seconds (``--settle``) are left out as well.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import PERFWATCH, Interval, Job, job

HERE = Path(__file__).parent
FOR_EVER_SECONDS = "100000"
LOOPS = {
    "cpu": (str(HERE / "measured_loop.py"),),
    "decoder": (str(HERE / "measured_decoder.py"), FOR_EVER_SECONDS),
    "launch_bound": (str(HERE / "measured_gpu_loop.py"), "launch_bound"),
    "compute_bound": (str(HERE / "measured_gpu_loop.py"), "compute_bound"),
}
NONE = "none"
WINDOWS = {"torch": (("--steps", "5"), ("--seconds", "0.3")), "nsys": (("--seconds", "0.3"), ("--seconds", "2"))}
CAPTURE_DEADLINE_SECONDS = 180.0


def command(loop: str, ranks: int) -> tuple[str, ...]:
    """The job, as a user would start it."""
    several = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)) if ranks > 1 else ()
    return (sys.executable, *several, *LOOPS[loop])


@contextmanager
def armed(kind: str, options: argparse.Namespace, folder: Path) -> Iterator[Job]:
    """The job under ``run --arm KIND``, after it has settled."""
    front = (*PERFWATCH, "run", "-q", "--arm", kind, "--session", str(folder), "--")
    with job((*front, *command(options.loop, options.ranks)), folder.with_suffix(".stderr")) as running:
        time.sleep(options.settle)
        yield running


def rate(running: Job, seconds: float) -> float:
    """Steps per second over so long from now."""
    began = time.monotonic()
    time.sleep(seconds)
    return running.rate(began, began + seconds)[0]


def idle(options: argparse.Namespace, folder: Path) -> dict[str, Interval]:
    """How much slower a job is that is armed and not captured: paired, each round there and back."""
    slower: dict[str, list[float]] = defaultdict(list)
    for number in range(options.rounds):
        there = (NONE, *options.arm)
        rates: dict[str, list[float]] = defaultdict(list)
        for place, kind in enumerate((*there, *reversed(there))):
            with armed(kind, options, folder / f"idle-{number}-{place}") as running:
                rates[kind].append(rate(running, options.seconds))
        means = {kind: statistics.fmean(both) for kind, both in rates.items()}
        for kind in options.arm:
            slower[kind].append(means[NONE] / means[kind] - 1)
        shown = ", ".join(f"{kind} {' and '.join(f'{one:.2f}' for one in both)}" for kind, both in rates.items())
        print(f"round {number + 1}: steps/s {shown}", file=sys.stderr)
    return {kind: Interval.of(rounds) for kind, rounds in slower.items()}


def windows(kind: str, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """One job, its windows one after the other: what each brought and cost."""
    rows = []
    with armed(kind, options, folder / f"windows-{kind}") as running:
        for window in WINDOWS[kind]:
            before = rate(running, options.seconds)
            outcome = capture(kind, window, folder / f"windows-{kind}")
            rows.append(
                {
                    "capture": f"{kind} {' '.join(window)}",
                    "files": len(outcome["files"]),
                    "mib": sum(file["size_bytes"] for file in outcome["files"]) / 2**20,
                    "window_seconds": outcome["window_seconds"],
                    "total_seconds": outcome["total_seconds"],
                    "steps_per_second_before": before,
                    "steps_per_second_after": rate(running, options.seconds),
                    "error": outcome["error"],
                    "cost": outcome["cost"],
                }
            )
    return rows


def capture(kind: str, window: Sequence[str], session: Path) -> dict[str, Any]:
    """What ``perfwatch capture --json`` says."""
    asked = (*PERFWATCH, "capture", kind, *window, "--session", str(session), "--json")
    done = subprocess.run(asked, capture_output=True, text=True, timeout=CAPTURE_DEADLINE_SECONDS, check=False)
    try:
        outcome: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise SystemExit(f"{' '.join(asked)} ended with {done.returncode}: {done.stderr.strip()}") from None
    return outcome


def show(idles: dict[str, Interval], rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print both tables."""
    print(f"{options.loop}, {options.ranks} rank(s); armed and idle against --arm none, {options.rounds} round(s):")
    for kind, interval in idles.items():
        print(f"  --arm {kind:6} slower by {interval.percent()}")
    print(f"{'window':24} {'files':>5} {'MiB':>6} {'window s':>9} {'total s':>8} {'steps/s before, after':>22}")
    for row in rows:
        print(
            f"{row['capture']:24} {row['files']:5} {row['mib']:6.1f} {row['window_seconds'] or 0:9.2f} "
            f"{row['total_seconds']:8.1f} {row['steps_per_second_before']:10.1f} {row['steps_per_second_after']:10.1f}"
        )
        print(f"    {row['error'] or row['cost']}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", type=lambda text: text.split(","), default=["torch", "nsys"], help="torch, nsys")
    parser.add_argument("--loop", choices=LOOPS, default="decoder")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4, help="of armed and idle; 0: windows alone")
    parser.add_argument("--seconds", type=float, default=8.0, help="of one measured stretch")
    parser.add_argument("--settle", type=float, default=6.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perfwatch-captures-", ignore_cleanup_errors=True) as name:
        idles = idle(options, Path(name))
        rows = [row for kind in options.arm for row in windows(kind, options, Path(name))]
    if options.json:
        print(json.dumps({"idle": {kind: vars(interval) for kind, interval in idles.items()}, "windows": rows}))
    else:
        show(idles, rows, options)


if __name__ == "__main__":
    main()
