"""What watching GPUs costs: microseconds a look, share of a core, memory, for one card and for eight.

    scripts/measure gpu_probe [--cards 1 8] [--seconds 20]     from a recorded driver, on any machine
    scripts/measure gpu_probe --record FILE                    record this machine's driver and first card
    scripts/measure gpu_probe --live                           this machine's own cards

A recorded driver answers each call with the CPU time that the real one took, so that eight cards can be measured without them.
The costs are those of the sampler's process, by its own account, and of the watcher that takes the readings.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))  # the recorded driver belongs to the tests

from perfwatch_probes.filesystem import Filesystem  # noqa: E402
from perfwatch_probes.gpu import GpuProbe  # noqa: E402
from perfwatch_probes.nvml_driver import DriverNvml  # noqa: E402
from perfwatch_probes.nvml_layer import Nvml  # noqa: E402
from perfwatch_probes.nvml_sampler import Sampler  # noqa: E402
from perfwatch_probes.readings import GpuActivity, GpuSample  # noqa: E402
from tests.nvml_replay import Recording, Replayed  # noqa: E402

RECORDED = REPOSITORY / "tests" / "probes" / "nvml_h200.json"
LOOK_SECONDS = 0.5  # how often the watcher takes what has come
LOOKS, APART_SECONDS = 80, 0.06
RECORD_APART_SECONDS = 0.25


def main() -> None:
    """Print one table, or record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cards", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--live", action="store_true")
    options = parser.parse_args()
    if options.record:
        record(options.record)
        return
    layers: list[tuple[str, Callable[[], Nvml]]] = (
        [("live", DriverNvml)]
        if options.live
        else [(f"{cards} cards", lambda cards=cards: Replayed(RECORDED, cards)) for cards in options.cards]  # type: ignore[misc]
    )
    print(f"{'':9} {'mode':8} {'of a core':>9} {'watcher':>8} {'samples':>8} {'activities':>10} {'own MiB':>8}")
    for name, open_nvml in layers:
        for mode in ("calm", "suspect"):
            measure(name, open_nvml, mode == "suspect", options.seconds, not options.live)
        look_cost(name, open_nvml)


def measure(name: str, open_nvml: Callable[[], Nvml], full: bool, seconds: float, pretend: bool) -> None:
    """One line: share of a core of sampler and watcher, readings a second and card, memory of the sampler."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "nvidiactl").touch()
        probe = GpuProbe(open_nvml, Filesystem(dev=Path(folder)) if pretend else Filesystem())
        try:
            seen: Counter[str] = Counter()
            cards = set()
            while not seen[GpuSample.__name__]:  # the driver's start is not what is measured
                seen.update(type(one).__name__ for _, one in probe.look(full))
                if probe.trouble is not None:
                    sys.exit(probe.trouble.reason)
                probe.wait(0.1)
            seen.clear()
            spent, own, began = probe.cpu_seconds, time.process_time(), time.monotonic()
            while time.monotonic() - began < seconds:
                time.sleep(LOOK_SECONDS)
                for _, one in probe.look(full):
                    seen[type(one).__name__] += 1
                    if isinstance(one, GpuSample):
                        cards.add(one.uuid)
            took = time.monotonic() - began
            sampler, watcher = (probe.cpu_seconds - spent) / took, (time.process_time() - own) / took
            memory = own_mib(probe.sampler_pid)
        finally:
            probe.close()
    each = [seen[kind.__name__] / took / max(1, len(cards)) for kind in (GpuSample, GpuActivity)]
    mode = "suspect" if full else "calm"
    print(f"{name:9} {mode:8} {sampler:9.2%} {watcher:8.2%} {each[0]:6.1f}/s {each[1]:8.1f}/s {memory:8.1f}")


def look_cost(name: str, open_nvml: Callable[[], Nvml]) -> None:
    """Microseconds of CPU time for one round of the sampler, in this process, at its real pace."""
    sampler = Sampler(open_nvml(), time.monotonic)
    sampler.start()
    sampler.attend()
    costs: dict[str, list[float]] = {"samples alone": [], "with GPM": []}
    for _ in range(LOOKS):
        time.sleep(APART_SECONDS)  # GPM is compared in every second round
        began = time.process_time_ns()
        told = {type(one) for _, one in sampler.round()}
        if told <= {GpuSample, GpuActivity}:
            kind = "with GPM" if GpuActivity in told else "samples alone"
            costs[kind].append((time.process_time_ns() - began) / 1000)
    shown = ", ".join(f"{kind} {statistics.median(values):.0f} us" for kind, values in costs.items() if values)
    print(f"{name:9} one round: {shown}")


def own_mib(pid: int) -> float:
    """Memory that the sampler does not share with anybody."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) / 1024
    return 0.0


def record(path: Path) -> None:
    """Ask this machine's driver everything once, a few times over for the cost."""
    recording = Recording(DriverNvml())
    sampler = Sampler(recording, time.monotonic)
    sampler.start()
    sampler.attend()
    for _ in range(3):
        sampler.round()
        time.sleep(RECORD_APART_SECONDS)
    recording.save(path)
    print(f"{len(recording.answers)} answers in {path}")


if __name__ == "__main__":
    main()
