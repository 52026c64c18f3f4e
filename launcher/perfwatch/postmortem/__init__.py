"""The verdict on files that a job left behind: dumps of its flight recorders, logs, stacks, answers of a scheduler.

Nothing lives any more, so nothing can be asked twice and no silence can be measured. What the ranks wrote is about the moment at which
they gave up: a dump shows every call that had not ended, and a log the first of the ends. ``judge`` takes any recording: of those that
were not made by an autopsy, triage's own rules speak.
"""

import msgspec

from perfwatch.postmortem import ended, other_witnesses, stalled, watched
from perfwatch.postmortem.restarts import ATTEMPT, with_attempts
from perfwatch.recording.recording import Recording
from perfwatch.recording.session import AUTOPSY
from perfwatch.triage import diagnose as triage
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.rule import Rule
from perfwatch.verdict import Verdict

NOTHING = "these files show neither how the job ended nor a wait for another rank"
MORE = "give what else is left: logs of every rank and of the launcher, flight-recorder dumps, dmesg, sacct or kubectl describe pod"
RULES_OF_FILES: tuple[Rule, ...] = (
    *watched.FIRST,
    *ended.RULES,
    *stalled.RULES,
    *other_witnesses.RULES,
    *watched.LAST,
)

__all__ = ["ATTEMPT", "diagnose", "judge"]


def judge(case: Case) -> Verdict:
    """The verdict on a case, by the rules for what it was made of."""
    if case.session.mode != AUTOPSY:
        return triage.judge(case)
    verdict = with_attempts(case, watched.completed(case, triage.judge(case, RULES_OF_FILES)))
    recorded = any(one.kind == watched.KIND for one in case.events)
    if verdict.state != "inconclusive" or verdict.findings or recorded:
        return verdict
    return msgspec.structs.replace(verdict, summary=NOTHING, confidence=0.0, suspect=None, wait_chain=(), next=(MORE,))


def diagnose(recording: Recording, at: float | None = None) -> Verdict:
    """Judge a recording as it was known ``at`` seconds after it began (default: at its end)."""
    moment = recording.end if at is None else at
    history = History(recording.records, moment, recording.cost(moment))
    return judge(Case(history, recording.session, recording.events))
