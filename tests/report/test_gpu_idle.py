"""Which lines the GPU waits for: what is handed out is what was measured, to those who caused it."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfwatch.recording.recording import Record
from perfwatch.recording.session import Machine, Session
from perfwatch.report.gpu_idle import OffGpu, off_gpu
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch_probes import readings as r
from tests.recorded import load_case

UUID = "GPU-0"
LOADER = "/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py"
STACKS = {
    "loader": (r.Frame("_try_get_data", LOADER, 1291), r.Frame("<module>", "/app/train.py", 50)),
    "item": (r.Frame("log", "/app/train.py", 30), r.Frame("<module>", "/app/train.py", 52)),
    "train": (r.Frame("backward", "/venv/lib/python3.12/site-packages/torch/_tensor.py", 631), r.Frame("<module>", "/app/train.py", 51)),
}  # fmt: skip
HERTZ = 20  # as the watcher has py-spy sample
LOOK_SECONDS = 0.11


def simulated(phases: list[tuple[str, float, float]], seconds: float, gpm: bool = True) -> Iterator[Record]:
    """A loop of phases (where the thread is, for how long, how busy the card is then), as py-spy and the driver tell of it."""
    yield Record(
        0.0, r.Process(pid=7, start_ticks=1, parent_pid=1, name="python", command=("python",), python=True, rank=0)
    )
    yield Record(0.0, r.Gpu(uuid=UUID, index=0, name="NVIDIA H200"))
    yield Record(0.0, r.GpuBinding(pid=7, uuids=(UUID,), how="nvml", cuda=True))
    chance = random.Random(4)
    length = sum(part for _, part, _ in phases)

    def phase(at: float) -> tuple[str, float]:
        at %= length
        for name, part, busy in phases:
            if at < part:
                return name, busy
            at -= part
        return phases[-1][0], phases[-1][2]

    run: list[tuple[float, str]] = []
    for tick in range(int(seconds * HERTZ)):
        at = (tick + chance.random()) / HERTZ
        name, _ = phase(at)
        if run and run[-1][1] != name:
            yield stack(run)
            run = []
        run.append((at, name))
    yield stack(run)
    at = 0.0
    while at < seconds:
        ended = at + LOOK_SECONDS * (0.9 + 0.2 * chance.random())
        busy = sum(phase(at + (ended - at) * (part + 0.5) / 100)[1] for part in range(100)) / 100
        reading: r.Reading = (
            r.GpuActivity(uuid=UUID, interval_seconds=ended - at, graphics=busy, dram=0.3)
            if gpm
            else r.GpuSample(uuid=UUID, utilisation=busy)
        )
        yield Record(ended, reading)  # type: ignore[arg-type]
        at = ended


def stack(run: list[tuple[float, str]]) -> Record:
    """Samples in a row that showed the same."""
    begun, ended = run[0][0], run[-1][0]
    frames = STACKS[run[0][1]]
    reading = r.Stack(pid=7, tid=7, frames=frames, samples=len(run), span_seconds=ended - begun)
    return Record(ended, reading)


def found(phases: list[tuple[str, float, float]], seconds: float = 30.0, gpm: bool = True) -> OffGpu:
    """What comes of it."""
    machine = Machine(name="a", kernel="6", architecture="x86_64", cpus=8, memory_bytes=1)
    session = Session(version="0", created=0.0, mode="attach", machine=machine, root_pids=(7,))
    records = sorted(simulated(phases, seconds, gpm), key=lambda one: one.at)
    result = off_gpu(Case(History(records, seconds), session))
    assert result is not None
    return result


def share(result: OffGpu, frame: r.Frame) -> float:
    """Of the idle time, below one frame."""
    return sum(one.idle_seconds for one in result.awaited if frame in one.frames) / result.idle_seconds


@pytest.mark.parametrize("gpm", [True, False], ids=["units", "utilisation"])
@pytest.mark.parametrize("step_seconds", [1.0, 0.37])
def test_a_known_split_comes_out(gpm: bool, step_seconds: float) -> None:
    """60 % of the idle time is the loader's and 40 % is ``.item()``'s, though the thread is as long in the backward pass."""
    phases = [
        ("loader", 0.36 * step_seconds, 0.0),
        ("item", 0.24 * step_seconds, 0.0),
        ("train", 0.4 * step_seconds, 1.0),
    ]

    result = found(phases, gpm=gpm)

    assert share(result, STACKS["loader"][0]) == pytest.approx(0.60, abs=0.05)
    assert share(result, STACKS["item"][0]) == pytest.approx(0.40, abs=0.05)


def test_what_is_handed_out_is_what_was_measured() -> None:
    """The seconds of all lines are the card's own idle seconds, and its share is that of the phases."""
    result = found([("loader", 0.3, 0.0), ("train", 0.7, 0.9)])

    assert sum(one.idle_seconds for one in result.awaited) == pytest.approx(result.idle_seconds)
    assert result.idle_share == pytest.approx(0.37, abs=0.02)
    assert result.all_idle_share == pytest.approx(0.37, abs=0.02)


def test_phases_shorter_than_a_look_are_said_not_to_be_told_apart() -> None:
    """With steps of 5 ms every interval is the same mixture."""
    long = found([("loader", 0.5, 0.0), ("train", 0.5, 1.0)])
    short = found([("loader", 0.0025, 0.0), ("train", 0.0025, 1.0)])

    assert long.told_apart > 0.9
    assert short.told_apart < 0.5


def test_without_looks_at_a_card_there_is_nothing_to_weigh() -> None:
    """Missing is not zero: a rank without a card has no waiting lines."""
    machine = Machine(name="a", kernel="6", architecture="x86_64", cpus=8, memory_bytes=1)
    session = Session(version="0", created=0.0, mode="attach", machine=machine, root_pids=(7,))
    records = [one for one in simulated([("train", 1.0, 1.0)], 5.0) if not isinstance(one.reading, r.GpuActivity)]

    assert off_gpu(Case(History(records, 5.0), session)) is None


def test_a_known_split_of_a_real_loop_comes_out_within_five_points() -> None:
    """On an H200: 60 % of its idle time for the loader, 40 % at ``.item()``. What its counters tell is 0.15 s old."""
    recording = load_case(Path(__file__).parent / "awaited_lines")
    found = off_gpu(Case(History(recording.records, recording.end), recording.session))
    assert found is not None
    by_line = {"loader": 0.0, "item": 0.0, "else": 0.0}
    for one in found.awaited:
        names = [frame.function for frame in one.frames]
        where = (
            "item"
            if "read_again_and_again" in names
            else "loader"
            if "_BaseDataLoaderIter.__next__" in names
            else "else"
        )
        by_line[where] += one.idle_seconds / found.idle_seconds

    both = by_line["loader"] + by_line["item"]
    assert found.idle_share == pytest.approx(0.57, abs=0.02)
    assert both > 0.93
    assert by_line["loader"] / both == pytest.approx(0.60, abs=0.05)
