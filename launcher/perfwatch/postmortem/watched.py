"""A recorded session is among the files: perfwatch saw the job while it lived, and says why it hung or how it ended.

Its verdict is the one that ``replay`` gives. A log precedes it in two cases: it tells of an end of its own from before the hang,
or it knows the reason of an end that was only seen from outside.
"""

from datetime import datetime

import msgspec

from perfwatch.actions import retry_of
from perfwatch.failures import ORIGIN
from perfwatch.postmortem.ended import AT_ONCE_SECONDS, first_end
from perfwatch.recording.recording import Event
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Evidence, Finding, Outcome, Verdict, possible_after

KIND = "session"
CAUSE = Cause("recorded", "gone", "unknown", ())
TELLING = (
    "hung",
    "gone",
    "slow",
    "busy",
    "healthy",
    "inconclusive",
)  # of several sessions of one job, the first of these
CUT_SHORT = "the recording ends before the job does"


def first(case: Case) -> Outcome:
    """Fires where the session says more than any log."""
    event = _chosen(case)
    if event is None or event.verdict is None:
        return None
    return _finding(event, event.verdict) if _precedes(case, event, event.verdict) else None


def last(case: Case) -> Outcome:
    """Fires where a log says more; the session stands beside it."""
    event = _chosen(case)
    if event is None or event.verdict is None or _precedes(case, event, event.verdict):
        return None
    return _finding(event, event.verdict)


def completed(case: Case, verdict: Verdict) -> Verdict:
    """The verdict with all that the session's own has, where it is the session's."""
    event = _chosen(case)
    if event is None or event.verdict is None or not _precedes(case, event, event.verdict):
        return verdict
    own, finding = event.verdict, _finding(event, event.verdict)
    if own.cause is not None and (verdict.state, verdict.cause) != (finding.state, finding.cause):
        return verdict
    return msgspec.structs.replace(
        own,
        summary=finding.summary,
        culprits=finding.culprits,
        evidence=finding.evidence,
        findings=(*verdict.findings, *own.findings)[: len(own.findings) or 4],
        missing=(*verdict.missing, *own.missing),
        next=finding.next,
        supersedes=None,
    )


def _chosen(case: Case) -> Event | None:
    """The session that says most: on several hosts that of the culprit, who is only missed on the others."""
    found = [one for one in case.events if one.kind == KIND and one.verdict is not None]
    return min(found, key=_order, default=None)


def _order(event: Event) -> tuple[int, bool, float, float]:
    verdict = event.verdict
    assert verdict is not None
    placed = any(one.frame or one.worker_pid for one in verdict.culprits)
    finished = verdict.cause == "finished"
    return TELLING.index(verdict.state) + 3 * finished, not placed, -verdict.confidence, event.facts.get("ended") or 0.0


def _precedes(case: Case, event: Event, verdict: Verdict) -> bool:
    end = first_end(case)
    if end is None:
        return True
    own = end.weight == ORIGIN
    if verdict.state == "hung":
        begun, at = _onset(verdict), end.line.logged_at
        if not own:
            return True
        if begun is not None and at is not None:
            return at > begun + AT_ONCE_SECONDS
        return end.failure.cause == "crashed" and end.line.rank not in {one.rank for one in verdict.culprits}
    if verdict.state == "gone":
        return verdict.sub_cause == end.failure.name or (not own and bool(verdict.culprits))
    return False


def _onset(verdict: Verdict) -> float | None:
    """Unix time."""
    try:
        return datetime.fromisoformat((verdict.onset or verdict.at).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _finding(event: Event, verdict: Verdict) -> Finding:
    facts = event.facts
    ended = str(facts.get("end_summary") or "")
    if verdict.state == "gone":
        how = ""
    else:
        how = f"; then {ended}" if ended else f"; {CUT_SHORT}"
    host = str(facts.get("host") or "") or None
    last_one = (
        Evidence(witness="session", entity=str(facts.get("name") or KIND), claim="how it ended", observed=ended)
        if how and ended
        else None
    )
    return Finding(
        cause=verdict.cause or "unknown",
        state=verdict.state,
        sub_cause=verdict.sub_cause,
        retry=retry_of(verdict) if verdict.state == "hung" and ended else verdict.retry,
        summary=verdict.summary + how,
        confidence=verdict.confidence,
        owner=verdict.owner,
        culprits=tuple(msgspec.structs.replace(one, host=one.host or host) for one in verdict.culprits),
        wait_chain=verdict.wait_chain,
        evidence=(*verdict.evidence, *([last_one] if last_one is not None else [])),
        alternatives=verdict.alternatives,
        next=possible_after(verdict.next),
        silent_seconds=verdict.silent_seconds,
    )


FIRST = (Rule(CAUSE, first),)
LAST = (Rule(CAUSE, last),)
