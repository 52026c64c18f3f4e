"""torch's engine at a full core beside a training thread that waits: it computes, or spins for a card."""

import pytest
from msgspec import structs

from perfwatch.triage.rules import busy
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Thread
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, SLEEP, Training

WORKER = Thread(
    pid=PID,
    tid=755,
    name="python",
    state="R",
    cpu_seconds=0.0,
    run_seconds=0.0,
    run_delay_seconds=0.0,
    voluntary_switches=0,
    read_calls=0,
    write_calls=0,
)


@pytest.mark.parametrize(("load", "works"), [("bf16_matmul", True), ("one_spinning_kernel", False)])
def test_an_engine_that_spins_for_a_card_that_only_polls_is_no_work(load: str, works: bool) -> None:
    """Nobody could read the stacks. What the card waits for is another rank's, and comes no sooner for that."""
    job = Training().goes_on(8.0, [FORWARD, BACKWARD, OPTIMIZER], load="bf16_matmul", engine=0.5)
    case = job.goes_on(20.0, [()], load=load, run_share=0.0, wait=SLEEP, engine=1.0).case()

    found = busy.waiting_on_work(case)

    assert isinstance(found, Finding) is works


def test_a_thread_of_the_program_works_whatever_the_card_waits_for() -> None:
    """The other ranks wait for this one, whose training thread waits for it."""
    job = Training().goes_on(8.0, [FORWARD, BACKWARD, OPTIMIZER], load="bf16_matmul")
    for second in range(20):
        job.goes_on(1.0, [()], load="one_spinning_kernel", run_share=0.0, wait=SLEEP)
        job.add(structs.replace(WORKER, cpu_seconds=float(second), run_seconds=float(second)))

    assert isinstance(busy.waiting_on_work(job.case()), Finding)
