"""Whether each backward pass goes back through the steps before it: the graph is kept, and something of the last step hangs on it.

A step's own graph takes about twice as long backward as forward. One that is carried on (a state that was not detached) makes
backward take ever more of the time, and memory with it; autograd allows that only with ``retain_graph=True``.
"""

from functools import partial
from itertools import pairwise

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import slow
from perfwatch.triage.words.code import line_of
from perfwatch.triage.words.frames import show, tags, user_frame
from perfwatch.verdict import Alternative, Finding
from perfwatch_probes.readings import Frame, ProcessUsage, Stack

WINDOW_SECONDS = 30.0
KEEPS = "retain_graph=True"
MOSTLY = 0.8  # of the samples: a graph of one step, with two losses and their penalties, takes less
FEW_SAMPLES, FEW_READINGS = 40, 4
GROWS_BYTES, GROWS_BYTES_PER_SECOND = 4 << 20, 256 << 10  # an allocator that still warms up comes to rest
SURE = 0.75  # what memory grows for is not seen


def kept_graph(case: Case, cause: Cause) -> Finding | None:
    """Fires on a rank that is in backward nearly all the time, at a line that keeps the graph, while its memory grows."""
    for rank in case.ranks:
        kept, grown = keeps_most(case, rank), _grown(case.history, rank.pid)
        if case.progress[rank.pid].kind != "moving" or kept is None or grown is None:
            continue
        share, line, samples = kept
        return slow(
            case,
            cause,
            rank,
            lost=share,
            explains=share,
            confidence=SURE,
            frame=line,
            summary=f"backward takes {share:.0%} of the time at {show(line)}, which keeps the graph ({KEEPS}), and memory grows by "
            f"{grown / 2**20:.1f} MiB/s: it goes back through more steps each time",
            evidence=(
                case.saw(
                    "stack", f"pid {rank.pid}", "is in backward", f"{share:.0%} of {samples} samples", "two thirds"
                ),
                case.saw("process", f"pid {rank.pid}", "its memory grows", f"{grown / 2**20:.1f} MiB/s", "rests"),
            ),
            alternatives=(
                Alternative(cause="cpu_training", refuted_by="a graph of one step takes no such share, and is freed"),
            ),
            next=(f"detach what one step hands to the next (state.detach()), and leave {KEEPS} out at {show(line)}",),
        )
    return None


def keeps_most(case: Case, rank: Member) -> tuple[float, Frame | None, int] | None:
    """The share of its samples in a backward pass that keeps its graph, where, and of how many, if that is nearly all; else None."""
    seen, keeps = case.profile(rank, WINDOW_SECONDS), partial(_keeps, case.history)
    share = seen.share_where(keeps)
    return (share, seen.top_line(keeps), seen.samples) if seen.samples >= FEW_SAMPLES and share >= MOSTLY else None


def _keeps(history: History, stack: Stack) -> bool:
    line = line_of(history, user_frame(stack))
    return line is not None and KEEPS in line.text.replace(" ", "") and "backward" in tags(stack)


def _grown(history: History, pid: int) -> float | None:
    """By how many bytes a second its own memory grew, if it never fell meanwhile; else None."""
    looks = history.series(ProcessUsage, pid, seconds=WINDOW_SECONDS)
    sizes = [(one.at, one.reading.resident_bytes) for one in looks if one.reading.resident_bytes is not None]
    if len(sizes) < FEW_READINGS or any(later < earlier for (_, earlier), (_, later) in pairwise(sizes)):
        return None
    (began, first), (ended, last) = sizes[0], sizes[-1]
    rate = (last - first) / (ended - began)
    return rate if last - first >= GROWS_BYTES and rate >= GROWS_BYTES_PER_SECOND else None
