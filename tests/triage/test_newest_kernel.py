"""A card whose newest kernel may never end, and a program that only decodes: what the window shows besides is not of now."""

import pytest

from perfwatch.triage.rules import python
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Frame
from tests.training import BACKWARD, FORWARD, OPTIMIZER, Training

STEPS = [FORWARD, BACKWARD, OPTIMIZER]


@pytest.mark.parametrize("before", ["bf16_matmul", "late_peer"])
def test_a_card_that_has_spun_for_longer_than_ever_is_neither_well_nor_merely_empty(before: str) -> None:
    """The host launches on for a while beside a kernel that never ends: the end of that is not known yet."""
    verdict = Training().goes_on(8.0, STEPS, load=before).goes_on(4.0, STEPS, load="one_spinning_kernel").verdict()

    assert (verdict.state, verdict.cause) == ("inconclusive", None)


@pytest.mark.parametrize(("now", "told"), [([FORWARD], False), (STEPS, True)])
def test_who_only_decodes_does_not_train_on_a_card_that_waits_for_launches(
    now: list[tuple[Frame, ...]], told: bool
) -> None:
    """Item after item, without a gradient: small kernels lie in the nature of that."""
    job = Training().goes_on(8.0, STEPS, load="bf16_matmul").goes_on(6.0, now, load="tiny_kernels")

    assert isinstance(python.host_bound_python(job.case()), Finding) is told


def test_who_makes_steps_trains_however_seldom_a_backward_pass_is_met() -> None:
    """All but the head is frozen: the steps that are counted say so."""
    job = Training().steps(1, 0.05).goes_on(8.0, STEPS, load="bf16_matmul").steps(160, *[0.05] * 20)
    job.goes_on(6.0, [FORWARD], load="tiny_kernels").steps(280, *[0.05] * 20, ago=0.05)

    assert isinstance(python.host_bound_python(job.case()), Finding)


@pytest.mark.parametrize(
    ("loads", "told"),
    [
        ([("idle_context", 1.5), ("bf16_matmul", 3.5)], False),
        ([("idle_context", 0.5), ("bf16_matmul", 1.0)] * 4, True),
        ([("idle_context", 1.5), ("bf16_matmul", 4.0), ("idle_context", 1.5)], True),
        ([("tiny_kernels", 1.5), ("bf16_matmul", 3.5)], True),
    ],
)
def test_a_card_that_was_idle_once_and_full_since_waits_for_no_launches(
    loads: list[tuple[str, float]], told: bool
) -> None:
    """A rollout ended and updates began; a card that idles again and again, or has gaps while it works, waits."""
    job = Training()
    for load, seconds in loads:
        job.goes_on(seconds, STEPS, load=load)

    assert isinstance(python.host_bound_python(job.case()), Finding) is told
