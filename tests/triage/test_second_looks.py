"""What a name, a line or a share alone would say is asked of the kernel, or of the other ranks, before it is told surely."""

import msgspec
import pytest

from perfwatch.triage.words.frames import is_user, tags_of
from perfwatch.triage.words.vocabulary import VOCABULARY
from perfwatch_probes.readings import Frame, Reading, SourceLine, Stack, Thread
from tests.recorded import RECORDINGS, load_case
from tests.triage.retold import retold

PRINT = RECORDINGS / "slow_output" / "lookalike" / "arithmetic_in_a_print"
TURNS = RECORDINGS / "straggling_rank" / "lookalike" / "late_by_turns"
HOOK = RECORDINGS / "straggling_rank" / "fires" / "hook_that_asks_a_server"
SAVES = RECORDINGS / "checkpointing" / "fires" / "busy_rank_zero_saves"


@pytest.mark.parametrize(
    "name", ["ssl", "gc", "profile", "queue", "selectors", "subprocess", "traceback", "socket", "cmd"]
)
def test_a_file_of_the_programs_own_is_not_taken_for_the_librarys_of_that_name(name: str) -> None:
    """Self-supervised learning lies in an ``ssl.py``, a graph convolution in a ``gc.py``."""
    functions = {one for _, _, names in VOCABULARY for one in (names or "forward").split()}

    assert not any(tags_of(function, f"/home/me/models/{name}.py") for function in functions)
    assert not any(tags_of(function, "/home/me/logging/__init__.py") for function in functions)


def test_a_package_is_known_wherever_it_lies() -> None:
    """Its folder and its file tell it."""
    assert tags_of("step", "/opt/layers/torch/optim/rmsprop.py") == {"optimizer"}


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
        if not isinstance(reading, Stack) or not reading.frames or not is_user(reading.frames[0]):
            return reading
        return msgspec.structs.replace(reading, frames=(lays_out, *reading.frames))

    assert retold(PRINT, changed).cause == "slow_output"


def test_ranks_that_are_late_by_turns_are_no_sure_lack_of_bandwidth() -> None:
    """One of four may compute at any time while the others wait for it."""
    verdict = retold(TURNS)

    assert verdict.confidence < 0.8
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
    assert (verdict.confidence > 0.8) is surely


def test_who_asks_hundreds_of_times_a_second_may_poll_and_backs_off_from_nothing() -> None:
    """What a child puts into a ring in shared memory."""
    verdict = retold(RECORDINGS / "retrying" / "fires" / "polls_a_shared_ring")

    assert verdict.confidence <= 0.7
    assert "it may poll" in verdict.summary
