"""A card whose newest kernel may never end, and a program that only decodes: what the window shows besides is not of now."""

import pytest

from perfwatch.triage.rules import python
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Frame, Process, Thread
from tests.training import BACKWARD, ENGINE, FORWARD, OPTIMIZER, PID, READS_LOSS, Training, level

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


@pytest.mark.parametrize(("seconds", "state"), [(9, "inconclusive"), (50, "inconclusive"), (62, "hung")])
def test_the_first_kernel_that_is_seen_gets_a_minute(seconds: float, state: str) -> None:
    """Nothing says how long the kernels of this job take; after a minute it is less sure than with a history."""
    verdict = Training().goes_on(seconds, [READS_LOSS], load="one_spinning_kernel").verdict()
    known = Training().goes_on(8, STEPS, load="bf16_matmul").goes_on(9, [READS_LOSS], load="one_spinning_kernel")

    assert verdict.state == state
    assert (verdict.cause or (verdict.suspect and verdict.suspect.cause)) == "stuck_kernel"
    assert (known.verdict().state, level(known.verdict().confidence)) == ("hung", "certain")
    assert state != "hung" or level(verdict.confidence) == "medium"


@pytest.mark.parametrize("first", [3.0, 7.0, 9.5])
def test_a_kernel_that_takes_ten_seconds_in_each_step_is_no_hang(first: float) -> None:
    """Attached in the midst of one: at no moment of four steps is it hung."""
    job, states = Training().goes_on(first, [READS_LOSS], load="one_spinning_kernel"), set()
    for _ in range(4):
        job.goes_on(0.5, STEPS, load="tiny_kernels")
        for _ in range(5):
            states.add(job.goes_on(1.9, [READS_LOSS], load="one_spinning_kernel").verdict().state)

    assert "hung" not in states
    assert job.goes_on(40, [READS_LOSS], load="one_spinning_kernel").verdict().cause == "stuck_kernel"


@pytest.mark.parametrize(
    ("passes", "age_seconds", "state"),
    [(200, 60.0, "hung"), (11, 20.0, "inconclusive"), (200, 2000.0, "inconclusive")],
)
def test_the_host_remembers_how_often_a_backward_pass_ran(passes: int, age_seconds: float, state: str) -> None:
    """Attached after the last step; few passes, or some seconds for each, say nothing against a kernel of eleven seconds."""
    job = Training()
    job.add(
        Process(pid=PID, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"), python=True,
                torch_loaded=True, age_seconds=age_seconds),
        Thread(pid=PID, tid=ENGINE, name="pt_autograd_0", state="S", cpu_seconds=9.0, run_seconds=9.0,
               voluntary_switches=passes, ran_ago_seconds=0.1),
    )  # fmt: skip

    assert job.goes_on(11, [READS_LOSS], load="one_spinning_kernel").verdict().state == state
