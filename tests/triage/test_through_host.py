"""Collectives that go through host memory show on PCIe, in both directions at once; what else goes there does not."""

from dataclasses import replace
from functools import partial

import pytest
from msgspec import structs

from perfwatch.gauntlet.score import CONFIDENT
from perfwatch.triage.cards.gpu import Regime
from perfwatch.triage.history import History
from perfwatch.triage.ranks.traffic import only_sends
from perfwatch.triage.words.frames import tags
from perfwatch_probes.readings import GpuActivity, Reading, Stack
from tests.cards import UUID, h200
from tests.recorded import RECORDINGS, load_case
from tests.triage.retold import retold

CASE = RECORDINGS / "exposed_communication" / "fires" / "through_host_memory"
# Measured on two H100 with NCCL_P2P_DISABLE=1.
SENDS = Regime(UUID, kind="work", graphics=0.93, sm_active=0.19, tensor=0.03, dram=0.1, nvlink_mib_per_second=0.0,
               pcie_mib_per_second=23_000.0, pcie_each_way_mib_per_second=20_200.0)  # fmt: skip


judged = partial(retold, CASE)


@pytest.mark.parametrize(
    ("changes", "sends"),
    [
        ({}, True),
        ({"pcie_each_way_mib_per_second": 300.0}, False),  # batches come, nothing goes
        ({"pcie_each_way_mib_per_second": None}, False),
        ({"nvlink_mib_per_second": 5000.0}, False),  # the ranks have another way
        ({"tensor": 0.3}, False),
        ({"graphics": 0.5}, False),  # copies need no kernel
    ],
)
def test_only_what_goes_to_and_fro_beside_kernels_that_hardly_compute_is_communication(
    changes: dict[str, float | None], sends: bool
) -> None:
    """Each of its marks is needed."""
    history = History()
    history.add(0.0, h200())
    assert only_sends(history, replace(SENDS, **changes)) is sends  # type: ignore[arg-type]


def test_links_that_are_up_and_not_used_are_told() -> None:
    """With what to ask NCCL."""
    verdict = judged()

    assert "nothing over NVLink (18 links are up)" in verdict.summary
    assert "NCCL_P2P_DISABLE" in verdict.next[0]


def test_where_the_hosts_do_not_wait_it_is_less_sure() -> None:
    """The cards alone tell that much goes to and fro, and not for whom."""
    stacks = [one.reading for one in load_case(CASE).records if isinstance(one.reading, Stack)]
    launches = next(one.frames for one in stacks if "forward" in tags(one))

    def elsewhere(reading: Reading) -> Reading:
        waits = isinstance(reading, Stack) and "backward" in tags(reading)
        return structs.replace(reading, frames=launches) if waits else reading

    verdict = judged(elsewhere)
    assert verdict.cause == "exposed_communication", verdict.summary
    assert verdict.confidence < CONFIDENT < judged().confidence


def test_copies_of_batches_are_no_communication() -> None:
    """The same cards, but what crosses the link only comes."""

    def comes(reading: Reading) -> Reading:
        return structs.replace(reading, pcie_sent_mib_per_second=30.0) if isinstance(reading, GpuActivity) else reading

    assert judged(comes).cause != "exposed_communication"
