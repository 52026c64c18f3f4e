"""Whose words are quoted when a job has ended."""

from perfwatch.probes.readings import Process, ProcessEnded, Traceback
from perfwatch.triage.case import Case
from perfwatch.triage.gone import traceback_of
from perfwatch.triage.history import History
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
