"""Made-up recordings of small runs: a process that trains, its steps, its stacks, and the machine around it."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfwatch.recording.recording import Record, Recorder, Recording
from perfwatch_probes.readings import Frame, Host, Process, ProcessUsage, Reading, Software, Stack, Steps
from tests.sessions import PATIENCE_SECONDS, session

TRAINER = 700
LOADER = "/usr/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
OPTIMIZER = "/usr/lib/python3.11/site-packages/torch/optim/sgd.py"


def step_times(count: int, middle_seconds: float, seed: int = 0, spread: float = 0.05) -> list[float]:
    """Steps of about so long, drifting slowly up and down as on a shared machine."""
    chance = random.Random(seed)
    drift, times = 0.0, []
    for _ in range(count):
        drift = 0.9 * drift + chance.gauss(0.0, spread / 4)
        times.append(middle_seconds * (1.0 + drift + abs(chance.gauss(0.0, spread))))
    return times


def run(
    intervals: Sequence[float],
    *,
    waiting: float = 0.0,
    warm_up: Sequence[float] = (5.0,) * 10,
    world_size: int | None = None,
    torch: str = "2.13.0",
    environment: Mapping[str, str] | None = None,
    **changes: object,
) -> Recording:
    """A recording, one look a second.

    Args:
        intervals: seconds of each step after the warm-up.
        waiting: share of the stack samples in which the trainer waits for data.
        warm_up: seconds of the first steps.
        world_size: what the process says.
        torch: its version.
        environment: as much of the process' as is recorded.
        changes: of the session.
    """
    process = Process(
        pid=TRAINER, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"), python=True,
        torch_loaded=True, rank=0, world_size=world_size, environment=dict(environment or {}),
    )  # fmt: skip
    records = [_record(0.0, process), _record(0.0, Software(pid=TRAINER, torch=torch))]
    times = [*warm_up, *intervals]
    at, fresh, second = 0.0, [], 1.0
    for number, interval in enumerate(times, start=1):
        at += interval
        fresh.append(interval)
        if at >= second or number == len(times):
            records += _look(round(at, 3), number, fresh, waiting)
            fresh, second = [], at + 1.0
    return Recording(session(**changes), tuple(records))


def _look(at: float, count: int, fresh: Sequence[float], waiting: float) -> list[Record]:
    waits, trains = Frame("_get_data", LOADER, 9), Frame("step", OPTIMIZER, 9)
    own = Frame("main", "/app/train.py", 9)
    readings: list[Reading] = [
        Steps(pid=TRAINER, tid=TRAINER, count=count, step_ago_seconds=0.0, interval_seconds=tuple(fresh[-64:])),
        Stack(pid=TRAINER, tid=TRAINER, frames=(waits, own), samples=round(100 * waiting)),
        Stack(pid=TRAINER, tid=TRAINER, frames=(trains, own), samples=round(100 * (1 - waiting))),
        ProcessUsage(
            pid=TRAINER, state="R", threads=9, cpu_seconds=0.5 * at, major_faults=0, minor_faults=0,
            resident_bytes=2**30, read_bytes=round(at * 2**20),
        ),
        Host(
            cpus_online=8, user_seconds=2 * at, system_seconds=0, idle_seconds=6 * at, iowait_seconds=0, steal_seconds=0,
            memory_total_bytes=2**34, memory_available_bytes=2**33,
        ),
    ]  # fmt: skip
    return [_record(at, reading) for reading in readings]


def _record(at: float, reading: Reading) -> Record:
    return Record(at, reading)  # type: ignore[arg-type]


def keep(recording: Recording, folder: Path) -> Path:
    """The same on disk, made by the product's own recorder."""
    folder.mkdir(mode=0o700)
    recorder = Recorder(folder, recording.session)
    for record in recording.records:
        recorder.append(record.at, [record.reading])
    assert recorder.close(PATIENCE_SECONDS) == ""
    return folder
