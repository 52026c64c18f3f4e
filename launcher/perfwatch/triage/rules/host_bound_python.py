"""Python holds the steps up: the GPU waits for its launches, or torch for loops in a hook."""

from functools import partial

from perfwatch.triage.cards.accelerated import (
    Accelerated,
    accelerated,
    has_gaps,
    launching_share,
    monitored,
    slow_on_gpu,
    sync_share,
)
from perfwatch.triage.cards.hardware import traffic_mib_per_second
from perfwatch.triage.cards.thresholds import FEW_SAMPLES
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.called_back import holds_up_steps
from perfwatch.triage.shares.other_work import keeps_gil
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.saving import in_save
from perfwatch.triage.shares.updating import decodes
from perfwatch.triage.slowness import LOST_SHARE, certainty
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Frame, GpuSample, Stack, Thread

CAUSE = Cause("host_bound_python", "slow", "user_code", (Thread, Stack, GpuSample))

RUNS = 0.7  # of a core, waiting for one included
LAUNCHING = 0.5  # of the samples
SYNCS = 0.1  # of the samples: above it the waits for the card are the better explanation
COPIES_MIB_PER_SECOND = 1024.0  # of launches alone there are some hundred
COPIES_TOO = 0.7  # confidence where so much is copied, or may be, that this may be what the host does
ONE_FUNCTION = 0.6  # of the samples
RESIDUE = 0.5  # every host-side cause leaves the card waiting: one that explains half as much is the better answer


def judge(case: Case) -> Outcome:
    """Fires on a card that waits while the host runs as fast as it can, and on steps on a CPU that loops of Python hold up."""
    for one in accelerated(case):
        seen = one.profile
        if decodes(seen, case.steps(one.rank)):
            continue
        if not has_gaps(one.card) or one.card.waiting < LOST_SHARE or seen.samples < FEW_SAMPLES:
            continue
        launching, syncs = launching_share(case, seen), sync_share(case, seen)
        if one.runs < RUNS or launching < LAUNCHING or syncs >= SYNCS:
            continue
        lost = min(one.card.waiting, launching)
        moved = traffic_mib_per_second(case.history, one.card)
        copies = moved is None or moved >= COPIES_MIB_PER_SECOND
        line = seen.top_line(lambda stack: not in_save(case, stack)) or seen.top_line()
        frame = show(line)
        does, helps = _does(one, frame, _computes_at(seen, line))
        return slow_on_gpu(
            case,
            CAUSE,
            one,
            lost=lost,
            explains=RESIDUE * lost,
            confidence=min(certainty(lost), COPIES_TOO if copies else 1.0),
            frame=frame,
            summary=f"the GPU waits for the host {one.card.waiting:.0%} of the time: {does}",
            evidence=(
                monitored(case, one, "waits between kernels", "a kernel resident all the time"),
                case.saw(
                    "schedstat",
                    f"pid {one.rank.pid}",
                    "the training thread runs",
                    f"{one.runs:.0%} of a core",
                    "waits for the GPU",
                ),
                case.saw(
                    "stack",
                    f"pid {one.rank.pid}",
                    "launches or computes, and waits neither for data nor for the card",
                    f"{launching:.0%} of {seen.samples} samples, {syncs:.0%} in synchronisations",
                    "a part of the time in synchronisations",
                ),
            ),
            alternatives=(
                Alternative(cause="synchronising", refuted_by=f"only {syncs:.0%} of the samples wait for the card"),
            ),
            next=(helps,),
        )
    return holds_up_steps(case, CAUSE)


def _does(one: Accelerated, frame: str | None, plain: bool) -> tuple[str, str]:
    """What the host does, and what helps: each launch is a part of a kernel's time, so that launches alone never leave a card idle."""
    if plain:
        return f"Python computes at {frame}", f"write {frame} with tensors or a native library, without loops in Python"
    if one.card.kind == "idle":
        return (
            f"the host computes itself, mostly at {frame}",
            f"compute on the GPU what {frame} computes on the host, less often, or with more CPU threads",
        )
    return (
        f"Python launches kernels more slowly than the card runs them, mostly at {frame}",
        'fewer, larger launches: torch.compile(mode="reduce-overhead"), CUDA graphs, fused=True in the optimizer',
    )


def _in(frame: Frame, stack: Stack) -> bool:
    """Whether a stack is in the function of a frame, and in nothing that it calls."""
    return bool(stack.frames) and (stack.frames[0].function, stack.frames[0].file) == (frame.function, frame.file)


def _computes_at(seen: Profile, frame: Frame | None) -> bool:
    """Whether most of the time goes into Python of one function, which keeps the GIL."""
    if frame is None:
        return False
    within = partial(_in, frame)
    return seen.share_where(within) >= ONE_FUNCTION and keeps_gil(seen, within)


RULES = (Rule(CAUSE, judge),)
