"""A ``while`` loop that turns for minutes is a hang, but where turns are seen that bring it nearer to its end."""

import pytest

from perfwatch_probes.readings import Frame, ProcessUsage, SourceLine
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TRAIN, Training

MAIN = Frame("main", TRAIN, 82)
Stacks = list[tuple[Frame, ...]]
SEARCHES: Stacks = [(Frame("gain", TRAIN, 25), Frame("greedy", TRAIN, line), MAIN) for line in (42, 43, 45)]
TAKES = (Frame("cover", TRAIN, 33), Frame("greedy", TRAIN, 47), MAIN)
CHOOSES = (Frame("choose", TRAIN, 57), MAIN)
TORN = (Frame("<genexpr>", TRAIN, 25),)


def program(fills: bool = False, around: str = "for") -> Training:
    """Line 47 of ``greedy`` stands in the branch that takes one more; ``around``: the loop in the function that calls it."""
    job = Training(card=False)
    for line in (42, 43, 45, 47):
        job.add(
            SourceLine(file=TRAIN, line=line, text="", loops=("while",), nears_its_end=line == 47, fills=fills),
            SourceLine(file=TRAIN, line=57, text="chosen.update(greedy(near))", loops=(around,), calls=("greedy",)),
            SourceLine(file=TRAIN, line=82, text="labelled |= choose(near)", calls=("choose",)),
        )
    return job


def hangs(job: Training) -> bool:
    """Whether it is said to, half a minute after the patience."""
    return job.verdict().state == "hung"


def test_a_search_that_takes_one_now_and_then_is_no_hang_and_one_that_never_does_is() -> None:
    """Lazy greedy selection takes minutes; rejection of all that is drawn takes for ever."""
    assert hangs(program().goes_on(90.0, SEARCHES, owns_gil=True))

    found = program().goes_on(90.0, [*SEARCHES * 12, TAKES], owns_gil=True).verdict()

    assert (found.state, found.cause, found.confidence) == ("busy", "starting", 0.65)


def test_what_it_took_before_it_trained_says_nothing_of_the_loop_that_it_is_in_now() -> None:
    """And what it took minutes ago no more than that."""
    job = program().goes_on(20.0, [*SEARCHES, TAKES], owns_gil=True).goes_on(10.0, [FORWARD, BACKWARD, OPTIMIZER])
    old = program().goes_on(20.0, [*SEARCHES, TAKES], owns_gil=True)

    assert hangs(job.goes_on(90.0, SEARCHES, owns_gil=True))
    assert hangs(old.goes_on(130.0, SEARCHES, owns_gil=True))


@pytest.mark.parametrize(("around", "hung"), [("for", False), ("while", True)])
def test_of_a_function_that_is_left_again_and_again_the_loop_that_calls_it_tells(around: str, hung: bool) -> None:
    """A selection for each class comes to its end; selections until one is good enough may not."""
    inside: Stacks = [(*frames[:-1], CHOOSES[0], MAIN) for frames in SEARCHES]

    assert hangs(program(around=around).goes_on(90.0, [*inside * 6, CHOOSES], owns_gil=True)) is hung


@pytest.mark.parametrize(
    ("fills", "bytes_per_second", "hung"), [(True, 1e6, False), (True, 0.0, True), (False, 1e6, True)]
)
def test_a_store_that_is_filled_shows_in_the_memory_of_the_process(
    fills: bool, bytes_per_second: float, hung: bool
) -> None:
    """A replay memory before the first update; where all is rejected memory does not grow, and what grows may be a leak."""
    job = program(fills)
    for _ in range(90):
        job.goes_on(1.0, SEARCHES, owns_gil=True)
        size = int(2e8 + bytes_per_second * job.history.at)
        job.add(
            ProcessUsage(
                pid=PID,
                state="R",
                threads=1,
                cpu_seconds=job.history.at,
                major_faults=0,
                minor_faults=0,
                resident_bytes=size,
            )
        )

    assert hangs(job) is hung


def test_torn_stacks_of_a_generator_do_not_hide_the_loop_around_it() -> None:
    """A third of the nonblocking samples within one show nothing else."""
    found = program().goes_on(90.0, [*SEARCHES, TORN] * 3, owns_gil=True).verdict()

    assert (found.state, found.cause) == ("hung", "endless_python")
    assert found.confidence == 0.8
    assert "the loop at greedy (train.py:" in found.summary
