"""A rank that waits for the answer to a remote call of torch's RPC waits for the thread of another one that executes it."""

from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, Wait
from tests.triage.rank_looks import FIRST, FOR_EVER, LIB, MODULE, STOPPED, TORCH, TRAIN, Frames, job, judged, stands

API = TORCH + "distributed/rpc/api.py"
SERVES: Frames = (  # torch 2.13
    Frame("wait", LIB + "threading.py", 327),
    Frame("_all_gather", API, 257),
    Frame("shutdown", API, 382),
    MODULE,
)
ASKS: Frames = (Frame("rpc_sync", API, 816), Frame("grade", TRAIN, 30), MODULE)
RUNS = Frame("_run_function", TORCH + "distributed/rpc/internal.py", 209)
GRADES: Frames = (Frame("grade", TRAIN, 50), RUNS)
KEEPS: Frames = (Frame("keep_alive", TRAIN, 60), RUNS)
FOR_DAYS = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=200_000.0)
CALLER, SERVER = FIRST, FIRST + 1
UNTIL = STOPPED + 20.0


def told(**since: float) -> Verdict:
    """A caller that waits since STOPPED, and threads of the server that execute one call each, asleep since then."""
    history: History = job(2, trained=False)
    stands(history, CALLER, ASKS, FOR_EVER, UNTIL)
    stands(history, SERVER, SERVES, FOR_EVER, UNTIL, since=STOPPED - 50.0)
    for number, (name, began) in enumerate(since.items()):
        frames = {"grades": GRADES, "keeps": KEEPS}[name]
        stands(history, SERVER, frames, FOR_DAYS, UNTIL, since=began, tid=SERVER + 50 + number)
    return judged(history, UNTIL)


def test_the_call_that_sleeps_is_blamed_in_the_rank_that_executes_it() -> None:
    """The caller waits for nothing else."""
    verdict = told(grades=STOPPED + 0.1)

    assert (verdict.state, verdict.cause) == ("hung", "endless_python")
    assert [(one.rank, one.frame) for one in verdict.culprits] == [(1, "grade (train.py:50)")]


def test_a_call_that_slept_before_is_not_the_one_that_is_waited_for() -> None:
    """One that keeps something alive for the whole run has not run since the caller began to wait."""
    verdict = told(keeps=STOPPED - 40.0, grades=STOPPED + 0.1)

    assert [one.frame for one in verdict.culprits] == ["grade (train.py:50)"]
    assert told(keeps=STOPPED - 40.0).cause != "endless_python"


def test_of_two_calls_that_sleep_since_then_none_is_blamed() -> None:
    """Nobody sees which one it is."""
    assert told(keeps=STOPPED + 0.1, grades=STOPPED + 0.2).cause != "endless_python"
