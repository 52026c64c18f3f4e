"""Make the cases of faults that nobody may cause: a recorded case of something else, with the one witness changed.

    .venv/bin/python scripts/simulate_case.py            all of them
    .venv/bin/python scripts/simulate_case.py throttled_gpu

A card's clocks, links and driver are never touched to see what happens. Everything but the witness that is named in
the provenance is as it was recorded.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from perfwatch.gauntlet import recorded
from perfwatch.recording.recording import Record, Recording
from perfwatch_probes.readings import Gpu, GpuActivity, GpuEvent, GpuProcess, GpuSample, GpuSilence, Traceback

CASES = Path(__file__).resolve().parent.parent / "tests" / "cases"
SILENT_AFTER = 0.2  # of the recording
FALLEN_OFF = 79


@dataclass(frozen=True)
class Simulation:
    """A cause, the case that it is made from, what is changed, and how."""

    cause: str
    base: str
    changed: str
    change: Callable[[Recording], Iterable[Record]]
    name: str = ""  # where one case has several changes of its own
    fires: bool = True  # or must not: something that only looks like the cause

    @property
    def case(self) -> Path:
        """Where it goes."""
        kind, suffix = "fires" if self.fires else "lookalike", f"-{self.name}" if self.name else ""
        return CASES / self.cause / kind / f"simulated-{Path(self.base).name}{suffix}"


def each_sample(change: Callable[[GpuSample, float], GpuSample]) -> Callable[[Recording], Iterator[Record]]:
    """What changes every reading of the card's clocks, limits and counters, given the seconds since the recording began."""

    def changed(recording: Recording) -> Iterator[Record]:
        for record in recording.records:
            look = record.reading
            yield structs.replace(record, reading=change(look, record.at) if isinstance(look, GpuSample) else look)

    return changed


def held_back(
    reason: int, mhz: int, celsius: float | None = None, alone: str = ""
) -> Callable[[Recording], Iterator[Record]]:
    """The card says why its clock is held down, and the clock is down; all cards, or that one ``alone``."""

    def change(look: GpuSample, _: float) -> GpuSample:
        if alone and look.uuid != alone:
            return look
        return structs.replace(
            look,
            reasons=(look.reasons or 0) | reason,
            sm_clock_mhz=min(mhz, look.sm_clock_mhz or mhz),
            temperature_celsius=celsius or look.temperature_celsius,
        )

    return each_sample(change)


def warm_at(mhz: int) -> Callable[[Recording], Iterator[Record]]:
    """The card says that it is warm, and its clock is as high as ever."""
    return each_sample(lambda look, _: structs.replace(look, reasons=0x20, sm_clock_mhz=mhz, temperature_celsius=84))


def replayed(per_second: float) -> Callable[[Recording], Iterator[Record]]:
    """So many packets are sent again."""
    return each_sample(lambda look, at: structs.replace(look, pcie_replays=int(1000 + per_second * at)))


def announced(xid: int) -> Callable[[Recording], Iterator[Record]]:
    """The driver announces an error in the middle, and everything goes on."""

    def changed(recording: Recording) -> Iterator[Record]:
        uuid = next(one.reading.uuid for one in recording.records if isinstance(one.reading, Gpu))
        at = recording.end / 2
        yield from recording.records
        yield Record(at=at, reading=GpuEvent(uuid=uuid, xid=xid))

    return changed


def trained_to(**link: int) -> Callable[[Recording], Iterator[Record]]:
    """The link came up with fewer lanes, or of an older generation."""
    return each_sample(lambda look, _: structs.replace(look, **link) if look.pcie_width is not None else look)


def links_left(active: int) -> Callable[[Recording], Iterator[Record]]:
    """So many NVLinks are up."""
    return each_sample(lambda look, _: structs.replace(look, nvlinks_active=active) if look.nvlinks_active else look)


def no_answer(recording: Recording) -> Iterator[Record]:
    """After a while no call into the driver comes back; the sampler says so each second."""
    since = recording.end * SILENT_AFTER
    for record in recording.records:
        if record.at <= since or not isinstance(record.reading, GpuSample | GpuActivity | GpuProcess):
            yield record
    for second in range(1, int(recording.end - since) + 1):
        silence = GpuSilence(call="sample", waited_seconds=float(second), state="D")
        yield Record(at=since + second, reading=silence)


def falls_off(recording: Recording) -> Iterator[Record]:
    """After a while the driver no longer reaches the card, and says why."""
    since = recording.end * SILENT_AFTER
    for record in recording.records:
        if record.at <= since or not isinstance(record.reading, GpuSample | GpuActivity | GpuProcess):
            yield record
    card = next(one.reading for one in recording.records if isinstance(one.reading, Gpu))
    for reading in (structs.replace(card, lost=True), GpuEvent(uuid=card.uuid, xid=FALLEN_OFF)):
        yield Record(at=since, reading=reading)


def ends_with(xid: int) -> Callable[[Recording], Iterator[Record]]:
    """The driver announces an error, and the job ends without another word."""

    def changed(recording: Recording) -> Iterator[Record]:
        uuid = next(one.reading.uuid for one in recording.records if isinstance(one.reading, Gpu))
        for record in recording.records:
            if not isinstance(record.reading, Traceback):
                yield record
        yield Record(at=recording.end, reading=GpuEvent(uuid=uuid, xid=xid))

    return changed


BUSY, COPIES, SENDS, OUT_OF_MEMORY, IN_STEP, LATE, LATE_CARD = (
    "gpu_bound/fires/gpu_bound",
    "copy_bound/fires/copy_bound",
    "exposed_communication/fires/exposed_communication-nccl",
    "out_of_memory/fires/out_of_memory-gpu",
    "exposed_communication/lookalike/ranks_in_step-nccl",
    "straggling_rank/fires/straggling_rank-nccl",
    "straggling_rank/fires/longer_batches_by_its_card",
)
CLOCK = "GpuSample: reasons, clock and temperature"
LINK, REPLAYS = "GpuSample: width or generation of the link", "GpuSample: replays"
NVLINKS = "GpuSample: NVLinks that are up"
ENDS, NOTE = "Traceback: GpuEvent instead", "GpuEvent: one more"
SIMULATIONS = (
    Simulation("throttled_gpu", BUSY, CLOCK, held_back(0x40, 1185, 91)),
    Simulation("throttled_gpu", BUSY, CLOCK, held_back(0x20, 1410, 88), "software_heat"),
    Simulation("throttled_gpu", BUSY, CLOCK, held_back(0x80, 990), "power_brake"),
    Simulation("throttled_gpu", BUSY, CLOCK, held_back(0x08, 345), "hardware_slowdown"),
    Simulation("throttled_gpu", BUSY, CLOCK, held_back(0x04, 1500), "power_cap", fires=False),
    Simulation("throttled_gpu", BUSY, CLOCK, warm_at(1980), "warm_at_full_clock", fires=False),
    Simulation("throttled_gpu", IN_STEP, CLOCK, held_back(0x40, 1185, 91, "GPU-1"), "of_one_rank"),
    Simulation("straggling_rank", LATE, CLOCK, held_back(0x40, 1185, 91, "GPU-1"), "throttled_card_that_idles"),
    Simulation("straggling_rank", LATE_CARD, CLOCK, held_back(0x40, 1185, 91, "GPU-1"), "throttled_card"),
    Simulation("degraded_link", COPIES, LINK, trained_to(pcie_width=4)),
    Simulation("degraded_link", COPIES, LINK, trained_to(pcie_generation=1), "first_generation"),
    Simulation("degraded_link", SENDS, NVLINKS, links_left(10), "nvlinks_down"),
    Simulation("degraded_link", COPIES, NVLINKS, links_left(10), "nvlinks_that_nobody_uses", fires=False),
    Simulation("degraded_link", COPIES, REPLAYS, replayed(40.0), "noted_beside_slow_copies", fires=False),
    Simulation("degraded_link", COPIES, REPLAYS, replayed(0.05), "replay_now_and_then", fires=False),
    Simulation(
        "driver_unresponsive",
        "stuck_kernel/fires/stuck_kernel-quiet",
        "readings of the card: GpuSilence",
        no_answer,
    ),
    Simulation(
        "driver_unresponsive",
        "stuck_kernel/fires/stuck_kernel-quiet",
        "Gpu: lost; GpuEvent: one more; readings of the card: none after that",
        falls_off,
        "fallen_off",
    ),
    Simulation(
        "driver_unresponsive",
        "stuck_kernel/fires/stuck_kernel-asleep-masked",
        "readings of the card: GpuSilence",
        no_answer,
    ),
    Simulation("gpu_fault", OUT_OF_MEMORY, ENDS, ends_with(FALLEN_OFF)),
    Simulation("gpu_fault", OUT_OF_MEMORY, ENDS, ends_with(94), "contained_memory_error"),
    Simulation("gpu_fault", OUT_OF_MEMORY, ENDS, ends_with(119), "system_processor"),
    Simulation("gpu_fault", BUSY, NOTE, announced(63), "row_marked", fires=False),
)


def main() -> int:
    """Make those that are asked for; 1 when one does not get its cause."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("causes", nargs="*")
    wanted = parser.parse_args().causes
    chosen = [one for one in SIMULATIONS if not wanted or one.cause in wanted]
    return 0 if all([make(one) for one in chosen]) else 1


def make(simulation: Simulation) -> bool:
    """Store one case and accept its verdict, if that names the cause."""
    base = CASES / simulation.base
    recording, at = recorded.load_case(base), recorded.expected_of(base).at
    records = sorted(simulation.change(recording.until(at)), key=lambda record: record.at)
    made: dict[str, str | float] = {"simulated": simulation.changed, "from": simulation.base}
    recorded.store(simulation.case, recording, records, made, {})
    said = recorded.judged(recorded.load_case(simulation.case), at)
    print(f"{simulation.case.relative_to(CASES)}: {said.state}/{said.cause}", flush=True)
    recorded.accept(simulation.case, said)
    return (said.cause == simulation.cause) is simulation.fires


if __name__ == "__main__":
    sys.exit(main())
