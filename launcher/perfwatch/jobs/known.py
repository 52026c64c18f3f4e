"""What is known of a job without sampling it: by its watcher, if it has one of ours or of root, and by the steps that it counts."""

import time
from collections.abc import Callable

import msgspec

from perfwatch.jobs.discovery import FoundJob, Known, ListedVerdict
from perfwatch.processes.control import ask, find_place, find_watcher, find_watcher_of_root
from perfwatch.recording.redaction import redact
from perfwatch.verdict import Verdict, confidence_word
from perfwatch_probes.guest import Guests
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Steps
from perfwatch_probes.steps import StepCounter

MOST_SECONDS = 5.0  # for all jobs of one user
ANSWER_SECONDS = 3.0  # a watcher that judges beside a busy job


class Knowledge:
    """Asks about each job of a listing. What one user's jobs take is taken from that user's time: others are listed all the same.

    Args:
        guests: read another user's step counters.
        clock: monotonic seconds.
    """

    def __init__(self, guests: Guests, clock: Callable[[], float] = time.monotonic) -> None:
        self._guests, self._clock = guests, clock
        self._taken: dict[int | None, float] = {}

    def of(self, found: FoundJob) -> Known:
        """What is known of a job; nothing where its user has no time left."""
        uid = found.tops[0].uid
        if self._taken.get(uid, 0.0) > MOST_SECONDS:
            return Known()
        began = self._clock()
        try:
            return known_of(found, self._guests)
        finally:
            self._taken[uid] = self._taken.get(uid, 0.0) + self._clock() - began


def known_of(found: FoundJob, guests: Guests) -> Known:
    """What is known of a job. guests: read another user's step counters."""
    pid = found.job.ranks[0].pid if found.job.ranks else found.tops[0].pid
    step = _step(found, pid, guests)
    control = find_watcher(pid)
    of_root = control is None
    if control is None and (control := find_watcher_of_root(pid)) is None:
        return Known(step)
    try:
        by = str(ask(control, {"command": "status"}, ANSWER_SECONDS, of_root).get("mode", "run"))
        answer = ask(control, {"command": "verdict"}, ANSWER_SECONDS, of_root)
        verdict = msgspec.convert(answer["verdict"], Verdict)
    except (OSError, ValueError, LookupError):
        return Known(step, watched_by="run")  # it is busy, or of another version
    return Known(step, listed(verdict, by), by)


def listed(verdict: Verdict, by: str) -> ListedVerdict:
    """The part of a verdict that has room in a list."""
    suspect = verdict.suspect
    return ListedVerdict(
        state=verdict.state,
        cause=verdict.cause,
        confidence=confidence_word(verdict.confidence),
        suspect=(suspect.state, suspect.cause) if suspect is not None else None,
        suspect_in_seconds=suspect.decides_in_seconds if suspect is not None else None,
        summary=verdict.summary,
        silent_seconds=verdict.silent_seconds,
        last_step=verdict.last_step,
        by=by,
    )


def _step(found: FoundJob, pid: int, guests: Guests) -> int | None:
    """The step of the rank that is furthest behind; None where none are counted."""
    place = find_place(pid, guests=guests)
    if place is None:
        return None
    try:
        readings = StepCounter(place.folder, redact).look()
    except Unavailable:
        return None
    living = {rank.pid for rank in found.job.ranks}
    return min((one.count for one in readings if isinstance(one, Steps) and one.pid in living), default=None)
