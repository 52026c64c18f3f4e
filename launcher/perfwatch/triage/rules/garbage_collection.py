"""Python's garbage collector takes a large part of the time."""

from perfwatch.triage.case import Case
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.native import native_profile
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.slowness import WINDOW_SECONDS, slow, telling, worst
from perfwatch.triage.words.code import calling_line
from perfwatch.triage.words.frames import show, tags
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack

CAUSE = Cause("garbage_collection", "slow", "user_code", (Stack,))

COLLECTING = frozenset({"gc.collect", "collect"})
# CPython 3.10 to 3.13, gcmodule.c / gc.c.
COLLECTOR = (
    "gc_collect",
    "collect.",
    "deduce_unreachable",
    "subtract_refs",
    "move_unreachable",
    "visit_decref",
    "visit_reachable",
    "update_refs",
    "untrack_",
)


def judge(case: Case) -> Outcome:
    """Fires when the collector costs a good part of the training thread's time."""
    found = worst(case, lambda rank, seen: max(_explicit(case, seen), _native(case, rank)))
    if found is None:
        return None
    rank, seen, lost = found
    frame = seen.top_line(lambda stack: collects(case, stack)) or seen.top_line()
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        frame=frame,
        summary=f"garbage collection takes {lost:.0%} of the training thread's time"
        + (f", at {show(frame)}" if frame else ""),
        evidence=telling(
            case,
            f"pid {rank.pid}",
            ("stack", "calls gc.collect", _explicit(case, seen), f"{seen.samples} samples", "0 %"),
            ("native", "is in the collector", _native(case, rank), "the native profile", "below 3 %"),
        ),
        alternatives=(Alternative(cause="endless_python", refuted_by="steps go on"),),
        next=("gc.freeze() after setup, gc.set_threshold(50_000, 20, 20), no gc.collect() in the loop",),
    )


def collects(case: Case, stack: Stack) -> bool:
    """Whether a stack stands at a line that calls the collector."""
    if "gc" in tags(stack):
        return True
    line = calling_line(case.history, stack)
    return line is not None and not COLLECTING.isdisjoint(line.calls)


def _explicit(case: Case, seen: Profile) -> float:
    return seen.share_where(lambda stack: collects(case, stack))


def _native(case: Case, rank: Member) -> float:
    seen = native_profile(case, rank, WINDOW_SECONDS)
    if seen is None or case.progress[rank.pid].kind != "moving":
        return 0.0
    return sum(share for symbol, share in seen.shares.items() if symbol.lstrip("_").startswith(COLLECTOR))


RULES = (Rule(CAUSE, judge),)
