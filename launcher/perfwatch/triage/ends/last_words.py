"""What a traceback says: what was raised, and where; and what the end is called for that."""

import re

import msgspec

from perfwatch.failures import NAMES, Failure, named
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import traceback_of
from perfwatch.triage.words.frames import is_user, show
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Frame, ThreadError, Traceback

_FRAME = re.compile(r'^ +File "(?P<file>[^"]+)", line (?P<line>\d{1,9}), in (?P<function>.+)$', re.MULTILINE)
LONGEST = 200


def last_words(words: Traceback | ThreadError) -> str:
    """The line that says what was raised; a message of several lines goes on below it."""
    lines = words.text.strip().splitlines() or [""]
    name = words.exception.partition(":")[0].rsplit(".", 1)[-1]
    said = (line for line in reversed(lines) if name and name in line.partition(":")[0] and not line.startswith(" "))
    return next(said, lines[-1])[:LONGEST]


def raised_at(words: Traceback | ThreadError) -> str | None:
    """The innermost frame of the program's own in the traceback, or else of any, ``function (file:line)``."""
    frames = [Frame(match["function"], match["file"], int(match["line"])) for match in _FRAME.finditer(words.text)]
    own = [frame for frame in frames if is_user(frame)]
    return show((own or frames)[-1]) if frames else None


def called(case: Case, finding: Finding) -> Finding:
    """The same finding with its sub-cause, where its evidence names one of that very cause."""
    failure = _failure(case, finding)
    if failure is None:
        return finding
    return msgspec.structs.replace(finding, sub_cause=failure.name, retry=failure.retry)


def _failure(case: Case, finding: Finding) -> Failure | None:
    words = traceback_of(case)
    texts = [] if words is None else [last_words(words), *reversed(words.text.splitlines()[-40:])]
    texts += [one.observed for one in finding.evidence]
    for text in texts:
        failure = named(text.strip())
        if failure is not None and failure.cause == finding.cause and not failure.hint:
            return failure
    in_group = finding.cause == "out_of_memory" and any(one.witness == "cgroup" for one in finding.evidence)
    return NAMES["cgroup_out_of_memory"] if in_group else None
