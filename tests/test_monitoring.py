"""Rows of GPUs, and who is on them."""

from pathlib import Path

import pytest

from perfwatch.dmon.rows import Monitor
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.deadline import Inline
from perfwatch_probes.nvml_gpm import REFRESH_SECONDS
from perfwatch_probes.nvml_layer import Happened, Listed
from perfwatch_probes.nvml_sampler import RARE_SECONDS, SLOW_SECONDS, Sampler
from perfwatch_probes.nvml_thinning import Timed
from perfwatch_probes.probe import Unavailable
from tests.machines import FakeMachine
from tests.nvml_layer import IDLE, FakeCard, FakeNvml, answers, machine
from tests.probes.test_steps import SECOND, even, page

RANK, PLAIN, STRANGER = 41, 42, 43


class Scene:
    """A machine with cards, on a clock of its own: each ``pass_time`` is one look of the sampler."""

    def __init__(self, nvml: FakeNvml, root: Path) -> None:
        self.now = 1000.0
        self.nvml = nvml
        self.machine = FakeMachine(root)
        self.machine.process(RANK, 1, environ="RANK=3 LOCAL_RANK=0")
        self.machine.process(PLAIN, 1, "jupyter", name="jupyter")
        self.agent = root / "agent"
        self.agent.mkdir()
        self.trouble: Unavailable | None = None
        self._ready: list[Timed] = []
        self._sampler = Sampler(nvml, lambda: self.now, to_local=lambda pid, minor: None if pid == STRANGER else pid)
        self._sampler.attend()
        if nvml.cards:
            self._ready += self._sampler.start()
        self.monitor = Monitor(
            self,
            self.machine.filesystem,
            Inline(),
            clock=lambda: self.now,
            wall=lambda: 1_795_175_484.0,
            place_of=lambda pid: AgentFolder(self.agent) if pid == RANK else None,
        )

    def look(self, full: bool = False) -> list[Timed]:
        """The layer's readings since the last look."""
        ready, self._ready = self._ready, []
        return ready

    def pass_time(self, seconds: float = 0.1) -> None:
        """The sampler's next round, so much later, and gather."""
        self.now += seconds
        self._ready += self._sampler.round()
        self.monitor.gather()

    def steps(self, last: int) -> None:
        """What the agent of the rank has counted."""
        (self.agent / f"steps-{RANK}").write_bytes(page(even(last, SECOND // 10), pid=RANK))


def test_a_row_is_the_mean_of_its_interval(tmp_path: Path) -> None:
    """Half of the looks saw work and half did not."""
    scene = Scene(machine(1), tmp_path)
    for tenth in range(11):
        scene.nvml.cards[0].activity = IDLE if tenth % 2 else IDLE | {1: 100.0}
        scene.nvml.cards[0].fields[186] = 100_000 if tenth % 2 else 300_000
        scene.pass_time(REFRESH_SECONDS)

    (row,) = scene.monitor.rows()

    assert row.sample is not None
    assert row.activity is not None
    assert row.sample.power_watts == pytest.approx(200.0, abs=10.0)
    assert row.activity.graphics == 0.5


def test_counters_grow_between_two_looks_at_them(tmp_path: Path) -> None:
    """So the first row has no rates; a row without looks keeps the last ones and has nothing else."""
    scene = Scene(machine(1), tmp_path)
    scene.pass_time()
    (first,) = scene.monitor.rows()
    scene.nvml.cards[0].fields[74] = 500_000_000
    scene.pass_time(SLOW_SECONDS)
    (row,) = scene.monitor.rows()
    (silent,) = scene.monitor.rows()

    assert first.rates == {}
    assert row.rates == {"power_violation_ns": pytest.approx(5e8)}
    assert silent.rates == row.rates
    assert silent.sample is None
    assert silent.activity is None


def test_a_number_that_is_read_now_and_then_stays_until_the_next_time(tmp_path: Path) -> None:
    """How often PCIe had to repeat itself."""
    nvml = machine(1)
    nvml.cards[0].fields[94] = 7
    scene = Scene(nvml, tmp_path)
    shown = []
    for _ in range(2):
        scene.pass_time()
        shown += [row.sample.pcie_replays for row in scene.monitor.rows() if row.sample is not None]

    assert shown == [7, 7]


def test_ranks_and_their_steps_stand_beside_the_card(tmp_path: Path) -> None:
    """Others by their name, and those of another namespace by the number that the driver gives them."""
    listed = [Listed(RANK, 2**30), Listed(PLAIN, 2**20), Listed(STRANGER, None)]
    scene = Scene(machine(1, processes={"compute": listed}), tmp_path)
    scene.steps(20)
    scene.pass_time()
    scene.monitor.rows()
    scene.steps(40)
    scene.pass_time(2.0)

    (row,) = scene.monitor.rows()

    rank, plain, stranger = row.occupants
    assert (rank.rank, rank.pid, rank.step, rank.memory_bytes) == (3, RANK, 40, 2**30)
    assert rank.steps_per_second == pytest.approx(10.0)
    assert (plain.name, plain.rank, plain.step) == ("jupyter", None, None)
    assert (stranger.pid, stranger.host, stranger.name) == (STRANGER, True, "")


def test_who_has_left_the_card_is_no_longer_named(tmp_path: Path) -> None:
    """Its context is gone."""
    scene = Scene(machine(1, processes={"compute": [Listed(PLAIN, 1)]}), tmp_path)
    scene.pass_time()
    scene.nvml.cards[0].processes = {}
    scene.pass_time(SLOW_SECONDS)

    assert scene.monitor.rows()[0].occupants == ()


def test_an_xid_stands_in_the_row_of_its_interval(tmp_path: Path) -> None:
    """And not in the next one."""
    scene = Scene(machine(2), tmp_path)
    scene.nvml.cards[1].events.append(Happened(8, 31))
    scene.pass_time()

    assert [row.xids for row in scene.monitor.rows()] == [(), (31,)]
    assert [row.xids for row in scene.monitor.rows()] == [(), ()]


def test_a_card_that_was_lost_first_has_one_row_when_it_is_found(tmp_path: Path) -> None:
    """The row that stood for it is gone."""
    scene = Scene(FakeNvml([FakeCard("GPU-a", lost=True), FakeCard("GPU-b")]), tmp_path)
    scene.pass_time()
    before = [(row.number, row.gpu.lost) for row in scene.monitor.rows()]
    scene.nvml.cards[0].lost = False
    scene.pass_time(RARE_SECONDS)

    assert before == [("0", True), ("1", False)]
    assert [(row.number, row.gpu.uuid) for row in scene.monitor.rows()] == [("0", "GPU-a"), ("1", "GPU-b")]


def test_parts_of_a_card_follow_it_and_are_numbered(tmp_path: Path) -> None:
    """MIG devices have no number of their own in NVML."""
    parts = [FakeCard(f"MIG-{letter}", answers=answers(nvmlDeviceGetGpuInstanceId=0)) for letter in "ab"]
    whole = FakeCard(
        "GPU-a", answers=answers(nvmlDeviceGetMigMode=(1, 1), nvmlDeviceGetMaxMigDeviceCount=7), parts=parts
    )
    scene = Scene(FakeNvml([FakeCard("GPU-0"), whole]), tmp_path)
    scene.pass_time()

    assert [(row.number, row.gpu.uuid) for row in scene.monitor.rows()] == [
        ("0", "GPU-0"), ("1", "GPU-a"), ("1.0", "MIG-a"), ("1.1", "MIG-b"),
    ]  # fmt: skip


def test_rows_wait_until_every_card_that_answers_was_read(tmp_path: Path) -> None:
    """A lost one is not waited for."""
    scene = Scene(FakeNvml([FakeCard("GPU-a"), FakeCard("GPU-b", lost=True)]), tmp_path)
    scene.monitor.gather()

    assert not scene.monitor.ready
    scene.pass_time()
    assert scene.monitor.ready
    assert [row.gpu.lost for row in scene.monitor.rows()] == [False, True]


def test_a_driver_that_refuses_is_an_error_and_one_that_falls_silent_is_said(tmp_path: Path) -> None:
    """Without cards there is nothing to show; with them there is the past."""
    scene = Scene(machine(1), tmp_path)
    scene.pass_time()
    scene.trouble = Unavailable("the NVIDIA driver does not answer: gpm")
    scene.monitor.gather()
    assert scene.monitor.silence == "the NVIDIA driver does not answer: gpm"

    empty = Scene(FakeNvml(), tmp_path / "other")
    empty.trouble = Unavailable("NVML: Driver Not Loaded", "modprobe nvidia")
    with pytest.raises(Unavailable):
        empty.monitor.gather()


def test_another_process_with_the_pid_of_one_that_has_left_is_told_as_itself(tmp_path: Path) -> None:
    """Its name and rank are its own, and its steps are not counted on from the other one's."""
    scene = Scene(machine(1, processes={"compute": [Listed(RANK, 1)]}), tmp_path)
    scene.steps(40)
    scene.pass_time()
    scene.monitor.rows()
    (scene.machine.proc / str(RANK) / "exe").unlink()
    scene.machine.process(RANK, 1, "jupyter", name="jupyter")
    stat = scene.machine.proc / str(RANK) / "stat"
    stat.write_text(stat.read_text().replace(f" 1 0 {RANK} ", f" 1 0 {RANK + 1} "))
    scene.steps(20)
    scene.pass_time(2.0)

    (occupant,) = scene.monitor.rows()[0].occupants

    assert (occupant.name, occupant.rank) == ("jupyter", None)
    assert (occupant.step, occupant.steps_per_second) == (20, None)
