"""Waits at a queue or a future of the program's own whose outcome no step uses: for a free buffer, or for an upload to be done.

More workers do not make those shorter: whoever takes what the loop hands on is behind.
"""

from perfwatch.triage.case import Case
from perfwatch.triage.shares.starving import Starving, awaits_data
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import tags, user_frame

MOSTLY = 0.5  # of the waits


def hands_on(case: Case, found: Starving) -> bool:
    """Whether most of a rank's waits are at lines that drop what they get, or only fill it and hand it on."""
    waits = [one for one in found.profile.sights if awaits_data(one.reading) and "loader_wait" not in tags(one.reading)]
    frames = [(one.reading.samples, user_frame(one.reading)) for one in waits]
    lines = [(samples, line_of(case.history, frame)) for samples, frame in frames if frame is not None]
    unused = sum(samples for samples, line in lines if line is not None and line.result)
    return unused > MOSTLY * sum(samples for samples, _ in frames)
