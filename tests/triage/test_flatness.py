"""When a kernel moves no data: what others ask the driver crosses the link as well, and is no work."""

import msgspec
import pytest

from perfwatch.triage.cards.flatness import flat
from perfwatch.triage.cards.gpu import kind_of
from perfwatch_probes.readings import GpuActivity

SPINS = GpuActivity(
    uuid="GPU-0", interval_seconds=0.1, graphics=1.0, sm_active=0.00758, tensor=0.0, dram=0.00001, fp32=0.0002
)


@pytest.mark.parametrize(
    ("received", "sent", "moves_nothing"),
    [
        (3.6, 4.6, True),  # our own questions and those of thirteen others (two H100)
        (34.0, 39.9, True),  # another begins to ask: nvidia-smi, another perfwatch
        (68.0, 79.8, True),  # two of them at once
        (34.0, 2.1, False),  # a copy to the card
        (2.1, 34.0, False),  # a copy from it
        (70.0, 27.0, False),  # NCCL's kernels poll the host's memory
        (250.0, 33.0, False),
        (400.0, 440.0, False),  # as much each way is work
    ],
)
def test_questions_to_the_driver_are_no_data(received: float, sent: float, moves_nothing: bool) -> None:
    """They go both ways alike, a little more from the card than to it; what a program moves goes one way."""
    look = msgspec.structs.replace(SPINS, pcie_received_mib_per_second=received, pcie_sent_mib_per_second=sent)

    assert flat(look) is moves_nothing


@pytest.mark.parametrize(("sm_active", "kind"), [(0.0, "idle"), (0.0002, "wait"), (None, "wait")])
def test_a_context_that_begins_is_no_work(sm_active: float | None, kind: str) -> None:
    """Somebody else's too takes some per cent of the card for a moment, and none of its multiprocessors (two H100)."""
    look = msgspec.structs.replace(SPINS, graphics=0.061, sm_active=sm_active, dram=0.0014)

    assert kind_of(look) == kind
