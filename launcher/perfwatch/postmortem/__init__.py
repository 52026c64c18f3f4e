"""The verdict on files that a job left behind: dumps of its flight recorders, logs, stacks, answers of a scheduler.

Nothing lives any more, so nothing can be asked twice and no silence can be measured. What the ranks wrote is about the moment at which
they gave up: a dump shows every call that had not ended, and a log the first of the ends. ``judge`` takes any recording: of those that
were not made by an autopsy, triage's own rules speak.
"""

from perfwatch.postmortem import ended, other_witnesses, stalled
from perfwatch.recording.recording import Recording
from perfwatch.recording.session import AUTOPSY
from perfwatch.triage import diagnose as triage
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.rule import Rule
from perfwatch.verdict import Verdict

RULES_OF_FILES: tuple[Rule, ...] = (*ended.RULES, *stalled.RULES, *other_witnesses.RULES)


def judge(case: Case) -> Verdict:
    """The verdict on a case, by the rules for what it was made of."""
    return triage.judge(case, RULES_OF_FILES) if case.session.mode == AUTOPSY else triage.judge(case)


def diagnose(recording: Recording, at: float | None = None) -> Verdict:
    """Judge a recording as it was known ``at`` seconds after it began (default: at its end)."""
    history = History(recording.records, recording.end if at is None else at)
    return judge(Case(history, recording.session, recording.events))
