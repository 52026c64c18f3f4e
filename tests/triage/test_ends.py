"""Jobs that have ended: which process is the culprit, and whose last words are quoted."""

import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Process, ProcessEnded, Traceback
from tests.sessions import session
from tests.training import level


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


@pytest.mark.parametrize(
    ("generations", "quoted", "pid"),
    [
        # Both ranks raised: the second error followed from the first.
        ([((10, "KeyError: 'loss'"), (11, "RuntimeError: connection closed by peer"))], "KeyError: 'loss'", 10),
        # The launcher got over the first error; the run ended with the second.
        ([((10, "OSError: gone"), (11, "ConnectionError")), ((20, "ValueError"), (21, "reset"))], "ValueError", 20),
    ],
)
def test_the_first_error_of_the_newest_generation_is_quoted(
    generations: list[tuple[tuple[int, str], ...]], quoted: str, pid: int
) -> None:
    """Its launcher ends with an error too."""
    case = ended(*generations)
    case.history.add(case.history.at, ProcessEnded(pid=1, start_ticks=1, exit_code=1))
    verdict = judge(case)

    assert (verdict.state, verdict.cause) == ("gone", "crashed")
    assert [culprit.pid for culprit in verdict.culprits] == [pid]
    assert verdict.summary.endswith(quoted)


def by_hand(
    *ends: tuple[float, ProcessEnded | Traceback], command: tuple[str, ...] = ("python", "all.py"), code: int = 0
) -> Verdict:
    """Two ranks whose launcher ends with 0 unless stated otherwise, by what was seen of their ends."""
    history = History()
    python = command[0] == "python"
    history.add(0.0, Process(pid=1, start_ticks=1, parent_pid=0, name=command[0], command=command, python=python))
    for rank in (0, 1):
        history.add(0.0, Process(pid=10 + rank, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True, rank=rank, world_size=2))  # fmt: skip
    for at, end in ends:
        history.add(at, end)
    if not any(isinstance(end, ProcessEnded) and end.pid == 10 for _, end in ends):
        history.add(30.0, ProcessEnded(pid=10, start_ticks=9))
    history.add(30.0, ProcessEnded(pid=1, start_ticks=1, exit_code=code))
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


def rank_ends(rank: int, code: int | None = None, signal: int | None = None) -> ProcessEnded:
    """One of those two."""
    return ProcessEnded(pid=10 + rank, start_ticks=9, exit_code=code, signal=signal)


@pytest.mark.parametrize(
    ("first", "then", "cause"),
    [
        ((20.0, rank_ends(1, code=5)), (20.1, rank_ends(0, signal=15)), "crashed"),
        ((20.0, rank_ends(1, code=5)), (50.0, rank_ends(0, signal=9)), "crashed"),  # it did not end when asked to
        ((20.0, rank_ends(1, signal=11)), (20.1, rank_ends(0, signal=15)), "killed"),
        ((20.0, rank_ends(1, signal=15)), (20.1, rank_ends(0, code=1)), "killed"),
        ((20.0, rank_ends(0, code=1)), (20.1, rank_ends(1, signal=9)), "killed"),  # both seen in one look, or nearly
    ],
)
def test_the_rank_that_failed_first_is_named(
    first: tuple[float, ProcessEnded], then: tuple[float, ProcessEnded], cause: str
) -> None:
    """A launcher asks the others to end, and in the end makes them."""
    verdict = by_hand(first, then, command=("torchrun", "train.py"), code=1)

    assert (verdict.state, verdict.cause) == ("gone", cause)
    assert [culprit.rank for culprit in verdict.culprits] == [1]


def raised(pid: int, words: str, ago_seconds: float | None = None) -> Traceback:
    """Words that the agent kept."""
    return Traceback(pid=pid, exception=words.split(":")[0], text=words, ago_seconds=ago_seconds)


def test_a_rank_that_left_without_a_word_is_named_before_those_who_complain_of_it() -> None:
    """os._exit, or a sys.exit: its peer loses a connection, torchrun raises for the child that failed."""
    verdict = by_hand(
        (20.0, rank_ends(1, code=5)),
        (20.1, rank_ends(0, signal=15)),
        (20.4, raised(10, "RuntimeError: Connection reset by peer", 0.35)),
        (20.4, raised(1, "ChildFailedError: ", 0.1)),
        command=("torchrun", "train.py"),
        code=1,
    )

    assert [culprit.rank for culprit in verdict.culprits] == [1]
    assert verdict.summary == "rank 1: pid 11 crashed (exit code 5)"


def test_of_errors_that_were_found_in_one_look_the_older_one_is_quoted() -> None:
    """The agent's files are read once a second; when each was written is known."""
    verdict = by_hand(
        (20.0, raised(10, "RuntimeError: Connection reset by peer", 0.2)),
        (20.0, raised(11, "ValueError: bad batch", 0.3)),
        (20.1, rank_ends(1, code=1)),
        (20.2, rank_ends(0, signal=15)),
        command=("torchrun", "train.py"),
        code=1,
    )

    assert "ValueError: bad batch" in verdict.summary
    assert [culprit.rank for culprit in verdict.culprits] == [1]


@pytest.mark.parametrize(
    ("command", "vouches"),
    [
        (("python", "all.py"), False),
        (("python", "-m", "torch.distributed.run", "train.py"), True),
        (("python", "/venv/bin/accelerate", "launch", "train.py"), True),
        (("mpirun", "-n", "2", "python", "train.py"), True),
    ],
)
def test_only_a_known_launcher_vouches_for_ranks_whose_ends_were_not_seen(
    command: tuple[str, ...], vouches: bool
) -> None:
    """It ended with 0, and no last words were kept; a program of one's own may not look how its ranks end."""
    verdict = by_hand((30.0, ProcessEnded(pid=11, start_ticks=9)), command=command)

    assert verdict.cause == "finished"
    assert (level(verdict.confidence) == "certain") is vouches
    assert ("how its ranks ended was not seen" in verdict.summary) is not vouches


def test_a_launcher_that_raises_because_it_was_asked_to_end_did_not_crash() -> None:
    """torchrun turns a SIGTERM into an exception, so as to end its ranks first."""
    kind = "torch.distributed.elastic.multiprocessing.api.SignalException"
    words = Traceback(pid=1, exception=kind, text=f"{kind}: Process 1 got signal: 15")

    end = ProcessEnded(pid=11, start_ticks=9, exit_code=1)
    verdict = by_hand((29.0, end), (29.0, words), command=("torchrun",), code=1)

    assert (verdict.state, verdict.cause) == ("gone", "killed")
    assert "SIGTERM" in verdict.summary


def test_ranks_that_were_restarted_and_ended_well_did_not_crash() -> None:
    """torchrun got over the first generation's error, and ended with 0."""
    case = ended(((10, "OSError: gone"), (11, "ConnectionError")), ())
    for rank in (0, 1):
        who = Process(pid=20 + rank, start_ticks=20 + rank, parent_pid=1, name="python", command=("python", "train.py"),
                      python=True, torch_loaded=True, rank=rank, world_size=2)  # fmt: skip
        case.history.add(10.0, who)
        case.history.add(18.0, ProcessEnded(pid=20 + rank, start_ticks=20 + rank))
    case.history.add(19.0, ProcessEnded(pid=1, start_ticks=1, exit_code=0))

    assert judge(case).cause == "finished"


def test_a_rank_that_aborts_for_another_that_left_is_not_named() -> None:
    """NCCL's watchdog and C++ abort a rank whose peer is gone."""
    verdict = by_hand(
        (20.0, rank_ends(1, code=1)), (21.5, rank_ends(0, signal=6)), command=("torchrun", "a.py"), code=1
    )

    assert (verdict.cause, [culprit.rank for culprit in verdict.culprits]) == ("crashed", [1])


def test_a_worker_that_was_killed_is_blamed_and_not_the_line_at_which_the_main_process_heard_of_it() -> None:
    """torch's SIGCHLD handler raises wherever the main thread is: here in a forward pass."""
    history = History()
    for pid, parent in ((10, 1), (17, 10)):
        history.add(0.0, Process(pid=pid, start_ticks=pid, parent_pid=parent, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True))  # fmt: skip
    words = 'Traceback:\n  File "/app/train.py", line 71, in forward\n'
    lost = "RuntimeError: DataLoader worker (pid 17) is killed by signal: Killed. "
    history.add(5.0, Traceback(pid=10, exception="RuntimeError", text=words + lost))
    history.add(6.0, ProcessEnded(pid=10, start_ticks=10, exit_code=1))
    history.at = 6.0

    verdict = judge(Case(history, session(root_pids=(10,))))

    assert (verdict.state, verdict.cause) == ("gone", "crashed")
    assert [culprit.pid if culprit.worker_pid is None else culprit.worker_pid for culprit in verdict.culprits] == [17]


@pytest.mark.parametrize(
    ("words", "cause", "confidence"),
    [
        ("RuntimeError: [pair.cc:538] Read error [127.0.0.1]:59034: Connection reset by peer", "killed", "medium"),
        ("ValueError: bad batch", "crashed", "certain"),  # its launcher may have made the other one end for that
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "crashed", "certain"),  # of any server
    ],
)
def test_of_an_error_and_a_signal_that_one_look_found_the_words_tell_the_order(
    words: str, cause: str, confidence: str
) -> None:
    """The host was busy, and nothing was read for seconds: both were found at once, the error says how old it is."""
    verdict = by_hand(
        (20.0, rank_ends(1, signal=9)),
        (20.0, raised(10, words, 3.1)),
    )

    assert (verdict.cause, level(verdict.confidence)) == (cause, confidence)
    assert [culprit.rank for culprit in verdict.culprits] == [1 if cause == "killed" else 0]


def test_a_rank_that_lost_another_whose_end_was_not_seen_is_named_less_surely() -> None:
    """It was not the first to go."""
    verdict = by_hand(
        (20.0, raised(10, "RuntimeError: [pair.cc:547] Connection closed by peer")),
        (20.2, rank_ends(0, 1)),
        (20.2, rank_ends(1)),
    )

    assert verdict.cause == "crashed"
    assert level(verdict.confidence) != "certain"
    assert "killed" in {one.cause for one in verdict.alternatives}


@pytest.mark.parametrize(("size", "sure"), [(2, True), (3, False)])
def test_a_rank_without_words_is_named_less_surely_beside_one_that_was_gone_before_anybody_looked(
    size: int, sure: bool
) -> None:
    """Rank 2 of three was killed as we came: the others ended because of it."""
    history = History()
    history.add(0.0, Process(pid=1, start_ticks=1, parent_pid=0, name="bash", command=("bash", "all.sh")))
    for rank in (0, 1):
        history.add(0.0, Process(pid=10 + rank, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True, rank=rank, world_size=size))  # fmt: skip
        history.add(5.0, ProcessEnded(pid=10 + rank, start_ticks=9, exit_code=1))
    history.add(5.0, ProcessEnded(pid=1, start_ticks=1, exit_code=1))
    history.at = 6.0
    verdict = judge(Case(history, session(root_pids=(1,))))

    assert (verdict.state, verdict.cause) == ("gone", "crashed")
    assert (level(verdict.confidence) == "certain") is sure
    assert ("of rank 2 nothing was seen" in verdict.summary) is not sure


@pytest.mark.parametrize(
    ("code", "number", "cause", "confidence"),
    [
        (1, None, "crashed", "medium"),  # out of GPU memory has this code too
        (None, 15, "killed", "certain"),
        (None, 9, "killed", "medium"),
        (0, None, "finished", "certain"),
    ],
)
def test_a_zombie_is_judged_by_its_exit_code_or_signal(
    code: int | None, number: int | None, cause: str, confidence: str
) -> None:
    """It has neither a command line nor a memory map."""
    history = History()
    history.add(0.0, Process(pid=7, start_ticks=1, parent_pid=1, name="python", command=()))
    history.add(0.0, ProcessEnded(pid=7, start_ticks=1, exit_code=code, signal=number, zombie=True))
    history.at = 1.0
    verdict = judge(Case(history, session(root_pids=(7,))))

    assert (verdict.state, verdict.cause, level(verdict.confidence)) == ("gone", cause, confidence)
