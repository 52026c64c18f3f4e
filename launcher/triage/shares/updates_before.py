"""Whether updates that were seen among the backward passes are seen no more, though the same lines make passes as before.

Counted in samples of passes from one update to the next: gradients may be accumulated over many of them, and a calm job is
looked at now and then.
"""

from collections import Counter

from perfwatch.probes.readings import Frame, Stack
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.updating import updates
from perfwatch.triage.words.code import asks_for_an_update, line_of
from perfwatch.triage.words.frames import tags, user_frame, user_frames

FEW_UPDATES = 5  # times that one was met
LONGER = 2.5  # times the most passes that were ever met from one update to the next
DUE = 5.0  # samples of updates, by their share before: none of so many is met by chance with e**-5
MOSTLY = 0.5  # of the passes


def updates_vanished(case: Case, rank: Member) -> bool:
    """Whether many updates were met, and none among so many passes since that several are due."""
    between, met, passes = [0], 0, Counter[Frame | None]()
    before = Counter[Frame | None]()
    for one in case.profile(rank).sights:
        if updates(one.reading):
            met += one.reading.samples
            before += passes
            passes.clear()
            between.append(0)
        elif _passes(case.history, one.reading):
            between[-1] += one.reading.samples
            passes[user_frame(one.reading)] += one.reading.samples
    *runs, since = between
    alike = sum(samples for line, samples in passes.items() if line in before)
    times = sum(run > 0 for run in runs)
    if times < FEW_UPDATES or since <= LONGER * max(runs) or alike < MOSTLY * since:
        return False
    return since * met >= DUE * sum(runs)


def _passes(history: History, stack: Stack) -> bool:
    """Whether a stack makes gradients, and not for an update of the program's own, which searches for as long as it likes."""
    if "backward" not in tags(stack):
        return False
    lines = (line_of(history, frame) for frame in user_frames(stack))
    return not any(asks_for_an_update(line.calls) for line in lines if line is not None)
