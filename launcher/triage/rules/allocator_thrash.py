"""GPU memory is given back to the driver and asked for anew, again and again.

What it means
    ``empty_cache()`` in the loop, or sizes that change at the edge of the memory: torch's allocator has to return its cache and
    to allocate anew. Each return waits until the card is done.

How it is recognised
    The training thread is in ``empty_cache`` (or at a line that calls it) for a good part of its time; or the memory used on the
    card falls and rises many times within seconds, from nearly full each time. And the card has gaps. The memory is looked at
    too seldom to see each fall: where the thread tells, none is needed.

What it is mistaken for
    A single release, at the end of an evaluation or of a phase. Sizes that change with room to spare: the cache serves them.

What to do next
    Take ``empty_cache()`` out of the loop; ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``; pad to a few sizes.
"""

from perfwatch.probes.readings import Frame, Gpu, GpuSample, SourceLine, Stack
from perfwatch.triage.accelerated import Accelerated, accelerated, monitored, slow_on_gpu
from perfwatch.triage.case import Case
from perfwatch.triage.frames import show, tags, user_frame
from perfwatch.triage.gpu import name_of
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import LOST_SHARE, certainty
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("allocator_thrash", "slow", "user_code", (GpuSample,))

WINDOW_SECONDS = 15.0
FALL_BYTES = 64 * 2**20  # three of torch's larger segments
FALLS_PER_SECOND = 0.3  # memory is looked at ten times a second: faster swings show as often as they can
NEARLY_FULL = 0.85  # of the card, at its highest
EMPTYING = 0.02  # of the samples, beside memory that falls and rises
EMPTYING_ALONE = 0.06
SEEN, INFERRED = 0.92, 0.8


def judge(case: Case) -> Outcome:
    """Fires on memory that saw-tooths while the card waits."""
    for one in accelerated(case):
        used = [
            seen.reading.memory_used_bytes
            for seen in case.history.series(GpuSample, one.card.uuid, seconds=WINDOW_SECONDS)
            if seen.reading.memory_used_bytes is not None
        ]
        falls = swings(used)
        emptying = one.profile.share_where(lambda stack: _empties(case, stack))
        described = case.history.latest(Gpu, one.card.uuid)
        total = described.reading.memory_bytes if described is not None else None
        full = total is not None and bool(used) and max(used) >= NEARLY_FULL * total
        often = falls >= FALLS_PER_SECOND * min(WINDOW_SECONDS, one.card.seconds)
        if not (emptying >= EMPTYING_ALONE or (often and (emptying >= EMPTYING or full))):
            continue
        lost = max(emptying, one.card.waiting)
        if lost >= LOST_SHARE:
            return _finding(case, one, falls, min(used, default=0), max(used, default=0), emptying, lost)
    return None


def swings(used: list[int]) -> int:
    """How many times the memory fell by a good deal and rose again."""
    found, high, low, falling = 0, 0, 0, False
    for now in used:
        if not falling:
            high = max(high, now)
            if high - now >= FALL_BYTES:
                falling, low = True, now
        else:
            low = min(low, now)
            if now - low >= FALL_BYTES:
                found, falling, high = found + 1, False, now
    return found


def _finding(case: Case, one: Accelerated, falls: int, low: int, high: int, emptying: float, lost: float) -> Outcome:
    frame = show(_line(case, one)) if emptying >= EMPTYING else None
    name = name_of(case.history, one.card.uuid)
    at = f"; the training thread empties the cache at {frame}" if frame else ""
    return slow_on_gpu(
        case,
        CAUSE,
        one,
        lost=lost,
        frame=frame,
        confidence=max(certainty(lost), SEEN) if emptying >= EMPTYING else min(INFERRED, certainty(lost)),
        summary=f"the memory of {name} is given back and asked for anew"
        + (
            f" {falls} times in {WINDOW_SECONDS:.0f} s, between {low / 2**30:.1f} and {high / 2**30:.1f} GiB"
            if falls
            else ""
        )
        + at,
        evidence=(
            case.saw("nvml", name, "memory falls and rises", f"{falls} times in {WINDOW_SECONDS:.0f} s", "constant"),
            case.saw("stack", f"pid {one.rank.pid}", "empties the cache", f"{emptying:.0%} of the samples", "0 %"),
            monitored(case, one, "waits meanwhile", "a kernel resident all the time"),
        ),
        alternatives=(Alternative(cause="synchronising", refuted_by="the memory itself goes up and down"),),
        next=(
            f"take empty_cache() out of the loop at {frame}"
            if frame
            else "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; a smaller batch, or inputs padded to a few sizes",
        ),
    )


def _empties(case: Case, stack: Stack) -> bool:
    if "empty_cache" in tags(stack):
        return True
    frame = user_frame(stack)
    seen = case.history.latest(SourceLine, frame.file, frame.line) if frame is not None else None
    return seen is not None and any(call.rsplit(".", 1)[-1] == "empty_cache" for call in seen.reading.calls)


def _line(case: Case, one: Accelerated) -> Frame | None:
    return one.profile.top_line(lambda stack: _empties(case, stack))
