"""The GPUs beside a job, as the recording gets them."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.watching.gpus import Gpus
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.gpu import GpuProbe
from perfwatch_probes.gpu_binding import GpuBindingProbe
from perfwatch_probes.readings import Gpu, GpuProcess, ProbeCall, Process, Reading
from tests.nvml_layer import FakeNvml, machine
from tests.sessions import session

PATIENCE_SECONDS = 20.0


class Taken:
    """What was recorded about the looks."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []

    def __call__(self, readings: Sequence[Reading]) -> None:
        """The sink."""
        self.readings += readings


def gpus(tmp_path: Path, nvml: FakeNvml | None, taken: Taken) -> tuple[Gpus, GpuProbe]:
    """A machine with a driver, or with None without one."""
    if nvml is not None:
        (tmp_path / "nvidiactl").touch()
    filesystem = Filesystem(proc=tmp_path, dev=tmp_path)
    probe = GpuProbe(lambda: nvml or machine(0), filesystem)
    return Gpus(probe, GpuBindingProbe(filesystem), taken, time.monotonic), probe


def test_a_machine_without_a_driver_is_said_once_and_nobody_misses_it(tmp_path: Path) -> None:
    """A job on CPUs has no line about GPUs in its verdict."""
    taken = Taken()
    found, _ = gpus(tmp_path, None, taken)

    assert [found.look(True), found.look(False)] == [[], []]
    (call,) = taken.readings
    assert isinstance(call, ProbeCall)
    assert (call.probe, call.outcome, call.reason) == ("gpu", "absent", "there is no NVIDIA driver here")
    history = History(at=1.0)
    history.add(0.5, call)
    assert Case(history, session()).missing == ()


@pytest.mark.live
def test_a_driver_without_a_card_is_nothing_to_miss_either(tmp_path: Path) -> None:
    """The driver says so itself; it is not asked again."""
    taken = Taken()
    found, probe = gpus(tmp_path, machine(0), taken)
    found.look(False)  # starts the sampler
    probe.wait(PATIENCE_SECONDS)

    assert [found.look(False), found.look(False)] == [[], []]
    found.close()
    calls = [one for one in taken.readings if isinstance(one, ProbeCall)]
    assert [(one.outcome, one.reason) for one in calls][-1] == ("absent", "the NVIDIA driver has no GPU for us")


@pytest.mark.parametrize("processes", [[], [GpuProcess(uuid="GPU-00000000", pid=100, local_pid=100)]])
def test_whose_a_card_is_follows_from_what_came(tmp_path: Path, processes: list[GpuProcess]) -> None:
    """A context binds; where no card is seen, only who uses CUDA all the same is told, and of nobody here that can be said."""
    found, _ = gpus(tmp_path, machine(1), Taken())
    job = {
        pid: Process(pid=pid, start_ticks=1, parent_pid=1, name="python", command=(), environment={})
        for pid in (100, 200)
    }
    for one in processes:
        found.remember(one)

    before = found.bind([200], job)
    assert {one.pid: one.cuda for one in before} == ({100: True} if processes else {})
    found.remember(Gpu(uuid="GPU-00000000", index=0, name="NVIDIA H200"))
    bound = {one.pid: one.how for one in [*before, *found.bind([200], job)]}
    assert bound == {200: "environment"} | ({100: "nvml"} if processes else {})
    for one in processes:
        found.remember(GpuProcess(uuid=one.uuid, pid=one.pid, gone=True))
    assert [one.pid for one in found.bind([200], job)] == [one.pid for one in processes]


def test_a_card_that_was_lost_first_counts_once_when_it_is_found(tmp_path: Path) -> None:
    """Only then can it be said which card a number names."""
    found, _ = gpus(tmp_path, machine(2), Taken())
    environment = {"CUDA_VISIBLE_DEVICES": "1"}
    job = {7: Process(pid=7, start_ticks=1, parent_pid=1, name="python", command=(), environment=environment)}
    found.remember(Gpu(uuid="gpu 0", index=0, name="", lost=True))
    found.remember(Gpu(uuid="GPU-b", index=1, name="NVIDIA H200"))
    before = found.bind([7], job)
    found.remember(Gpu(uuid="GPU-a", index=0, name="NVIDIA H200"))

    assert [[one.uuids for one in bound] for bound in (before, found.bind([7], job))] == [[()], [("GPU-b",)]]


class Broken(GpuProbe):
    """A sampler whose frames are not as thought."""

    def look(self, full: bool = False) -> list[tuple[float, Reading]]:
        """What has come."""
        raise RuntimeError("not as thought")


def test_whatever_the_sampler_raises_is_said_once_and_ends_no_round(tmp_path: Path) -> None:
    """The watch goes on without cards."""
    taken = Taken()
    filesystem = Filesystem(proc=tmp_path, dev=tmp_path)
    found = Gpus(Broken(lambda: machine(1), filesystem), GpuBindingProbe(filesystem), taken, time.monotonic)

    assert [found.look(True), found.look(True)] == [[], []]
    (call,) = taken.readings
    assert isinstance(call, ProbeCall)
    assert (call.outcome, call.reason) == ("unavailable", "RuntimeError: not as thought")
