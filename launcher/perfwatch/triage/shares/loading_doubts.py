"""How sure it can be that a training thread's own loading is what the run loses its time with."""

from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.cpu import spare_cores
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch_probes.readings import Thread

SPARE_CORES = 0.25  # with less than that idle, workers would take their time from training itself
MOSTLY = 0.5  # of the time: beyond it loading is what the run does, whoever gets the CPUs
NO_GAIN, ASLEEP = 0.55, 0.79  # confidence


def loading_ceiling(case: Case, rank: Member, lost: float) -> float:
    """Less where nothing is to be won (training on CPUs that are all taken, and loading is the lesser part), or where it sleeps."""
    spare = spare_cores(case, rank.pid) if not cards_of(case.history, rank.pid).uuids else None
    if spare is not None and spare < SPARE_CORES and lost < MOSTLY:
        return NO_GAIN
    return ASLEEP if _sleeps_in_it(case, rank, lost) else 1.0


def _sleeps_in_it(case: Case, rank: Member, lost: float) -> bool:
    """Whether most of it may be a wait for somebody who has a lock: asleep in a futex without a timeout."""
    looks = case.history.series(Thread, rank.pid, case.progress[rank.pid].thread, seconds=WINDOW_SECONDS)
    waits = [one.reading.wait for one in looks]
    asleep = sum(wait is not None and wait.kind == "futex" and wait.forever for wait in waits)
    return asleep >= MOSTLY * lost * len(looks) > 0
