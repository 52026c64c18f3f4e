"""torch's engine at a full core beside a training thread that waits: it computes, or spins for a card."""

import pytest

from perfwatch.triage.rules import waiting_on_work
from perfwatch.triage.verdict import Finding
from tests.training import BACKWARD, FORWARD, OPTIMIZER, SLEEP, Training


@pytest.mark.parametrize(("load", "works"), [("bf16_matmul", True), ("one_spinning_kernel", False)])
def test_an_engine_that_spins_for_a_card_that_only_polls_is_no_work(load: str, works: bool) -> None:
    """Nobody could read the stacks. What the card waits for is another rank's, and comes no sooner for that."""
    job = Training().goes_on(8.0, [FORWARD, BACKWARD, OPTIMIZER], load="bf16_matmul", engine=0.5)
    case = job.goes_on(20.0, [()], load=load, run_share=0.0, wait=SLEEP, engine=1.0).case()

    found = waiting_on_work.judge(case)

    assert isinstance(found, Finding) is works
