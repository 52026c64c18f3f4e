"""Work between steps that comes back is told by what it costs in whole periods, and not as the making of data."""

from perfwatch.triage.rules import data
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Frame
from tests.training import BACKWARD, FORWARD, OPTIMIZER, TRAIN, Training

STEP = (FORWARD, BACKWARD, OPTIMIZER)
VOTES = (Frame("out_of_fold.<locals>.<listcomp>", TRAIN, 50), Frame("out_of_fold", TRAIN, 50), Frame("main", TRAIN, 61))


def found(job: Training) -> Finding | None:
    """What the rule says."""
    outcome = data.serial_loading(job.case())
    return outcome if isinstance(outcome, Finding) else None


def folds(count: int, trains: float, votes: float) -> Training:
    """So many folds, in seconds; the agent counts twenty steps a second, and the phase in between as one."""
    job = Training(card=False)
    for _ in range(count):
        job.goes_on(trains, STEP).steps(0, *(0.05,) * round(20 * trains)).goes_on(votes, [VOTES])
        job.steps(0, 0.05 + votes)
    return job


def test_one_phase_between_steps_is_waited_for_to_come_back() -> None:
    """Half of the time so far, and it may have been the only one."""
    assert found(folds(1, trains=5.0, votes=5.0)) is None


def test_a_phase_that_comes_back_is_told_and_not_sent_to_workers() -> None:
    """It makes no data: predictions after each fold."""
    told = found(folds(4, trains=3.0, votes=3.0))

    assert told is not None
    assert "recurs between steps" in told.summary
    assert "workers" not in " ".join(told.next)


def test_a_phase_that_samples_hold_too_much_of_is_told_by_the_steps_that_it_makes_long() -> None:
    """Looked at now and then: half of the samples are of it, of the time a quarter."""
    job = Training(card=False)
    for _ in range(4):
        job.goes_on(2, STEP).steps(0, *(0.05,) * 120).goes_on(2, [VOTES]).steps(0, 2.05)

    assert found(job) is None


def test_work_of_each_step_is_no_phase_between_steps() -> None:
    """Rows that the training thread makes itself, before every batch."""
    job = Training(card=False)
    for _ in range(8):
        job.goes_on(2, [VOTES, *STEP[:2], VOTES]).steps(0, *(1.0,) * 2)
    told = found(job)

    assert told is not None
    assert "DataLoader workers" in told.next[0]
