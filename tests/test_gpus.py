"""The GPUs beside a job, as the recording gets them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from perfwatch.gpus import Gpus
from perfwatch.probes.filesystem import Filesystem
from perfwatch.probes.gpu import GpuProbe
from perfwatch.probes.gpu_binding import GpuBindingProbe
from perfwatch.probes.readings import Gpu, GpuProcess, ProbeCall, Process, Reading
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from tests.nvml_layer import FakeNvml, machine
from tests.sessions import session


class Taken:
    """What was recorded about the looks."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []

    def __call__(self, readings: Sequence[Reading]) -> None:
        """The sink."""
        self.readings += readings


def gpus(tmp_path: Path, nvml: FakeNvml | None, taken: Taken, clock: list[float]) -> Gpus:
    """A machine with a driver, or with None without one."""
    if nvml is not None:
        (tmp_path / "nvidiactl").touch()
    filesystem = Filesystem(proc=tmp_path, dev=tmp_path)
    probe = GpuProbe(lambda: nvml or machine(0), filesystem)
    return Gpus(probe, GpuBindingProbe(filesystem), taken, lambda: clock[0])


def test_a_machine_without_a_driver_is_said_once_and_nobody_misses_it(tmp_path: Path) -> None:
    """A job on CPUs has no line about GPUs in its verdict."""
    taken = Taken()
    found = gpus(tmp_path, None, taken, [0.0])

    assert [found.look(True), found.look(False)] == [[], []]
    (call,) = taken.readings
    assert isinstance(call, ProbeCall)
    assert (call.probe, call.outcome, call.reason) == ("gpu", "absent", "there is no NVIDIA driver here")
    history = History(at=1.0)
    history.add(0.5, call)
    assert Case(history, session()).missing == ()


@pytest.mark.parametrize("processes", [[], [GpuProcess(uuid="GPU-00000000", pid=100, local_pid=100)]])
def test_whose_a_card_is_follows_from_what_came(tmp_path: Path, processes: list[GpuProcess]) -> None:
    """A context binds; a machine whose cards are not known yet binds nobody."""
    found = gpus(tmp_path, machine(1), Taken(), [0.0])
    rank = Process(pid=100, start_ticks=1, parent_pid=1, name="python", command=())
    for one in processes:
        found.remember(one)

    assert found.known is False
    found.remember(Gpu(uuid="GPU-00000000", index=0, name="NVIDIA H200"))
    assert found.known is True
    assert found.users == {one.pid for one in processes}
    assert [one.how for one in found.bind([rank])] == (["nvml"] if processes else ["environment"])
    for one in processes:
        found.remember(GpuProcess(uuid=one.uuid, pid=one.pid, gone=True))
    assert found.users == set()
