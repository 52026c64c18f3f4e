"""Make the cases of faults that nobody may cause: a recorded case of something else, with the one witness changed.

    .venv/bin/python scripts/simulate_case.py            all of them
    .venv/bin/python scripts/simulate_case.py throttled_gpu

A card's clocks, links and driver are never touched to see what happens. Everything but the witness that is named in
``session.json`` is as it was recorded.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

from perfwatch.gauntlet import recorded
from perfwatch.probes.readings import Gpu, GpuActivity, GpuEvent, GpuProcess, GpuSample, GpuSilence, Traceback
from perfwatch.recording import Record, Recording, load

RECORDINGS = Path(__file__).resolve().parent.parent / "tests" / "triage" / "recordings"
HOT_MHZ, HOT_CELSIUS, HEAT = 1185, 91, 0x40
FEW_LANES = 4
SILENT_AFTER = 0.2  # of the recording
FALLEN_OFF = 79


@dataclass(frozen=True)
class Simulation:
    """A cause, the case that it is made from, what is changed, and how."""

    cause: str
    base: str
    changed: str
    change: Callable[[Recording], Iterable[Record]]

    @property
    def case(self) -> Path:
        """Where it goes."""
        return RECORDINGS / self.cause / "fires" / f"simulated-{Path(self.base).name}"


def too_hot(recording: Recording) -> Iterator[Record]:
    """The card says that heat holds its clock down, and the clock is down."""
    for record in recording.records:
        look = record.reading
        if isinstance(look, GpuSample):
            look = structs.replace(
                look,
                reasons=(look.reasons or 0) | HEAT,
                sm_clock_mhz=min(HOT_MHZ, look.sm_clock_mhz or HOT_MHZ),
                temperature_celsius=HOT_CELSIUS,
            )
        yield structs.replace(record, reading=look)


def few_lanes(recording: Recording) -> Iterator[Record]:
    """A quarter of the lanes came up."""
    for record in recording.records:
        look = record.reading
        if isinstance(look, GpuSample) and look.pcie_width is not None:
            look = structs.replace(look, pcie_width=FEW_LANES)
        yield structs.replace(record, reading=look)


def no_answer(recording: Recording) -> Iterator[Record]:
    """After a while no call into the driver comes back; the sampler says so each second."""
    since = recording.end * SILENT_AFTER
    for record in recording.records:
        if record.at <= since or not isinstance(record.reading, GpuSample | GpuActivity | GpuProcess):
            yield record
    wall = recording.session.created
    for second in range(1, int(recording.end - since) + 1):
        silence = GpuSilence(call="sample", waited_seconds=float(second), state="D")
        yield Record(at=since + second, wall=wall + since + second, reading=silence)


def fallen_off(recording: Recording) -> Iterator[Record]:
    """The driver announces that the card has fallen off the bus, and the job ends without another word."""
    uuid = next(one.reading.uuid for one in recording.records if isinstance(one.reading, Gpu))
    for record in recording.records:
        if not isinstance(record.reading, Traceback):
            yield record
    wall = recording.session.created + recording.end
    yield Record(at=recording.end, wall=wall, reading=GpuEvent(uuid=uuid, xid=FALLEN_OFF))


SIMULATIONS = (
    Simulation("throttled_gpu", "gpu_bound/fires/gpu_bound", "GpuSample: reasons, clock and temperature", too_hot),
    Simulation("degraded_link", "copy_bound/fires/copy_bound", "GpuSample: width of the link", few_lanes),
    Simulation(
        "driver_unresponsive",
        "stuck_kernel/fires/stuck_kernel-quiet",
        "readings of the card: GpuSilence",
        no_answer,
    ),
    Simulation("gpu_fault", "out_of_memory/fires/out_of_memory-gpu", "Traceback: GpuEvent instead", fallen_off),
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
    base = RECORDINGS / simulation.base
    recording, at = load(base), recorded.expected_of(base).at
    records = sorted(simulation.change(recording.until(at)), key=lambda record: record.at)
    made: dict[str, str | float] = {"simulated": simulation.changed, "from": simulation.base}
    recorded.store(simulation.case, recording, records, made, {})
    said = recorded.Expected.of(load(simulation.case), at)
    print(f"{simulation.case.relative_to(RECORDINGS)}: {said.state}/{said.cause}", flush=True)
    recorded.accept(simulation.case, said)
    return said.cause == simulation.cause


if __name__ == "__main__":
    sys.exit(main())
