"""A rank that never trains and waits for what it is sent: that is its part, and nobody keeps it waiting."""

from dataclasses import replace

from msgspec import structs

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import Record
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.words.frames import tags
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, Stack
from tests.recorded import RECORDINGS, load_case

CASE = RECORDINGS / "straggling_rank" / "lookalike" / "rank_that_evaluates_what_it_is_sent"
EVALUATOR = 7457
TORCH = "/home/user/venv/lib/python3.11/site-packages/torch/"
BACKWARD = Frame("backward", TORCH + "_tensor.py", 600)
ALL_REDUCE = Frame("all_reduce", TORCH + "distributed/distributed_c10d.py", 3100)


def judged(also: Frame | None = None, where: str = "") -> Verdict:
    """What is said of the recorded job, and where the evaluator is in this frame too wherever a stack of it has that tag."""
    recording, at = load_case(CASE), expected_of(CASE).at

    def changed(record: Record) -> Record:
        stack = record.reading
        if also is None or not isinstance(stack, Stack) or stack.pid != EVALUATOR or where not in tags(stack):
            return record
        return structs.replace(
            record, reading=structs.replace(stack, frames=(*stack.frames[:-1], also, stack.frames[-1]))
        )

    return diagnose(replace(recording, records=tuple(map(changed, recording.records))), at)


def test_a_rank_that_evaluates_what_it_is_sent_makes_no_straggler_of_the_one_that_trains() -> None:
    """Nor is the job busy with an evaluation: its steps go on."""
    verdict = judged()

    assert verdict.state == "healthy"
    assert not {"straggling_rank", "evaluating"} & {one.cause for one in verdict.findings}


def test_one_that_trains_as_well_waits_for_a_late_rank() -> None:
    """It was seen in a backward pass."""
    verdict = judged(BACKWARD, where="forward")

    assert verdict.cause == "straggling_rank"


def test_one_that_waits_in_a_collective_of_all_waits_for_a_late_rank() -> None:
    """Both have to come to an all_reduce."""
    verdict = judged(ALL_REDUCE, where="collective")

    assert "straggling_rank" in {verdict.cause, *(one.cause for one in verdict.findings)}
