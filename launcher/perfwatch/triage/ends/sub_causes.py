"""What an end is called, by the words that a program, a library or the machine left."""

import msgspec

from perfwatch.failures import NAMES, Failure, named
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import last_words, traceback_of
from perfwatch.verdict import Finding

LAST_LINES = 40  # of a traceback


def called(case: Case, finding: Finding) -> Finding:
    """The same finding with its sub-cause, if its evidence names one of that very cause."""
    failure = _failure(case, finding)
    if failure is None:
        return finding
    return msgspec.structs.replace(finding, sub_cause=failure.name, retry=failure.retry)


def _failure(case: Case, finding: Finding) -> Failure | None:
    words = traceback_of(case)
    texts = [] if words is None else [last_words(words), *reversed(words.text.splitlines()[-LAST_LINES:])]
    texts += [one.observed for one in finding.evidence]
    for text in texts:
        failure = named(text.strip())
        if failure is not None and failure.cause == finding.cause and not failure.hint:
            return failure
    in_group = finding.cause == "out_of_memory" and any(one.witness == "cgroup" for one in finding.evidence)
    return NAMES["cgroup_out_of_memory"] if in_group else None
