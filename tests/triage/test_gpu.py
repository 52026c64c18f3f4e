"""What a card is doing is told from its units, not from its utilisation."""

import pytest
from msgspec import structs

from perfwatch.triage.cards.gpu import MONITORED, Regime, regime, regimes
from perfwatch.triage.cards.kernels import kernels
from perfwatch.triage.cards.residency import GUESSED, REMEMBERED, returns
from perfwatch.triage.cards.whose import Cards, cards_of
from perfwatch.triage.history import History
from perfwatch_probes.readings import Gpu, GpuActivity, GpuBinding, GpuProcess, GpuSample
from tests.cards import LOADS, UUID, bound, history_until, load, under

KINDS = {
    "bf16_matmul": "work",
    "tf32_matmul": "work",
    "fp32_matmul": "work",
    "elementwise": "work",
    "tiny_kernels": "wait",
    "item_each_step": "wait",
    "pageable_copies": "idle",
    "one_spinning_kernel": "spin",
    "starved": "wait",
    "idle_context": "idle",
    "stalled_all_reduce": "spin",
    "all_reduce_over_sockets": "work",
    "late_peer": "work",
    "big_all_reduce": "work",
}


@pytest.mark.parametrize("name", LOADS)
def test_every_measured_load_is_told_by_its_units(name: str) -> None:
    """Utilisation reads 100 % for half of them."""
    history = History()
    under(history, name, 0.0, 5.0)

    assert regime(history, UUID).kind == KINDS[name]


@pytest.mark.parametrize(
    ("at", "uuid", "kind"),
    [
        (17.8, "GPU-0", "work"),
        (17.8, "GPU-1", "work"),
        (24.0, "GPU-0", "spin"),
        (24.0, "GPU-1", "idle"),
        (50.0, "GPU-0", "work"),
    ],
)
def test_a_recorded_hang_and_the_training_around_it(at: float, uuid: str, kind: str) -> None:
    """Two ranks in step, then one waits at 100 % utilisation for the other, whose card is idle; later a training alone."""
    found = regime(history_until(at), uuid, 3.5)

    assert (found.kind, found.sure) == (kind, MONITORED)


def test_a_hang_is_told_from_utilisation_and_power_by_what_the_run_drew_before() -> None:
    """A card without performance monitoring: 126 W at 100 % is nothing for a run that drew 650 W."""
    found = regime(history_until(24.0, Gpu, GpuSample), "GPU-0", 3.0)

    assert (found.kind, found.source, found.sure) == ("spin", "nvml", REMEMBERED)


def test_without_a_past_the_power_limit_stands_in_and_is_only_a_guess() -> None:
    """Attached after the hang began: a fifth of the limit at full utilisation."""
    history = History(at=24.0)
    for one in history_until(24.0, Gpu, GpuSample).every(GpuSample):
        if one.at > 20:
            history.add(one.at, one.reading)
    history.add(20.0, history_until(24.0, Gpu).every(Gpu)[0].reading)

    assert (regime(history, "GPU-0").kind, regime(history, "GPU-0").sure) == ("spin", GUESSED)


def test_training_without_performance_monitoring_is_work() -> None:
    """650 W at 100 %."""
    found = regime(history_until(46.8, Gpu, GpuSample), "GPU-0", 1.5)

    assert (found.kind, found.source) == ("work", "nvml")


def test_a_card_that_is_no_longer_read_is_not_known() -> None:
    """Missing is not zero: the last reading says nothing about now."""
    history = History()
    under(history, "one_spinning_kernel", 0.0, 5.0)
    history.at = 12.0

    assert regime(history, UUID, 20.0).kind == "unknown"


def test_a_card_that_is_read_seldom_is_judged_by_fewer_and_longer_looks() -> None:
    """Eight cards on a slow driver: one comparison of each in three seconds."""
    history = History()
    for at in (3.0, 6.0):
        history.add(at, GpuActivity(uuid=UUID, interval_seconds=3.0, graphics=1.0, dram=0.3, sm_active=0.9))
    history.at = 11.0

    assert regime(history, UUID, 20.0).kind == "work"


def test_one_look_is_not_enough() -> None:
    """Two are the least between which anything can be flat, three rule out chance."""
    history = History()
    for reading in load("one_spinning_kernel"):
        history.add(1.0, reading)
    history.at = 1.0

    assert regime(history, UUID).kind == "unknown"


def test_how_long_it_spins_is_counted_from_its_last_work() -> None:
    """In the recorded series rank 0 waits from 18 s on."""
    assert kernels(history_until(24.0), "GPU-0").since_seconds == pytest.approx(5.9, abs=0.5)


def test_work_in_between_ends_a_spin() -> None:
    """A kernel that waits in each step is not one that never ends."""
    history = History()
    under(history, "one_spinning_kernel", 0.0, 4.0)
    under(history, "bf16_matmul", 4.2, 4.2)
    under(history, "one_spinning_kernel", 4.4, 9.0)

    assert kernels(history, UUID).since_seconds == pytest.approx(4.8, abs=0.3)


@pytest.mark.parametrize(("neighbours", "ends"), [((), 2), ((4.4,), 1), ((4.4, 6.4), 0), ((4.4, 6.4, 7.0, 8.0), 2)])
def test_a_neighbour_that_begins_to_use_its_own_card_ends_no_kernel_here(
    neighbours: tuple[float, ...], ends: int
) -> None:
    """Its start halts every card of the host for a moment; where many come and go, every gap counts."""
    history = History()
    for number in range(50):
        sample, activity = load("one_spinning_kernel")
        assert isinstance(activity, GpuActivity)
        parts = {name: getattr(activity, name) for name in activity.__struct_fields__}
        gap = number in (20, 30)  # at 4.0 and at 6.0 s
        history.add(number * 0.2, GpuActivity(**{**parts, "interval_seconds": 0.2, "graphics": 0.996 if gap else 1.0}))
        history.add(number * 0.2, sample)
    for pid, at in enumerate(neighbours, start=900):
        history.add(at, GpuProcess(pid=pid, local_pid=pid, uuid="GPU-2"))
    history.at = 9.8

    assert len(kernels(history, UUID).ended) == ends


@pytest.mark.parametrize("unit", ["tensor", "dram", "pcie_received_mib_per_second", "nvlink_received_mib_per_second"])
def test_any_data_that_moves_makes_it_work(unit: str) -> None:
    """A thousandth of the memory's bandwidth is five gigabytes a second."""
    history = History()
    moved = 40.0 if unit.endswith("second") else 0.01
    for number in range(20):
        sample, activity = load("one_spinning_kernel")
        assert isinstance(activity, GpuActivity)
        parts = {name: getattr(activity, name) for name in activity.__struct_fields__}
        history.add(number * 0.2, GpuActivity(**{**parts, unit: moved}))
        history.add(number * 0.2, sample)
    history.at = 4.0

    assert regime(history, UUID).kind == "work"


def test_the_cards_of_a_rank_are_those_that_it_is_bound_to() -> None:
    """The other card of the machine belongs to somebody else."""
    history = history_until(24.0)
    history.add(0.0, bound(700, "GPU-1"))

    assert cards_of(history, 700) == Cards(("GPU-1",), "nvml")
    assert [one.kind for one in regimes(history, 700)] == ["idle"]


def test_a_process_without_cuda_has_no_card() -> None:
    """A training on the CPU, on a machine with cards."""
    history = history_until(24.0)
    history.add(0.0, GpuBinding(pid=700, cuda=False))

    assert cards_of(history, 700) == Cards()


def test_where_no_binding_is_known_every_card_is_judged_and_that_is_said() -> None:
    """In a container whose pids the driver does not know."""
    assert cards_of(history_until(24.0), 700) == Cards(("GPU-0", "GPU-1"), "device")
    assert not cards_of(history_until(24.0), 700).certain


def test_a_kernel_that_computes_and_moves_nothing_spins_but_may_end() -> None:
    """An iteration in registers: nobody can see from outside whether it converges."""
    history = History()
    for number in range(20):
        history.add(
            number * 0.2,
            GpuActivity(uuid=UUID, interval_seconds=0.2, graphics=1.0, sm_active=1.0, dram=0.0, tensor=0.0, fp32=0.4),
        )
    history.at = 4.0

    assert (regime(history, UUID).kind, regime(history, UUID).computes) == ("spin", True)


def test_kernels_of_some_seconds_are_seen_to_end() -> None:
    """Between two of them the card is without one for a quarter of a millisecond."""
    history = History()
    for number in range(150):
        resident = 0.9977 if number % 40 == 39 else 1.0
        history.add(number * 0.1, GpuActivity(uuid=UUID, interval_seconds=0.1, graphics=resident, dram=0.0, tensor=0.0))
    history.at = 14.9
    seen = kernels(history, UUID)

    assert (len(seen.ended), seen.go_on) == (3, True)
    assert seen.longest_seconds == pytest.approx(4.0, abs=0.2)
    history.at = 40.0
    assert not kernels(history, UUID).go_on


def test_a_card_that_had_nothing_to_do_ran_no_long_kernel() -> None:
    """The first look reaches back to when the card was opened: seconds in which no kernel ran."""
    history = History()
    history.add(4.5, GpuActivity(uuid=UUID, interval_seconds=4.5, graphics=0.0, dram=0.0, tensor=0.0))
    for number in range(50, 200):
        resident, dram = (0.97, 0.3) if number < 100 else (1.0, 0.0)
        history.add(
            number * 0.1, GpuActivity(uuid=UUID, interval_seconds=0.1, graphics=resident, dram=dram, tensor=0.0)
        )
    history.at = 19.9
    seen = kernels(history, UUID)

    assert (seen.longest_seconds < 1.0, seen.go_on) == (True, False)
    assert seen.since_seconds == pytest.approx(10.0, abs=0.2)


@pytest.mark.parametrize(
    ("units", "kind", "computes"),
    [
        ({"tensor": 0.0102, "integer": 0.0153, "dram": 0.0}, "spin", False),
        ({"tensor": 0.0102, "integer": 0.0153, "dram": 0.0, "fp32": 0.01}, "work", True),
        ({"tensor": 0.0102, "integer": 0.0153, "dram": 0.0004}, "work", False),
        ({"tensor": 0.0300, "integer": 0.0100, "dram": 0.0}, "work", False),
        ({"tensor": 0.0, "integer": 0.4, "dram": 0.0}, "spin", True),
    ],
)
def test_blocks_that_wait_for_each_other_are_told_from_those_that_compute(
    units: dict[str, float], kind: str, computes: bool
) -> None:
    """A barrier of the whole card asks atomically, which is counted as tensor work; hashing uses integers alone."""
    history = History()
    for number in range(20):
        look = GpuActivity(uuid=UUID, interval_seconds=0.2, graphics=1.0, sm_active=1.0, fp32=0.0, fp16=0.0, fp64=0.0)
        history.add(number * 0.2, structs.replace(look, **units))
    history.at = 4.0
    found = regime(history, UUID)

    assert (found.kind, found.computes) == (kind, computes)


def test_a_gap_between_two_looks_is_no_long_kernel() -> None:
    """What happened meanwhile is not known."""
    history = History()
    for at in (0.1, 0.2, 30.0, 30.1, 30.2):
        history.add(at, GpuActivity(uuid=UUID, interval_seconds=0.1, graphics=1.0, dram=0.0, tensor=0.0))
    history.at = 31.0

    assert kernels(history, UUID).since_seconds == pytest.approx(1.1, abs=0.01)


@pytest.mark.parametrize(
    ("mebibytes", "dram", "polls"),
    [
        (250, 0.0004, True),
        (1530, 0.0, True),
        (3340, 0.0, True),
        (1530, 0.0003, False),
        (1530, None, False),
        (20_000, 0.0, False),
    ],
)
def test_a_kernel_that_only_looks_stores_nothing_of_what_it_reads(
    mebibytes: int, dram: float | None, polls: bool
) -> None:
    """One that takes data in fills the card's memory, and one that works on the host's reads as fast as the link."""
    card = Regime("GPU-0", graphics=1.0, sm_active=0.12, tensor=0.0, dram=dram, fp32=0.0, pcie_mib_per_second=mebibytes)

    assert card.polls is polls


@pytest.mark.parametrize(
    ("bursts", "until", "times"),
    [
        ((), 10, 0),
        ((2.0,), 10, 0),  # once may have been the end of a phase
        ((2.0, 4.0, 6.0), 9, 3),
        ((2.0, 4.0, 6.0), 30, 0),  # it came back, and does no more
    ],
)
def test_a_card_that_idles_was_given_work_again_as_often_as_it_came_back(
    bursts: tuple[float, ...], until: int, times: int
) -> None:
    """A tenth of a second of work each, between pauses of seconds."""
    looks = [(tenth / 10, "wait" if tenth / 10 in bursts else "idle") for tenth in range(until * 10)]

    assert returns(looks) == times
