"""Steps have become slower than they were earlier in this very run."""

from perfwatch.text import short_time
from perfwatch.triage.case import Case
from perfwatch.triage.moving.growth import carrier, change_point, growing
from perfwatch.triage.moving.periods import is_in
from perfwatch.triage.moving.progress import evaluated
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.cpu import delay_share, taken_by_others
from perfwatch.triage.shares.kept_graph import kept_graph
from perfwatch.triage.slowness import slow
from perfwatch.triage.words.frames import any_tag, inner_tags, short_name, show
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Frame, Stack, Steps

CAUSE = Cause("regressed", "slow", "unknown", (Steps,))

WINDOW_SECONDS = 600.0
LOOKS = 60  # three seconds of samples since the change, in which no other cause was found
CROWDED_SHARE = 0.15  # waiting for a CPU: then the machine is slower, not the run
TAKEN_SHARE = 0.3  # of the CPUs, by others: then they may be what makes it slower
# So little slower it may be where they take less (measured: 1.2 to 1.35 times at 0.16 to 0.24).
A_LITTLE, SHARED_SHARE = 1.5, 0.1
LITTLE_BY_LITTLE = 3.0  # so many times as long, step by step: others come and go, they do not grow
SURE, BESIDE_OTHERS = 0.85, 0.55
BY_DESIGN, MODEL_SHARE = 0.65, 0.5  # most of the line's samples in the model: it may be meant to be given longer inputs
MOSTLY_MODEL = 0.7
LONGER_INPUTS = "inputs that become longer do this by design (a curriculum, batches sorted by length)"
LATELY_SECONDS = 60.0  # of samples, of what the steps are now


def judge(case: Case) -> Outcome:
    """Fires on one lasting shift of the step time, on steps that grow all along, or on a graph that does."""
    for rank in case.ranks:
        steps = case.steps(rank, WINDOW_SECONDS)
        if steps is None or case.progress[rank.pid].kind != "moving":
            continue
        if evaluated(case.history, rank.pid, case.progress[rank.pid].thread, LATELY_SECONDS):
            continue  # another optimizer than before, whose steps are many evaluations
        if (delay_share(case, rank.pid) or 0.0) > CROWDED_SHARE:
            continue
        if (grown := growing(steps.intervals)) is not None and case.profile(rank, LATELY_SECONDS).samples >= LOOKS:
            return _grows(case, rank, *grown, len(steps.intervals))
        each = max(1.0, steps.advanced / max(1, len(steps.intervals)))  # brief steps are not all listed
        change = change_point(steps.intervals, each)
        if change is None:
            continue
        index, before, after = change
        ago = each * sum(steps.intervals[index:])
        if case.profile(rank, ago).samples < LOOKS:
            continue  # what the thread is at since then must be known before nothing else is to blame
        by_model = case.profile(rank, ago).share("forward", "backward") >= MOSTLY_MODEL
        sure = _sure(case, rank, after / before)
        return slow(
            case,
            CAUSE,
            rank,
            lost=1.0 - before / after,
            explains=0.0,
            confidence=min(sure, BY_DESIGN) if by_model else sure,
            summary=f"steps became {after / before:.2f} times as long about {ago:.0f} s ago: "
            f"{before * 1e3:.0f} ms before, {after * 1e3:.0f} ms now",
            evidence=(
                case.saw(
                    "steps",
                    f"pid {rank.pid}",
                    "the median shifted",
                    f"{before * 1e3:.1f} ms over {index} steps, then {after * 1e3:.1f} ms over {len(steps.intervals) - index}",
                    "one median",
                ),
            ),
            culprits=(),
            alternatives=(Alternative(cause="slow_checkpoint", refuted_by="the median itself moved, not a few steps"),),
            next=(
                *((LONGER_INPUTS,) if by_model else ()),
                "perfwatch replay --at TIME shows the job before and after the change",
            ),
        )
    return kept_graph(case, CAUSE)


def _sure(case: Case, rank: Member, times: float) -> float:
    shared = taken_by_others(case, rank.pid) >= (TAKEN_SHARE if times >= A_LITTLE else SHARED_SHARE)
    return BESIDE_OTHERS if shared else SURE


def _grows(case: Case, rank: Member, first: float, last: float, count: int) -> Outcome:
    """Steps that take longer and longer, and the program's own line where most of that time goes."""
    seen = case.profile(rank, LATELY_SECONDS)
    found = carrier(seen, first, last)
    frame, share = found if found is not None else (None, 0.0)
    by_model = frame is not None and seen.share_where(lambda stack: _in_model(frame, stack)) >= MODEL_SHARE * share
    sure = SURE if last >= LITTLE_BY_LITTLE * first else _sure(case, rank, last / first)
    where = f", most of that at {show(frame)}, which takes {share:.0%} of the time now" if frame is not None else ""
    shift = f"{short_time(first)} at first, {short_time(last)} now, mostly in order between, over {count} steps"
    return slow(
        case,
        CAUSE,
        rank,
        lost=1.0 - first / last,
        explains=share,
        frame=frame,
        culprits=None if frame is not None else (),
        confidence=min(sure, BY_DESIGN) if by_model else sure,
        summary=f"steps take longer and longer: {short_time(first)} at first, {short_time(last)} now{where}",
        evidence=(case.saw("steps", f"pid {rank.pid}", "the median grows", shift, "one median"),),
        alternatives=(Alternative(cause="serial_loading", refuted_by="steps took less time before"),),
        next=(
            f"{LONGER_INPUTS}; else look for what {show(frame)} is given more of with every step, a graph or a memory that is kept"
            if by_model
            else f"look at what {show(frame)} goes through: does it become longer with every step?"
            if frame is not None
            else "look for what becomes longer with every step: inputs, a list, a graph that is kept",
        ),
    )


def _in_model(frame: Frame, stack: Stack) -> bool:
    """Whether a stack is at that place in the model's own work: in a ``forward``, or below it in torch's modules."""
    below = any_tag(inner_tags(stack), "forward", "backward")
    return is_in(frame, stack) and (below or short_name(frame.function) == "forward")


RULES = (Rule(CAUSE, judge),)
