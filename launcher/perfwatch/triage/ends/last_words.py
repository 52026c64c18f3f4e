"""What a traceback says: what was raised, and where."""

import re

from perfwatch.triage.words.frames import is_user, show
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
