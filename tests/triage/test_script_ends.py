"""How a job ended that a script, a shell or a search runs, and how surely that is told."""

import pytest

from perfwatch.recording.recording import TERMINATES, Event
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Process, ProcessEnded, Reading, Thread, Traceback, Wait
from tests.sessions import session


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
