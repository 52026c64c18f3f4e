"""Which answers about process groups are still about now: RAS' about ranks and groups that are there yet, dumps about a job that stood.

RAS names a communicator for as long as one of its processes has it. What it said of one that is gone would otherwise be believed
until it is old: after an elastic restart, or where a program has ended a group that stood and goes on in another one. A dump that
lies there may be of any moment.
"""

from collections.abc import Iterator
from itertools import pairwise
from math import inf

from perfwatch.triage.case import Case
from perfwatch.triage.history import Seen
from perfwatch.triage.ranks.standing import APART_SECONDS, UNHEARD
from perfwatch_probes import readings as r

LATE_SECONDS = 8.0  # that RAS is given to answer: what it says so soon after a restart may have been asked before

Answers = list[Seen[r.Communicator]]


def lasting(case: Case, told: list[Answers]) -> list[Answers]:
    """Those of these groups that the newest answer about them is still about.

    The text names a group only while its ranks' counts differ: one that a newer answer does not name has caught up. The JSON
    names every group of every process that it hears.
    """
    newest, begun = max((answers[-1].at for answers in told), default=0.0), _begun(case)
    heard = _heard(told)
    return [
        answers
        for answers in told
        if (begun is None or answers[-1].at > begun) and _named_since(answers[-1], heard, newest) < APART_SECONDS
    ]


def passed(case: Case, dump: Seen[r.RecordedGroup]) -> bool:
    """Whether a dump that lay there is of a moment since which the job went on.

    That a rank wrote it on a timeout is not to be seen: somebody may have asked for it.
    """
    return dump.reading.origin == "file" and _went_on_at(case) > dump.at - dump.reading.written_ago_seconds


def _named_since(last: Seen[r.Communicator], heard: dict[tuple[str, int], float], newest: float) -> float:
    """For how long a group has not been named while whoever would name it was."""
    if last.reading.source != "json":
        return newest - last.at
    return max((heard.get(place, last.at) - last.at for place in _places(last.reading)), default=0.0)


def _heard(told: list[Answers]) -> dict[tuple[str, int], float]:
    """By host and pid, when an answer in JSON last spoke for a process.

    Nothing where the answers of several hosts are joined: of a large group those of one host are kept, and of others all.
    """
    newest = [answers[-1] for answers in told if answers[-1].reading.source == "json"]
    if len({member.host for one in newest for member in one.reading.members if member.local}) > 1:
        return {}
    found: dict[tuple[str, int], float] = {}
    for one in newest:
        for place in _places(one.reading):
            found[place] = max(one.at, found.get(place, one.at))
    return found


def _places(communicator: r.Communicator) -> Iterator[tuple[str, int]]:
    for member in communicator.members:
        if member.pid is not None and member.state not in UNHEARD:
            yield member.host, member.pid


def _begun(case: Case) -> float | None:
    """Until when an answer may be about ranks that have been started anew since; None where none has."""
    now = {rank.rank: rank.process for rank in case.job.ranks if rank.rank is not None}
    replaced = [
        ended.at + LATE_SECONDS
        for member in case.job.members.values()
        if member.role == "rank"
        and not member.alive
        and member.rank is not None
        and (member.rank not in now or now[member.rank].start_ticks > member.process.start_ticks)
        and (ended := case.history.latest(r.ProcessEnded, member.pid)) is not None
    ]
    return max(replaced, default=None)


def _went_on_at(case: Case) -> float:
    """When a rank was last known to make a step, or RAS to have counted a call before it counted more."""
    return case.history.once(("went on",), lambda: max(_signs(case), default=-inf))


def _signs(case: Case) -> Iterator[float]:
    for one in case.progress.values():
        if one.kind == "moving":
            yield case.at
        elif one.steps is not None and one.steps.ago_seconds is not None:
            yield case.at - one.steps.ago_seconds
    for key in case.history.entities(r.Communicator):
        for earlier, later in pairwise(case.history.series(r.Communicator, *key)):
            if _called_more(earlier.reading, later.reading):
                yield earlier.at


def _called_more(earlier: r.Communicator, later: r.Communicator) -> bool:
    """Whether counts of a rank differ that both answers tell of: one that has fallen silent has called nothing."""
    before = {member.rank: member.launched for member in earlier.members}
    return any(one.launched and before.get(one.rank) and one.launched != before[one.rank] for one in later.members)
