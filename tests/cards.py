"""Cards for tests of triage: rows of the recorded series and of the table of measured loads, as readings."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from perfwatch.triage.history import History
from perfwatch_probes.readings import Gpu, GpuActivity, GpuBinding, GpuSample, Reading

SERIES = Path(__file__).parent / "triage" / "gpu_series.jsonl"
UUID = "GPU-0"
STEP_SECONDS = 0.2

# graphics, SM, occupancy, tensor, DRAM, FP32 (percent), PCIe received (MiB/s), watts, NVLink (MiB/s): an H200, each load alone.
LOADS: dict[str, tuple[float, ...]] = {
    "bf16_matmul": (100, 96, 14, 94, 16, 0, 12, 691, 0),
    "tf32_matmul": (100, 96, 18, 93, 17, 0, 12, 691, 0),
    "fp32_matmul": (100, 97, 12, 0, 3, 77, 3, 695, 0),
    "elementwise": (100, 99, 85, 0, 88, 2, 20, 566, 0),
    "tiny_kernels": (36, 0.2, 0, 0, 0, 0, 296, 132, 0),
    "item_each_step": (49, 9.5, 0.5, 0, 0, 1.4, 208, 154, 0),
    "pageable_copies": (0, 0, 0, 0, 0.2, 0, 10129, 132, 0),
    "one_spinning_kernel": (100, 0.8, 0, 0, 0, 0, 0, 130, 0),
    "starved": (4.6, 3.7, 0.5, 3.5, 0.6, 0, 1.5, 172, 0),
    "idle_context": (0, 0, 0, 0, 0, 0, 0, 130, 0),
    "stalled_all_reduce": (100, 18, 4.8, 0, 0, 0, 0.5, 129, 0),
    "all_reduce_over_sockets": (100, 1.5, 0.4, 0, 0, 0, 69, 129, 0),
    "late_peer": (99, 18.6, 5, 0.5, 1, 0.3, 30, 146, 492),
    "big_all_reduce": (99, 26, 8, 0, 24, 0, 30, 281, 255_700),
}


def h200(uuid: str = UUID, index: int = 0) -> Gpu:
    """The card that the loads were measured on."""
    return Gpu(
        uuid=uuid,
        index=index,
        name="NVIDIA H200",
        architecture="hopper",
        compute_capability=(9, 0),
        sms=132,
        memory_bytes=150_754_820_096,
        memory_bus_bits=6144,
        power_limit_watts=700.0,
        sm_clock_max_mhz=1980,
        memory_clock_max_mhz=3201,
        pcie_generation_max=5,
        pcie_width_max=16,
        gpm=True,
    )


def load(name: str, uuid: str = UUID, **changes: object) -> list[Reading]:
    """One look at a card under a measured load; ``changes`` go to the sample."""
    graphics, sm, occupancy, tensor, dram, fp32, pcie, watts, nvlink = LOADS[name]
    sample: dict[str, object] = {
        "memory_utilisation": round(min(1.0, dram / 77), 2),
        "utilisation": 1.0 if graphics >= 99 else round(graphics / 100, 2),
        "power_watts": watts,
        "sm_clock_mhz": 1470 if watts > 680 else 1980,
        "memory_clock_mhz": 3201,
        **changes,
    }
    return [
        GpuSample(uuid=uuid, **sample),  # type: ignore[arg-type]
        GpuActivity(
            uuid=uuid,
            interval_seconds=STEP_SECONDS,
            graphics=graphics / 100,
            sm_active=sm / 100,
            sm_occupancy=occupancy / 100,
            tensor=tensor / 100,
            dram=dram / 100,
            fp32=fp32 / 100,
            fp16=0.0,
            fp64=0.0,
            integer=0.0016,
            pcie_received_mib_per_second=pcie,
            pcie_sent_mib_per_second=0.7,
            nvlink_received_mib_per_second=nvlink,
            nvlink_sent_mib_per_second=nvlink,
        ),
    ]


def under(
    history: History,
    name: str,
    since: float,
    until: float,
    uuid: str = UUID,
    monitored: bool = True,
    **changes: object,
) -> None:
    """Fill a history with so many seconds of a load; of a card without performance monitoring, if so wanted."""
    for number in range(round((until - since) / STEP_SECONDS) + 1):
        for reading in load(name, uuid, **changes)[: 2 if monitored else 1]:
            history.add(since + number * STEP_SECONDS, reading)
    history.at = max(history.at, until)


@cache
def recorded() -> tuple[tuple[float, Reading], ...]:
    """Two H200: idle, start, two ranks in step, one that never joins (18 s to 35 s), killed, then one training on the first."""
    return tuple(_recorded())


def _recorded() -> Iterator[tuple[float, Reading]]:
    before: dict[int, float] = {}
    for line in SERIES.read_text().splitlines():
        row = json.loads(line)
        at, uuid = row["at"], f"GPU-{row['gpu']}"
        if row["gpu"] not in before:
            yield at, h200(uuid, row["gpu"])
        sample, activity = row["sample"], row["activity"]
        yield at, GpuSample(uuid=uuid, **sample)
        if activity:
            yield (
                at,
                GpuActivity(uuid=uuid, interval_seconds=round(at - before.get(row["gpu"], at - 0.2), 3), **activity),
            )
        before[row["gpu"]] = at


def history_until(at: float, *kinds: type[Reading]) -> History:
    """The recorded series up to a moment; with ``kinds``, only those readings."""
    history = History(at=at)
    for when, reading in recorded():
        if when <= at and (not kinds or isinstance(reading, kinds)):
            history.add(when, reading)
    return history


def bound(pid: int, *uuids: str, how: str = "nvml") -> GpuBinding:
    """A process that uses these cards."""
    return GpuBinding(pid=pid, uuids=uuids or (UUID,), visible=uuids or (UUID,), how=how, cuda=True)
