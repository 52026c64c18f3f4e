"""Frames of libraries are known by package and file, whatever a program calls its own files, and wherever a copy lies."""

import pytest

from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame
from tests.training import BACKWARD, FORWARD, OPTIMIZER, SLEEP, Training
from tests.triage.rank_looks import (
    FIRST,
    FOR_EVER,
    MODULE,
    STOPPED,
    TRAIN,
    Frames,
    job,
    judged,
    process,
    runs,
    stands,
    uses,
)

ORIGINAL, COPY = "/usr/lib/python3.11/multiprocessing", "/v/lib/python3.11/site-packages/multiprocess"
OTHER = "/v/lib/python3.11/site-packages/elsewhere"
MAIN: Frames = (Frame("main", TRAIN, 9), MODULE)
CHILD = 300
Names = tuple[tuple[str, str], ...]


def below(folder: str, frames: Names) -> Frames:
    """Frames of a package in this folder, innermost first."""
    return tuple(Frame(function, f"{folder}/{file}", 1) for function, file in frames)


def waits(folder: str, rank: Names, child: Names, works: bool) -> Verdict:
    """A rank that waits in these frames for three minutes, and its child, which works or sleeps below these."""
    history, until = job(1, trained=False), STOPPED + 180.0
    history.add(STOPPED, process(CHILD, FIRST, "python train.py"))
    stands(history, FIRST, (*below(folder, rank), *MAIN), FOR_EVER, until)
    forked = (*below(folder, (*child, ("_bootstrap", "process.py"), ("start", "process.py"))), *MAIN)
    if works:
        runs(history, CHILD, tuple((Frame("work", TRAIN, line), *forked) for line in (26, 27)), STOPPED, until)
    else:
        stands(history, CHILD, forked, FOR_EVER, until)
    uses(history, CHILD, 0.95 if works else 0.0, 0.0, until)
    uses(history, FIRST, 0.0, 0.0, until)
    return judged(history, until)


@pytest.mark.parametrize(
    ("rank", "child", "works", "said"),
    [
        ((("next", "pool.py"),), (("worker", "pool.py"),), True, ("busy", "waiting_on_work", "work (train.py:27)")),
        ((("next", "pool.py"),), (("worker", "pool.py"),), False, ("hung", "stuck_worker", "worker (pool.py:1)")),
        # An idle worker: the task was lost.
        ((("next", "pool.py"),), (("get", "queues.py"), ("worker", "pool.py")), False,
         ("hung", "dead_worker", "main (train.py:9)")),
        ((("join", "process.py"),), (("run", "process.py"),), True, ("busy", "waiting_on_work", "work (train.py:27)")),
        ((("join", "process.py"),), (("run", "process.py"),), False, ("hung", "blocked_child", "run (process.py:1)")),
    ],
    ids=["pool works", "pool rests", "pool is idle", "child works", "child rests"],
)  # fmt: skip
def test_the_copy_of_multiprocessing_that_datasets_forks_with_is_read_as_the_original(
    rank: Names, child: Names, works: bool, said: tuple[str, str, str]
) -> None:
    """dill's ``multiprocess``. Another package of the same function names is only a wait in native code or for a lock."""
    original, copy, other = (waits(folder, rank, child, works) for folder in (ORIGINAL, COPY, OTHER))

    assert (original.state, original.cause, original.culprits[0].frame) == said
    assert (copy.state, copy.cause, copy.culprits[0].frame, copy.summary) == (
        original.state,
        original.cause,
        original.culprits[0].frame,
        original.summary,
    )
    assert other.summary != original.summary
    assert other.cause == ("waiting_on_work" if works else "deadlocked_locks")


@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("ssl.py", "read"),
        ("gc.py", "collect"),
        ("profile.py", "runcall"),
        ("queue.py", "get"),
        ("selectors.py", "select"),
        ("subprocess.py", "wait"),
        ("traceback.py", "format_exc"),
        ("socket.py", "recv_into"),
        ("cmd.py", "cmdloop"),
        ("logging/__init__.py", "emit"),
    ],
)
def test_a_file_of_the_program_is_not_taken_for_the_library_of_that_name(file: str, function: str) -> None:
    """Self-supervised learning lies in an ``ssl.py``, a graph convolution in a ``gc.py``: the line is the program's own."""
    at_work, at_rest = (
        Training(card=False)
        .goes_on(80.0, [own, own, own, *others], run_share=share, wait=wait, owns_gil=True)
        .verdict()
        for own in [(Frame(function, f"/home/me/models/{file}", 9), *FORWARD[1:])]
        for others, share, wait in (([FORWARD, BACKWARD, OPTIMIZER], 1.0, None), ([], 0.0, SLEEP))
    )
    frame = f"{function} ({file.split('/')[-1]}:9)"

    assert (at_work.state, at_work.cause) == ("slow", "serial_loading")
    assert frame in at_work.summary
    assert (at_rest.state, at_rest.cause, at_rest.culprits[0].frame) == ("hung", "deadlocked_locks", frame)
