"""What a line or a share alone would say is asked of the kernel, or of the other ranks, before it is reported with confidence."""

import msgspec
import pytest

from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, Reading, SourceLine, Stack, Thread
from tests.recorded import RECORDINGS, load_case
from tests.training import level
from tests.triage.retold import retold

PRINT = RECORDINGS / "slow_output" / "lookalike" / "arithmetic_in_a_print"
TURNS = RECORDINGS / "straggling_rank" / "lookalike" / "late_by_turns"
HOOK = RECORDINGS / "straggling_rank" / "fires" / "hook_that_asks_a_server"
SAVES = RECORDINGS / "checkpointing" / "fires" / "busy_rank_zero_saves"


def test_a_line_that_prints_and_computes_is_output_only_where_the_thread_is_in_the_kernel() -> None:
    """Writing costs time there, or sleep."""

    def changed(reading: Reading) -> Reading:
        if isinstance(reading, Thread):
            return msgspec.structs.replace(reading, system_seconds=(reading.run_seconds or 0.0) / 2)
        return reading

    assert retold(PRINT).cause != "slow_output"
    assert retold(PRINT, changed).cause == "slow_output"


def test_a_library_that_lays_out_what_is_printed_is_output_however_much_it_computes() -> None:
    """A table, or a picture in letters."""
    lays_out = Frame("render", "/usr/lib/python3/dist-packages/rich/table.py", 700)

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, Stack) or not reading.frames or "/lib/python3" in reading.frames[0].file:
            return reading
        return msgspec.structs.replace(reading, frames=(lays_out, *reading.frames))

    assert retold(PRINT, changed).cause == "slow_output"


def test_ranks_that_are_late_by_turns_are_no_sure_lack_of_bandwidth() -> None:
    """One of four may compute at any time while the others wait for it."""
    verdict = retold(TURNS)

    assert level(verdict.confidence) != "certain"
    assert "by turns for each other" in verdict.summary


def test_a_rank_that_sleeps_in_a_hook_of_its_own_does_not_wait_for_the_others() -> None:
    """Though the hook runs below its backward pass."""
    assert [one.rank for one in retold(HOOK).culprits] == [1]


@pytest.mark.parametrize(
    ("loops", "calls", "surely"),
    [(("while",), ("save", "load", "equal"), False), (("while",), ("save", "backward", "step"), True), ((), (), True)],
    ids=["again and again", "trains", "once"],
)
def test_a_save_in_a_loop_that_trains_nothing_may_be_tried_again_and_again(
    loops: tuple[str, ...], calls: tuple[str, ...], surely: bool
) -> None:
    """Until what was written is found to be right, which it may never be."""

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, SourceLine):
            return reading
        return msgspec.structs.replace(reading, loops=loops, loop_calls=calls, calls_unnamed=False)

    stacks = (one.reading for one in load_case(SAVES).records if isinstance(one.reading, Stack))
    lines = {
        (frame.file, frame.line)
        for stack in stacks
        for frame in stack.frames
        if frame.file.startswith("/home/user/perfwatch")
    }
    more = (SourceLine(file=file, line=line, text="", loops=loops, loop_calls=calls) for file, line in lines)
    verdict = retold(SAVES, changed, *more)

    assert verdict.cause == "checkpointing"
    assert (level(verdict.confidence) == "certain") is surely


def test_who_asks_hundreds_of_times_a_second_may_poll_and_backs_off_from_nothing() -> None:
    """What a child puts into a ring in shared memory."""
    verdict = retold(RECORDINGS / "retrying" / "fires" / "polls_a_shared_ring")

    assert level(verdict.confidence) in ("medium", "low")
    assert "another thread or process may produce what it waits for" in verdict.summary


# A rank that never trains and waits for what it is sent: that is its part, and it waits for no late rank.
EVALUATES = RECORDINGS / "straggling_rank" / "lookalike" / "rank_that_evaluates_what_it_is_sent"
EVALUATOR = 7457
TORCH = "/home/user/venv/lib/python3.11/site-packages/torch/"
BACKWARD = Frame("backward", TORCH + "_tensor.py", 600)
ALL_REDUCE = Frame("all_reduce", TORCH + "distributed/distributed_c10d.py", 3100)


def evaluator(also: Frame | None = None, where: str = "") -> Verdict:
    """The recorded job, where the evaluator is in this frame too wherever its stack has a frame of that part of torch."""

    def changed(reading: Reading) -> Reading:
        if also is None or not isinstance(reading, Stack) or reading.pid != EVALUATOR:
            return reading
        if not any(f"/torch/{where}/" in frame.file for frame in reading.frames):
            return reading
        return msgspec.structs.replace(reading, frames=(*reading.frames[:-1], also, reading.frames[-1]))

    return retold(EVALUATES, changed)


def test_a_rank_that_evaluates_what_it_is_sent_makes_no_straggler_of_the_one_that_trains() -> None:
    """Nor is the job busy with an evaluation: its steps go on."""
    verdict = evaluator()

    assert verdict.state == "healthy"
    assert not {"straggling_rank", "evaluating"} & {one.cause for one in verdict.findings}


@pytest.mark.parametrize(("also", "where"), [(BACKWARD, "nn"), (ALL_REDUCE, "distributed")])
def test_one_that_trains_or_comes_to_a_collective_of_all_waits_for_a_late_rank(also: Frame, where: str) -> None:
    """It was seen in a backward pass, or waits in an all_reduce, to which both have to come."""
    verdict = evaluator(also, where)

    assert "straggling_rank" in {verdict.cause, *(one.cause for one in verdict.findings)}
