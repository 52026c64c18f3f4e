"""How jobs ended: which process is the culprit, and what its last words were."""

from dataclasses import replace
from functools import partial

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.recording.recording import TERMINATES, Event, Record
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose, judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import (
    Cgroup,
    Frame,
    Host,
    KernelMessage,
    Process,
    ProcessEnded,
    Reading,
    Stack,
    Thread,
    Traceback,
    Wait,
)
from tests.recorded import RECORDINGS, load_case
from tests.sessions import session
from tests.sessions import verdict as hung_or_so
from tests.training import level
from tests.triage.retold import retold

# Jobs that have ended: which process is the culprit, and whose last words are quoted.


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


@pytest.mark.parametrize("number", [15, 9])
def test_a_launcher_that_reports_a_rank_which_a_signal_ended_did_not_crash(number: int) -> None:
    """torchrun raises ChildFailedError, and ends with 1: the rank is told."""
    history = History()
    history.add(0.0, Process(pid=1, start_ticks=1, parent_pid=0, name="torchrun", command=("torchrun",), python=True))
    history.add(0.0, Process(pid=10, start_ticks=10, parent_pid=1, name="python", command=("python", "train.py"),
                             python=True, torch_loaded=True, rank=0, world_size=1))  # fmt: skip
    history.add(
        8.5, Traceback(pid=1, exception="ChildFailedError", text="torch.distributed.elastic.ChildFailedError: ")
    )
    history.add(9.0, ProcessEnded(pid=10, start_ticks=10, signal=number))
    history.add(9.0, ProcessEnded(pid=1, start_ticks=1, exit_code=1))
    history.at = 10.0
    verdict = judge(Case(history, session(root_pids=(1,))))

    assert (verdict.cause, [one.rank for one in verdict.culprits]) == ("killed", [0])


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
    ("signal", "name"), [(11, "crashed_data_worker"), (9, "dead_data_worker"), (None, "dead_data_worker")]
)
def test_the_kernel_says_how_a_worker_ended_of_which_torch_only_lost_a_batch(signal: int | None, name: str) -> None:
    """The main thread reads what the worker hands over, and its connection breaks before it hears of the worker's end."""
    history = History()
    for pid, parent, called in ((10, 1, "python"), (17, 10, "pt_data_worker")):
        history.add(0.0, Process(pid=pid, start_ticks=pid, parent_pid=parent, name=called, command=("python", "train.py"),
                                 python=True, torch_loaded=True))  # fmt: skip
    read = '  File "/lib/torch/utils/data/dataloader.py", line 1291, in _try_get_data\n'
    words = f"Traceback:\n{read}ConnectionResetError: [Errno 104] Connection reset by peer"
    history.add(5.0, ProcessEnded(pid=17, start_ticks=17, signal=signal))
    history.add(5.0, Traceback(pid=10, exception="ConnectionResetError", text=words))
    history.add(6.0, ProcessEnded(pid=10, start_ticks=10, exit_code=1))
    history.at = 6.0

    assert judge(Case(history, session(root_pids=(10,)))).sub_cause == name


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


# How a job ended that a script, a shell or a search runs, and how surely that is told.


def trained(*later: tuple[float, Reading], trial: bool = False) -> Verdict:
    """One process that trains below a shell, what it may have started besides, and what was seen of their ends."""
    history = History()
    history.add(0.0, Process(pid=1, start_ticks=1, parent_pid=0, name="sh", command=("sh", "all.sh")))
    for pid, parent, name in ((10, 1, "train.py"), *([(11, 10, "trial.py")] if trial else [])):
        history.add(0.0, Process(pid=pid, start_ticks=pid, parent_pid=parent, name="python", command=("python", name),
                                 python=True, torch_loaded=True))  # fmt: skip
    for at, reading in later:
        history.add(at, reading)
    history.at = max(at for at, _ in later)
    return judge(Case(history, session(root_pids=(1,))))


def ends(pid: int, code: int | None = None) -> ProcessEnded:
    """One of these processes; how, only the shell's parent knows."""
    return ProcessEnded(pid=pid, start_ticks=pid, exit_code=code)


def test_a_program_that_ran_out_of_the_time_it_was_given_was_ended_by_a_signal() -> None:
    """timeout (coreutils) ends with 124 then, which is nobody's own error."""
    verdict = trained(
        (20.0, ProcessEnded(pid=10, start_ticks=10, signal=15)),
        (20.0, ProcessEnded(pid=1, start_ticks=1, exit_code=124)),
    )

    assert (verdict.state, verdict.cause) == ("gone", "killed")
    assert verdict.summary == "pid 10 was ended by SIGTERM; the job itself ended with exit code 124"


def test_an_error_of_what_was_tried_is_not_told_for_one_that_came_long_after() -> None:
    """The search went on, and failed for something else."""
    first, last = Traceback(pid=11, exception="ValueError", text="ValueError: diverged"), "OSError: disk full"
    raised = Traceback(pid=10, exception="OSError", text=last)

    verdict = trained((20.0, first), (21.0, ends(11)), (90.0, raised), (91.0, ends(10)), (91.0, ends(1, 1)), trial=True)

    assert verdict.summary == f"pid 10 crashed (exit code 1): {last}"


def test_an_error_of_what_was_tried_is_not_told_for_a_signal() -> None:
    """The scheduler's time was up a moment after a trial had failed."""
    failed = Traceback(pid=11, exception="ValueError", text="ValueError: diverged")
    end = ProcessEnded(pid=1, start_ticks=1, signal=15)

    verdict = trained((20.0, failed), (21.0, ends(11)), (22.0, ends(10)), (22.0, end), trial=True)

    assert (verdict.state, verdict.cause) == ("gone", "killed")


def test_an_error_that_the_script_around_it_got_over_is_told_less_surely() -> None:
    """``python train.py; echo done`` ends with 0 in any case."""
    raised = Traceback(pid=10, exception="KeyError", text="KeyError: 'loss'")

    verdict = trained((20.0, raised), (21.0, ends(10)), (22.0, ends(1, 0)))

    assert (verdict.state, verdict.cause) == ("gone", "crashed")
    assert verdict.confidence < 0.8
    assert "exit code 0 of the job itself" in verdict.summary


@pytest.mark.parametrize(("code", "cause"), [(137, "killed"), (143, "killed"), (128, "crashed"), (255, "crashed")])
def test_a_shell_tells_the_signal_that_ended_its_child(code: int, cause: str) -> None:
    """As 128 and its number; the rank is named, and what lies beyond the signals is an exit code."""
    verdict = trained((20.0, ends(10)), (21.0, ends(1, code)))

    assert verdict.cause == cause
    assert cause != "killed" or [culprit.pid for culprit in verdict.culprits] == [10]


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"signal": 9}, "killed by SIGKILL"),
        ({"signal": 42}, "killed by signal 42"),
        ({"exit_code": 3}, "exited with code 3"),
        ({}, "ended, or a zombie"),
    ],
)
def test_how_a_process_ended_is_told_as_far_as_it_is_known(end: dict[str, int], words: str) -> None:
    """A real-time signal has a number and no name; the training thread still waits for the child that has ended."""
    history = History(at=21.0)
    for pid, parent in ((10, 1), (11, 10)):
        history.add(0.0, Process(pid=pid, start_ticks=pid, parent_pid=parent, name="python", command=("python", "fit.py"),
                                 python=True, torch_loaded=pid == 10))  # fmt: skip
    waits = Wait(call="wait4", number=61, kind="child", child_pid=11, forever=True)
    history.add(
        20.0, Thread(pid=10, tid=10, name="python", state="S", cpu_seconds=1.0, ran_ago_seconds=15.0, wait=waits)
    )
    history.add(8.0, ProcessEnded(pid=11, start_ticks=11, parent_pid=10, **end))  # type: ignore[arg-type]
    verdict = judge(Case(history, session(root_pids=(10,))))

    assert (verdict.state, verdict.cause) == ("hung", "dead_worker")
    assert [one.observed for one in verdict.evidence if one.witness == "process"] == [words]


@pytest.mark.parametrize(("top_ends", "state"), [(True, "gone"), (False, "inconclusive")])
def test_between_two_programs_of_a_script_the_job_has_not_ended(top_ends: bool, state: str) -> None:
    """The shell lives and starts the next one in a moment; how the last one ended was not seen."""
    history = History()
    history.add(0.0, Process(pid=1, start_ticks=1, parent_pid=0, name="bash", command=("bash", "sweep.sh")))
    history.add(0.0, Process(pid=10, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                             python=True, torch_loaded=True))  # fmt: skip
    history.add(30.0, ProcessEnded(pid=10, start_ticks=9))
    if top_ends:
        history.add(30.0, ProcessEnded(pid=1, start_ticks=1))
    history.at = 31.0

    assert judge(Case(history, session(root_pids=(1,)))).state == state


def one_after_the_other(
    first: ProcessEnded, later: ProcessEnded, *words: Traceback, shell: int | None = None
) -> Verdict:
    """A script trains with pid 10, goes on when that fails, and trains with pid 20 from the 30th second to the 3,600th."""
    history = History()
    history.add(0.0, Process(pid=1, start_ticks=1, parent_pid=0, name="bash", command=("bash", "sweep.sh")))
    for pid, began in ((10, 0.0), (20, 30.0)):
        history.add(began, Process(pid=pid, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                                   python=True, torch_loaded=True))  # fmt: skip
    history.add(20.0, first)
    for one in words:
        history.add(20.0 if one.pid == 10 else 3600.0, one)
    history.add(3600.0, later)
    if shell is not None:
        history.add(3600.2, ProcessEnded(pid=1, start_ticks=1, exit_code=shell))
    history.at = 3600.5
    return judge(Case(history, session(root_pids=(1,))))


@pytest.mark.parametrize(
    ("later", "shell", "cause", "pid"),
    [
        (ProcessEnded(pid=20, start_ticks=9, exit_code=1), 1, "crashed", 20),
        (ProcessEnded(pid=20, start_ticks=9, signal=9), 137, "killed", 20),
        (ProcessEnded(pid=20, start_ticks=9, exit_code=0), 0, "finished", None),
    ],
)
def test_a_failure_that_a_script_got_over_an_hour_ago_is_not_how_it_ended(
    later: ProcessEnded, shell: int, cause: str, pid: int | None
) -> None:
    """Two trainings one after the other; the first one failed in words of its own."""
    raised_then = Traceback(pid=10, exception="KeyError", text="KeyError: 'lr'")
    verdict = one_after_the_other(ProcessEnded(pid=10, start_ticks=9, exit_code=1), later, raised_then, shell=shell)

    assert verdict.cause == cause
    assert [culprit.pid for culprit in verdict.culprits] == ([] if pid is None else [pid])
    assert "KeyError" not in verdict.summary


@pytest.mark.parametrize(("code", "signal"), [(0, None), (1, None), (None, 11)])
def test_while_its_script_lives_a_job_may_go_on(code: int | None, signal: int | None) -> None:
    """However its last program ended; a script may try again."""
    first = ProcessEnded(pid=10, start_ticks=9, exit_code=0)
    later = ProcessEnded(pid=20, start_ticks=9, exit_code=code, signal=signal)

    assert one_after_the_other(first, later).state == "inconclusive"


@pytest.mark.parametrize(
    ("asked_at", "words", "cause"),
    [
        (29.0, None, "killed"),
        (None, None, "crashed"),
        (-60.0, None, "crashed"),  # it went on for a minute and a half after that
        (29.0, "RuntimeError: no space left", "crashed"),
    ],
)
def test_a_program_that_leaves_with_a_bad_code_when_it_is_asked_to_end_has_not_crashed(
    asked_at: float | None, words: str | None, cause: str
) -> None:
    """Ctrl-C reaches it through ``run``, and it says no word of an error: Lightning ends with 1 then."""
    history = History()
    history.add(
        0.0, Process(pid=1, start_ticks=1, parent_pid=0, name="python", command=("python", "fit.py"), python=True)
    )
    if words is not None:
        history.add(29.5, Traceback(pid=1, exception=words.split(":")[0], text=words))
    history.add(30.0, ProcessEnded(pid=1, start_ticks=1, exit_code=1))
    history.at = 31.0
    asked = () if asked_at is None else (Event(asked_at, "signal", TERMINATES, None, {"signal": 2}),)
    verdict = judge(Case(history, session(root_pids=(1,)), asked))

    assert (verdict.state, verdict.cause) == ("gone", cause)
    assert ("SIGINT" in verdict.summary) == (cause == "killed")


@pytest.mark.parametrize(("number", "told"), [(15, True), (9, False)])
def test_who_asked_the_job_to_end_is_named(number: int, told: bool) -> None:
    """``run`` passed SIGTERM on and knows its sender; another signal that ended the job came from elsewhere."""
    history = History()
    history.add(
        0.0, Process(pid=1, start_ticks=1, parent_pid=0, name="python", command=("python", "fit.py"), python=True)
    )
    history.add(30.0, ProcessEnded(pid=1, start_ticks=1, signal=number))
    history.at = 31.0
    asked = Event(29.0, "signal", TERMINATES, None, {"signal": 15, "sender": "pid 7 (slurmstepd)"})
    verdict = judge(Case(history, session(root_pids=(1,)), (asked,)))

    assert verdict.cause == "killed"
    assert ("sent by pid 7 (slurmstepd)" in verdict.summary) is told


@pytest.mark.parametrize("number", [2, 15, 9, 6])
@pytest.mark.parametrize(
    ("told", "says", "retry"),
    [
        ([("hung", "stuck_worker")], "why it hung", "yes"),
        ([("hung", "deadlocked_locks")], "why it hung", "after fixing"),
        ([("hung", "blocked_child")], "why it hung", None),
        ([("hung", "stuck_worker"), ("gone", "killed")], "why it hung", "yes"),
        ([("hung", "stuck_worker"), None], "", ""),
        ([("hung", "stuck_worker"), ("healthy", "balanced")], "", ""),
        ([], "", ""),
    ],
)
def test_what_ends_a_run_that_hung_is_advised_about_as_the_hang(
    number: int, told: list[tuple[str, str] | None], says: str, retry: str | None
) -> None:
    """Its user, a scheduler or a watchdog ended it for that: whether it may succeed again is the hang's to say."""
    history = History()
    history.add(
        0.0, Process(pid=1, start_ticks=1, parent_pid=0, name="python", command=("python", "fit.py"), python=True)
    )
    history.add(30.0, ProcessEnded(pid=1, start_ticks=1, signal=number))
    history.at = 31.0
    events = tuple(
        Event(at, "retraction", "moves again") if one is None
        else Event(at, "verdict", "", hung_or_so(state=one[0], cause=one[1], confidence=0.9))
        for at, one in enumerate(told)
    )  # fmt: skip
    verdict, alone = (judge(Case(history, session(root_pids=(1,)), these)) for these in (events, ()))

    assert (verdict.state, verdict.cause) == ("gone", "killed")
    if says:
        assert (verdict.next, verdict.retry) == (("why it hung before that: perfwatch replay",), retry)
    else:
        assert (verdict.next, verdict.retry) == (alone.next, alone.retry)
    assert any("dmesg" in step for step in alone.next) == (number in (9, 6))


# Whom the kernel killed for memory is named, and who failed for that beside it.


CASE = RECORDINGS / "out_of_memory" / "fires" / "killed_loader_worker"
TRAINER, WORKER = 23302, 23312


judged = partial(retold, CASE)


def test_the_worker_that_was_killed_is_named_before_the_trainer_that_failed_for_it() -> None:
    """Its data set kept a cache that only grew."""
    verdict = judged()

    assert verdict.summary == (
        f"DataLoader worker {WORKER} of pid {TRAINER} was killed because memory ran out (last seen at __getitem__ (train.py:20), "
        f"largest resident size seen: 1.2 GiB); pid {TRAINER} failed because of that"
    )
    assert [(one.pid, one.worker_pid) for one in verdict.culprits] == [(TRAINER, WORKER)]
    assert [one.entity for one in verdict.evidence if one.witness == "traceback"] == [f"pid {TRAINER}"]


def test_without_the_kernels_log_torchs_words_name_the_worker() -> None:
    """The control group's counter says that somebody was killed; what the trainer raised says who."""

    def counted(reading: Reading) -> Reading:
        if isinstance(reading, KernelMessage):
            return Cgroup(path="/job", version=2, oom_kills=1)
        return Cgroup(path="/job", version=2, oom_kills=0) if isinstance(reading, Cgroup) else reading

    verdict = judged(counted)

    assert (verdict.state, verdict.cause) == ("gone", "out_of_memory")
    assert [one.worker_pid for one in verdict.culprits] == [WORKER]


def test_a_trainer_that_was_killed_itself_ran_out_of_memory() -> None:
    """Whatever became of its workers."""

    def itself(reading: Reading) -> Reading:
        return msgspec.structs.replace(reading, pid=TRAINER) if isinstance(reading, KernelMessage) else reading

    verdict = judged(itself)

    assert verdict.summary == f"pid {TRAINER} ran out of memory (largest resident size seen: 1.2 GiB)"
    assert [(one.pid, one.worker_pid) for one in verdict.culprits] == [(TRAINER, None)]


def test_a_kill_in_another_job_is_not_this_ones() -> None:
    """Nor is it sure then who killed the worker: the kernel's log is to be asked."""

    def elsewhere(reading: Reading) -> Reading:
        return msgspec.structs.replace(reading, pid=4_000) if isinstance(reading, KernelMessage) else reading

    verdict = judged(elsewhere)

    assert verdict.cause == "crashed"
    assert verdict.confidence < 0.8
    assert verdict.next[1] == f"dmesg | grep -i 'killed process {WORKER}'"


def test_of_several_ranks_the_one_that_was_killed_is_named_and_not_their_launcher() -> None:
    """torchrun ends with 1 for it."""
    history = History()
    history.add(0.0, Process(pid=1, start_ticks=1, parent_pid=0, name="torchrun", command=("torchrun",), python=True))
    for rank in (0, 1):
        history.add(0.0, Process(pid=10 + rank, start_ticks=9, parent_pid=1, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True, rank=rank, world_size=2))  # fmt: skip
        history.add(20.0 + rank, ProcessEnded(pid=10 + rank, start_ticks=9))
    history.add(21.0, KernelMessage(kind="oom_kill", text="Killed process 11 (python)", logged_ago_seconds=0.1, pid=11))
    history.add(22.0, ProcessEnded(pid=1, start_ticks=1, exit_code=1))
    history.at = 22.0

    verdict = judge(Case(history, session(root_pids=(1,))))

    assert verdict.summary == "rank 1 (pid 11) was killed because memory ran out; pid 1 failed because of that"
    assert [(one.pid, one.rank) for one in verdict.culprits] == [(11, 1)]


def counted(*later: tuple[float, Reading]) -> Verdict:
    """A training in a control group in which somebody is killed for memory after an hour, and how it goes on."""
    history = History()
    for pid, parent in ((10, 1), (11, 10)):
        history.add(0.0, Process(pid=pid, start_ticks=9, parent_pid=parent, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True))  # fmt: skip
    for at, kills in ((0.0, 0), (3598.0, 0), (3600.0, 1), (90_000.0, 1)):
        history.add(at, Cgroup(path="/user.slice", version=2, oom_kills=kills))
    for at, reading in later:
        history.add(at, reading)
    history.at = 90_002.0
    return judge(Case(history, session(root_pids=(10,))))


@pytest.mark.parametrize(("end", "cause"), [({"exit_code": 0}, "finished"), ({"signal": 9}, "killed")])
def test_a_kill_of_somebody_else_in_the_same_group_is_not_this_jobs(end: dict[str, int], cause: str) -> None:
    """A notebook in the same container, a day before the training ended."""
    verdict = counted((90_001.0, ProcessEnded(pid=10, start_ticks=9, **end)))  # type: ignore[arg-type]

    assert verdict.cause == cause


@pytest.mark.parametrize(("code", "cause"), [(1, "out_of_memory"), (0, "finished")])
def test_a_process_that_ended_when_the_group_counted_a_kill_may_be_the_victim(code: int, cause: str) -> None:
    """Unless the job has got over it: then it ended with 0."""
    verdict = counted(
        (3599.0, ProcessEnded(pid=11, start_ticks=9)), (90_001.0, ProcessEnded(pid=10, start_ticks=9, exit_code=code))
    )

    assert verdict.cause == cause


@pytest.mark.parametrize(("victim", "cause"), [(12, "out_of_memory"), (13, "finished")])
def test_of_a_script_that_ended_with_0_only_a_rank_that_was_killed_counts(victim: int, cause: str) -> None:
    """The kernel's log names it; what the rank had started, it got over."""
    history = History()
    history.add(0.0, Process(pid=10, start_ticks=9, parent_pid=1, name="sh", command=("sh", "all.sh")))
    for pid, parent in ((12, 10), (13, 12)):
        history.add(0.0, Process(pid=pid, start_ticks=9, parent_pid=parent, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True))  # fmt: skip
        history.add(20.0, ProcessEnded(pid=pid, start_ticks=9))
    text = f"Killed process {victim} (python)"
    history.add(20.0, KernelMessage(kind="oom_kill", text=text, logged_ago_seconds=0.1, pid=victim))
    history.add(21.0, ProcessEnded(pid=10, start_ticks=9, exit_code=0))
    history.at = 21.0

    assert judge(Case(history, session(root_pids=(10,)))).cause == cause


# An exit handler has no ``<module>`` below it; that alone does not say that training is over.


PAST_ITS_PROGRAM_CASE = RECORDINGS / "hung_at_exit" / "fires" / "hung_at_exit-atexit"
PID = 2653  # of the recorded process
TRAINED = Stack(pid=PID, tid=PID, frames=(Frame("<module>", "/home/user/train.py", 9),))


def judged_past_its_program(*before: Stack, executable: str = "python3.11", script: str = "train.py") -> Verdict:
    """A recorded exit handler that waits for ever, in a process that was started otherwise and seen in these stacks before."""
    recording, at = load_case(PAST_ITS_PROGRAM_CASE), expected_of(PAST_ITS_PROGRAM_CASE).at

    def started(reading: Reading) -> Reading:
        if not isinstance(reading, Process):
            return reading
        return msgspec.structs.replace(reading, executable=executable, command=(executable, script))

    records = tuple(msgspec.structs.replace(one, reading=started(one.reading)) for one in recording.records)
    earlier = tuple(Record(-30.0, stack) for stack in before)
    return diagnose(replace(recording, records=earlier + records), at)


def test_a_program_that_was_seen_below_its_module_is_past_it() -> None:
    """Who comes when it is over already has only what is missing from the stack: less sure."""
    assert judged_past_its_program().cause == judged_past_its_program(TRAINED).cause == "hung_at_exit"
    assert judged_past_its_program().confidence < 0.8 < judged_past_its_program(TRAINED).confidence


@pytest.mark.parametrize(
    ("before", "executable", "script"),
    [((), "simulator", "train.py"), ((TRAINED,), "simulator", "train.py"), ((TRAINED,), "python3.11", "tr\ufffdn.py")],
)
def test_what_is_called_from_c_or_from_frames_that_cannot_be_read_is_not(
    before: tuple[Stack, ...], executable: str, script: str
) -> None:
    """A program in C imports a module and calls its function; py-spy leaves out the frames of a file whose name is not UTF-8."""
    verdict = judged_past_its_program(*before, executable=executable, script=script)

    assert verdict.cause == "deadlocked_locks"
    assert all(one.cause != "hung_at_exit" for one in verdict.findings)


# A full /dev/shm beside workers that end in order: they may fail for want of room, or be started anew for each epoch.


RESPAWNS = RECORDINGS / "worker_respawn" / "fires" / "worker_respawn"


def test_workers_of_each_epoch_beside_a_data_set_in_shared_memory_leave_it_unsure() -> None:
    """No worker died, and no file found no room."""
    whole = load_case(RESPAWNS)
    full = tuple(_filled(one) for one in whole.records)
    verdict = diagnose(replace(whole, records=full), expected_of(RESPAWNS).at)

    assert verdict.state == "slow"
    assert verdict.confidence < 0.8


def _filled(record: Record) -> Record:
    """What it says of the machine, with 930 of 1,000 MiB of shared memory in use."""
    if not isinstance(record.reading, Host):
        return record
    host = msgspec.structs.replace(record.reading, shm_total_bytes=1000 << 20, shm_used_bytes=930 << 20)
    return msgspec.structs.replace(record, reading=host)
