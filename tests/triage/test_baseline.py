"""What a card did at work earlier in a run, learned from the recorded series of two H200 in which one rank never joins (from 18 s)."""

import pytest

from perfwatch.triage.cards.baseline import Baseline, baseline
from perfwatch_probes.readings import Gpu, GpuSample
from tests.cards import history_until


def test_levels_of_healthy_work_are_learned_and_the_wait_does_not_count() -> None:
    """Six seconds of training, then five in which a kernel spins: the same levels as before the wait, and least power of an idle card."""
    before, after = (baseline(history_until(at), "GPU-0", 0.5) for at in (18.0, 23.5))

    assert after.graphics == pytest.approx(1.0, abs=0.01)
    assert after.power_watts == pytest.approx(648, abs=5)
    assert after.tensor == pytest.approx(before.tensor, abs=0.01)
    assert after.dram == pytest.approx(0.37, abs=0.01)
    assert after.nvlink_mib_per_second == pytest.approx(17_000, rel=0.05)
    assert after.least_watts == pytest.approx(122, abs=5)
    assert after.shown() == "graphics 100%, tensor 21%, DRAM 37%, NVLink 17,343 MiB/s, 648 W earlier in this run"


def test_without_units_power_at_work_is_told_from_power_of_a_spinning_kernel() -> None:
    """Utilisation says 100 % for both."""
    found = baseline(history_until(23.5, Gpu, GpuSample), "GPU-0", 0.5)

    assert found.power_watts == pytest.approx(648, abs=5)
    assert (found.tensor, found.dram, found.graphics) == (None, None, None)


@pytest.mark.parametrize("until", [0.5, 11.0])
def test_a_card_that_was_not_seen_at_work_has_no_levels(until: float) -> None:
    """Attached after the fault, or while the program starts: nothing to compare with, and nothing is claimed."""
    found = baseline(history_until(until), "GPU-0", 0.0)

    assert (found.graphics, found.tensor, found.dram, found.power_watts) == (None, None, None, None)
    assert found.shown() == ""


def test_a_card_that_nobody_read_is_unknown() -> None:
    """The card of another machine."""
    assert baseline(history_until(23.5), "GPU-9", 0.5) == Baseline()
