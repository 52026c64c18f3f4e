"""Which loop of the program a running thread turns in: one that counts (``for``) or one that waits for a condition (``while``).

Over many samples the outer frames of a thread stay the same and the inner ones change. The innermost frame that stays is
the one whose loop turns, or whose caller's does.
"""

from collections import Counter

from perfwatch.probes import readings as r
from perfwatch.triage.code import line_of
from perfwatch.triage.frames import user_frames
from perfwatch.triage.history import History
from perfwatch.triage.motion import stacks_of
from perfwatch.triage.node import Node

STAYS_SHARE = 0.9  # of the samples; a nonblocking sample tears in about 3 %
SECONDS = 30.0


def turning(history: History, node: Node) -> tuple[str, ...]:
    """Kinds of the loops, innermost first, in the innermost frame that stays and has any; () when not known."""
    for lines in reversed(_staying(history, node)):
        known = [source for line in lines if (source := line_of(history, line))]
        loops = max((source.loops for source in known), key=len, default=())
        if loops:
            return loops
    return ()


def _staying(history: History, node: Node) -> list[list[r.Frame]]:
    """The program's own frames that stay, outermost first; of each, the lines that it was seen at."""
    stacks = [
        (user_frames(seen.reading)[::-1], seen.reading.samples)
        for seen in stacks_of(history, node.pid, node.tid, SECONDS)
    ]
    total = sum(weight for _, weight in stacks)
    found: list[list[r.Frame]] = []
    while total:
        depth = len(found)
        at: Counter[tuple[str, str]] = Counter()
        for frames, weight in stacks:
            if len(frames) > depth:
                at[frames[depth].function, frames[depth].file] += weight
        if not at or at.most_common(1)[0][1] < STAYS_SHARE * total:
            break
        name = at.most_common(1)[0][0]
        stacks = [one for one in stacks if len(one[0]) > depth and (one[0][depth].function, one[0][depth].file) == name]
        found.append(list(dict.fromkeys(frames[depth] for frames, _ in stacks)))
    return found
