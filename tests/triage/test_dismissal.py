"""A parameter server of torch's RPC waits in ``shutdown()`` until all others have come to it: it hangs only if they do."""

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.history import History
from perfwatch_probes.readings import Frame, Steps
from tests.recorded import RECORDINGS, load_case
from tests.triage.rank_looks import (
    BEGAN,
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STEP,
    STEP_SECONDS,
    STOPPED,
    TORCH,
    TRAIN,
    Frames,
    job,
    judged,
    looks,
    runs,
    stands,
    uses,
)

API = TORCH + "distributed/rpc/api.py"
SERVES: Frames = (  # torch 2.13
    Frame("wait", LIB + "threading.py", 327),
    Frame("wait", LIB + "threading.py", 629),
    Frame("_all_gather", API, 257),
    Frame("_wait_all_workers", API, 320),
    Frame("shutdown", API, 382),
    Frame("main", TRAIN, 33),
    MODULE,
)
LOCKED: Frames = (Frame("take", TRAIN, 50), MODULE)
SERVER, TRAINER, OTHER = FIRST, FIRST + 1, FIRST + 2
UNTIL = STOPPED + 80.0  # beyond the patience


def served(*trainers: int) -> History:
    """A server that has waited since the beginning, beside trainers that make steps until now."""
    history = job(3, trained=False)
    stands(history, SERVER, SERVES, FOR_EVER, UNTIL, since=BEGAN)
    uses(history, SERVER, 0.06, 2000.0, UNTIL)
    for pid in trainers:
        runs(history, pid, STEP, BEGAN, UNTIL)
        for at in looks(BEGAN, UNTIL)[1::2]:
            done = int((at - BEGAN) / STEP_SECONDS)
            history.add(at, Steps(pid=pid, tid=pid, count=done, step_ago_seconds=0.1, interval_seconds=(0.25,) * 4))
    return history


def test_a_job_is_as_healthy_as_its_trainers_while_the_server_waits_for_them() -> None:
    """It has nothing to do but to answer them."""
    verdict = judged(served(TRAINER, OTHER), UNTIL)

    assert (verdict.state, verdict.cause) == ("healthy", "cpu_training")
    assert {one.state for one in verdict.findings} <= {"healthy"}


def test_of_a_server_and_a_trainer_that_hangs_the_trainer_is_blamed() -> None:
    """The server waits for it; the other trainer goes on."""
    history = served(OTHER)
    stands(history, TRAINER, LOCKED, FOR_EVER, UNTIL)

    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert {one.pid for one in verdict.culprits} == {TRAINER}


def test_where_all_have_come_and_it_does_not_end_it_hangs() -> None:
    """Nobody is left to be waited for."""
    history = served()
    for pid in (TRAINER, OTHER):
        stands(history, pid, SERVES, FOR_EVER, UNTIL)

    assert judged(history, UNTIL).state == "hung"


def test_a_real_server_beside_a_trainer_is_no_part_of_what_is_judged() -> None:
    """Its transport looks for messages at half a core, for which nobody waits."""
    case = RECORDINGS / "waiting_on_work" / "lookalike" / "parameter_server"
    verdict = diagnose(load_case(case), expected_of(case).at)

    assert (verdict.state, verdict.cause) == ("healthy", "cpu_training")
