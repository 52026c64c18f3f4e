"""Whose words are quoted when a job has ended."""

import pytest

from perfwatch.probes.readings import Process, ProcessEnded, Traceback
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.gone import how_it_ended, traceback_of
from perfwatch.triage.history import History
from perfwatch.triage.verdict import Verdict
from tests.sessions import session


def ended(*generations: tuple[tuple[int, str], ...]) -> Case:
    """Ranks that were started by one torchrun, generation after generation, and their last words."""
    history = History()
    history.add(0.0, Process(pid=1, start_ticks=1, parent_pid=0, name="torchrun", command=("torchrun",), python=True))
    for number, ranks in enumerate(generations):
        for rank, (pid, words) in enumerate(ranks):
            who = Process(pid=pid, start_ticks=pid, parent_pid=1, name="python", command=("python", "train.py"),
                          python=True, torch_loaded=True, rank=rank, world_size=len(ranks))  # fmt: skip
            history.add(10.0 * number, who)
            history.add(10.0 * number + 5.0 + rank, Traceback(pid=pid, exception=words.split(":")[0], text=words))
        for rank, (pid, _) in enumerate(ranks):
            history.add(10.0 * number + 8.0, ProcessEnded(pid=pid, start_ticks=pid, exit_code=1 + rank))
    history.at = 10.0 * len(generations)
    return Case(history, session(root_pids=(1,)))


def test_the_first_error_is_quoted_for_the_others_followed_from_it() -> None:
    """Both ranks raised."""
    found = traceback_of(ended(((10, "KeyError: 'loss'"), (11, "RuntimeError: connection closed by peer"))))

    assert found is not None
    assert found.text == "KeyError: 'loss'"


def test_of_restarted_ranks_the_newest_generation_is_quoted() -> None:
    """The launcher got over the first error; the run ended with the second."""
    found = traceback_of(ended(((10, "OSError: gone"), (11, "ConnectionError")), ((20, "ValueError"), (21, "reset"))))

    assert found is not None
    assert (found.pid, found.text) == (20, "ValueError")


def by_hand(*ends: tuple[float, ProcessEnded | Traceback], command: tuple[str, ...] = ("python", "all.py")) -> Verdict:
    """Two ranks whose launcher ends with 0 in any case, by what was seen of their ends."""
    history = History()
    python = command[0] == "python"
    history.add(0.0, Process(pid=1, start_ticks=1, parent_pid=0, name=command[0], command=command, python=python))
    for rank in (0, 1):
        history.add(0.0, Process(pid=10 + rank, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True, rank=rank, world_size=2))  # fmt: skip
    for at, end in ends:
        history.add(at, end)
    history.add(30.0, ProcessEnded(pid=10, start_ticks=9))
    history.add(30.0, ProcessEnded(pid=1, start_ticks=1, exit_code=0))
    history.at = 30.0
    return judge(Case(history, session(root_pids=(1,))))


def lost(signal: int, ended_at: float, raised_at: float) -> Verdict:
    """Of two ranks one ended by a signal and the other raised."""
    words = "RuntimeError: Connection reset by peer"
    return by_hand(
        (ended_at, ProcessEnded(pid=11, start_ticks=9, signal=signal)),
        (raised_at, Traceback(pid=10, exception="RuntimeError", text=words)),
    )


def test_a_rank_that_was_killed_is_named_before_the_error_that_followed() -> None:
    """The other rank raised because it lost its peer."""
    verdict = lost(9, 20.0, 20.5)

    assert (verdict.state, verdict.cause) == ("gone", "killed")
    assert [culprit.rank for culprit in verdict.culprits] == [1]
    assert verdict.summary.endswith("was ended by SIGKILL; the job itself ended with exit code 0")


@pytest.mark.parametrize(("signal", "ended_at"), [(15, 20.0), (9, 29.0)])
def test_a_rank_that_was_ended_after_an_error_is_not_named_for_it(signal: int, ended_at: float) -> None:
    """A launcher asks the others to end, and later makes them."""
    verdict = lost(signal, ended_at, 20.5)

    assert (verdict.state, verdict.cause) == ("gone", "crashed")
    assert [culprit.rank for culprit in verdict.culprits] == [0]


@pytest.mark.parametrize(
    ("command", "vouches"),
    [
        (("python", "all.py"), False),
        (("python", "-m", "torch.distributed.run", "train.py"), True),
        (("python", "/venv/bin/accelerate", "launch", "train.py"), True),
        (("mpirun", "-n", "2", "python", "train.py"), True),
    ],
)
def test_only_a_known_launcher_vouches_for_ranks_whose_ends_nobody_saw(command: tuple[str, ...], vouches: bool) -> None:
    """It ended with 0, and nobody's last words were kept; a program of one's own may not look how its ranks end."""
    verdict = by_hand((30.0, ProcessEnded(pid=11, start_ticks=9)), command=command)

    assert verdict.cause == "finished"
    assert (verdict.confidence > 0.9) is vouches
    assert ("how its ranks ended was not seen" in verdict.summary) is not vouches


def test_a_launcher_that_raises_because_it_was_asked_to_end_did_not_crash() -> None:
    """torchrun turns a SIGTERM into an exception, so as to end its ranks first."""
    kind = "torch.distributed.elastic.multiprocessing.api.SignalException"
    words = Traceback(pid=1, exception=kind, text=f"{kind}: Process 1 got signal: 15")

    verdict = by_hand((29.0, ProcessEnded(pid=11, start_ticks=9, exit_code=1)), (29.0, words), command=("torchrun",))

    assert (verdict.state, verdict.cause) == ("gone", "killed")
    assert "SIGTERM" in verdict.summary


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"signal": 9}, "killed by SIGKILL"),
        ({"signal": 42}, "killed by signal 42"),
        ({"exit_code": 3}, "exited with code 3"),
        ({}, ""),
    ],
)
def test_how_a_process_ended_is_told_as_far_as_it_is_known(end: dict[str, int], words: str) -> None:
    """A real-time signal has a number and no name."""
    history = History()
    history.add(1.0, ProcessEnded(pid=7, start_ticks=1, **end))  # type: ignore[arg-type]

    assert how_it_ended(history, 7) == words
    assert how_it_ended(history, 8) == ""
