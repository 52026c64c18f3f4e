"""GPU memory is given back to the driver and asked for anew, again and again."""

from perfwatch.triage.cards.accelerated import Accelerated, accelerated, monitored, slow_on_gpu
from perfwatch.triage.cards.given_back import (
    WINDOW_SECONDS,
    empties,
    falls_of,
    falls_often,
    fills_up,
    memory_used,
    tries_convolutions,
)
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.rules.python import collects
from perfwatch.triage.slowness import LOST_SHARE, certainty, telling
from perfwatch.triage.words.frames import show, user_frame
from perfwatch.verdict import Alternative, Evidence, Outcome
from perfwatch_probes.readings import Frame, GpuSample, Stack

CAUSE = Cause("allocator_thrash", "slow", "user_code", (GpuSample,))

FILLS = 0.3  # of the card while a kernel is resident: kernels so large do not wait for their launch
EMPTYING = 0.02  # of the samples, beside memory that falls and rises
EMPTYING_ALONE = 0.06
FEW_SIGHTS = 2  # of a call that comes back
COLLECTING = 0.1  # of the samples: garbage is collected in the same breath
SEEN, INFERRED = 0.92, 0.8
NOT_FULL = 0.7  # who gives it back is not seen then, nor why


def judge(case: Case) -> Outcome:
    """Fires on memory that saw-tooths while the card waits."""
    for one in accelerated(case):
        used = memory_used(case, one)
        falls = falls_of(used)
        emptying = one.profile.share_where(lambda stack: empties(case, stack))
        large = (one.card.sm_active or 0.0) >= FILLS * (one.card.graphics or 1.0)
        if tries_convolutions(case, one):
            continue  # cuDNN gives back what its trials took
        if not (emptying >= EMPTYING_ALONE or (falls_often(falls, one) and (emptying >= EMPTYING or large))):
            continue
        lost = max(emptying, one.card.waiting)
        if lost >= LOST_SHARE:
            return _finding(case, one, falls, min(used, default=0), max(used, default=0), emptying, lost)
    return None


def _recurs(case: Case, one: Accelerated) -> bool:
    """Whether the thread was seen to empty the cache, went on, and came back to it."""
    return len(one.profile.runs(lambda stack: empties(case, stack))) >= FEW_SIGHTS


def _finding(case: Case, one: Accelerated, falls: int, low: int, high: int, emptying: float, lost: float) -> Outcome:
    known = emptying >= EMPTYING or _recurs(case, one)
    line = _line(case, one) if known else None
    frame, name = show(line), name_of(case.history, one.card.uuid)
    at = f"; the training thread empties the cache at {frame}" if frame else ""
    collecting = _collecting(case, one, line)
    if collecting >= COLLECTING:
        at += f", and collects garbage there {collecting:.0%} of its time"
    calls = "gc.collect() and empty_cache()" if collecting >= COLLECTING else "empty_cache()"
    return slow_on_gpu(
        case,
        CAUSE,
        one,
        lost=lost,
        frame=frame,
        confidence=max(certainty(lost), SEEN)
        if known
        else min(INFERRED if fills_up(case, one) else NOT_FULL, certainty(lost)),
        summary=f"the memory of {name} is given back and asked for anew"
        + (
            f" {falls} times in {_watched_seconds(case):.0f} s, between {low / 2**30:.1f} and {high / 2**30:.1f} GiB"
            if falls
            else ""
        )
        + at,
        evidence=(
            *_evidence(case, one, falls, emptying),
            monitored(case, one, "waits meanwhile", "a kernel resident all the time"),
        ),
        alternatives=(Alternative(cause="synchronising", refuted_by="the memory itself goes up and down"),),
        next=(
            f"take {calls} out of the loop at {frame}"
            if frame
            else "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; a smaller batch, or inputs padded to a few sizes",
        ),
    )


def _evidence(case: Case, one: Accelerated, falls: int, emptying: float) -> tuple[Evidence, ...]:
    """What memory and stacks show; either may show nothing, and is left out then."""
    told, name = f"{falls} times in {_watched_seconds(case):.0f} s", name_of(case.history, one.card.uuid)
    memory = (case.saw("nvml", name, "memory falls and rises", told, "constant"),) if falls else ()
    stacks = telling(case, f"pid {one.rank.pid}", ("stack", "empties the cache", emptying, "the samples", "0 %"))
    return (*memory, *stacks)


def _watched_seconds(case: Case) -> float:
    return min(WINDOW_SECONDS, case.history.at)


def _collecting(case: Case, one: Accelerated, line: Frame | None) -> float:
    """Share of the samples that collect garbage in the function that empties the cache."""

    def there(stack: Stack) -> bool:
        frame = user_frame(stack)
        same = frame is not None and line is not None and (frame.function, frame.file) == (line.function, line.file)
        return same and collects(case, stack)

    return one.profile.share_where(there)


def _line(case: Case, one: Accelerated) -> Frame | None:
    return one.profile.top_line(lambda stack: empties(case, stack))


RULES = (Rule(CAUSE, judge),)
