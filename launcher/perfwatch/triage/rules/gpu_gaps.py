"""A GPU that runs dry between kernels: for copies, synchronisations, memory that is freed and allocated anew, or a search for kernels.

torch's allocator returns its cache to the driver when it is told to (``empty_cache``), when the card is full, and each time that cuDNN
has tried its ways to run a convolution, for that takes gigabytes (torch, ``aten/src/ATen/native/cudnn/Conv_v7.cpp``; seen on an H200
with 2.11).
"""

from functools import partial
from itertools import pairwise

from perfwatch.triage.busy import MOVES_SHARE, phases
from perfwatch.triage.cards.accelerated import (
    Accelerated,
    accelerated,
    in_copy,
    line_of,
    monitored,
    slow_on_gpu,
    sync_share,
)
from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.cards.hardware import ceiling_mib_per_second, traffic_mib_per_second
from perfwatch.triage.cards.thresholds import CERTAIN, FEW_SAMPLES, HIGH, LATELY_SECONDS, LOW, MEDIUM
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.debugging import mode_on
from perfwatch.triage.slowness import LOST_SHARE, certainty, telling
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.words.frames import show, tags, tags_of, user_frame
from perfwatch.verdict import Abstention, Alternative, Finding, Missing, Outcome
from perfwatch_probes.readings import Gpu, GpuProcess, GpuSample, SourceLine, Stack, Thread

COPY_BOUND = Cause("copy_bound", "slow", "user_code", (Stack, GpuSample))
SYNCHRONISING = Cause("synchronising", "slow", "user_code", (Stack, SourceLine, GpuSample))
ALLOCATOR_THRASH = Cause("allocator_thrash", "slow", "user_code", (GpuSample,))
AUTOTUNING = Cause("autotuning", "busy", "user_code", (Thread, Stack))

# copy_bound
TRAFFIC_MIB_PER_SECOND = 1024.0  # a healthy training moves some hundred
COPYING = 0.15  # of the samples
NEAR_CEILING = 0.6  # of what the link can do
MOSTLY = 0.5  # of the copies
OF_BATCHES = "DataLoader(pin_memory=True) and .to(device, non_blocking=True); send uint8 and convert on the card"
OF_ACTIVATIONS = (
    "save_on_cpu(pin_memory=True), for larger tensors only; or compute activations again (torch.utils.checkpoint)"
)

# synchronising
SYNCS = 0.1  # of the samples; a loop that reads its loss every tenth step stays below 0.05 where the card is not the bottleneck
WAITS_FOR_DATA = 0.3  # of the samples: then the card waits for that

# allocator_thrash
FREED_BYTES = 20 * 2**20  # the least that torch asks the driver for at once (its large segments)
FREES_PER_SECOND, FEW_FREES = 0.25, 2  # memory is sampled once a second: faster swings show as often as they can
FILLS = 0.3  # of the card while a kernel is resident: kernels so large do not wait for their launch
EMPTYING, EMPTYING_ALONE = 0.02, 0.06  # of the samples, beside memory that falls and rises, and without
FAR_FROM_FULL = 0.7  # of the card's memory: an allocator that frees for want of room has seen it full

# autotuning
TUNING_SHARE = 0.4  # of samples; the rest compiles the next candidate
FEW_TIMES = 3  # that a convolution was entered anew
CONVOLVES = 0.7  # of the samples in the forward pass, elsewhere a third or less: a convolution itself returns at once


def copy_bound(case: Case) -> Outcome:
    """Fires on a card that waits while bytes cross the link."""
    for one in accelerated(case):
        moved = traffic_mib_per_second(case.history, one.card)
        if one.card.waiting < LOST_SHARE or one.profile.samples < FEW_SAMPLES:
            continue
        copying = one.profile.share_where(partial(in_copy, case.history))
        if moved is None and copying >= COPYING:
            unmeasured = Missing(witness="pcie", reason="how many bytes cross the link of this card is not measured")
            return Abstention(cause=COPY_BOUND.name, missing=(unmeasured,))
        if moved is None or moved < TRAFFIC_MIB_PER_SECOND:
            continue
        ceiling = ceiling_mib_per_second(case.history, one.card.uuid)
        full = ceiling is not None and moved >= NEAR_CEILING * ceiling
        if copying >= COPYING or full:
            return _copies(case, one, moved, ceiling, copying)
    return None


def _copies(case: Case, one: Accelerated, moved: float, ceiling: float | None, copying: float) -> Finding:
    frame = line_of(one.profile, partial(in_copy, case.history))
    lost = min(one.card.waiting, max(copying, LOST_SHARE))
    saving = one.profile.share("saved_on_host") >= MOSTLY * copying > 0.0
    of = "" if ceiling is None else f", {moved / ceiling:.0%} of what the link can do"
    return slow_on_gpu(
        case,
        COPY_BOUND,
        one,
        lost=lost,
        explains=one.card.waiting if copying >= COPYING else None,
        frame=frame,
        summary=f"{moved / 1024:.1f} GiB/s cross PCIe while the GPU has no kernel to run {one.card.waiting:.0%} of the time"
        + (f"; the training thread copies {copying:.0%} of the time, mostly at {frame}" if frame else "")
        + (": save_on_cpu moves what backward needs to host memory" if saving else ""),
        evidence=(
            monitored(case, one, "has no kernel resident while bytes arrive", "copies beside the kernels"),
            case.saw(one.card.source, "pcie", "bytes cross the link", f"{moved:.0f} MiB/s{of}", "some hundred MiB/s"),
            case.saw(
                "stack",
                f"pid {one.rank.pid}",
                "stands at a line that copies",
                f"{copying:.0%} of {one.profile.samples} samples",
                "below 5 %",
            ),
        ),
        alternatives=(Alternative(cause="degraded_link", refuted_by="the link runs at its full generation and width"),),
        next=(OF_ACTIVATIONS if saving else OF_BATCHES,),
    )


def synchronising(case: Case) -> Outcome:
    """Fires on a thread that waits for a card which is not busy."""
    for one in accelerated(case):
        seen, card = one.profile, one.card
        syncs, others = sync_share(case, seen), seen.share("loader_wait", "fetch", "save", "collective")
        gaps = card.kind == "wait" or card.waits_for_launches
        if not gaps or card.waiting < LOST_SHARE or seen.samples < FEW_SAMPLES:
            continue
        if syncs < SYNCS or others > WAITS_FOR_DATA:
            continue
        lost, frame = min(card.waiting, 1.0 - others), line_of(seen, partial(in_sync, case.history))
        return slow_on_gpu(
            case,
            SYNCHRONISING,
            one,
            lost=lost,
            frame=frame,
            confidence=certainty(min(lost, 2 * syncs)),
            summary=f"the training thread waits for the GPU at {frame} again and again ({syncs:.0%} of its time), "
            f"and between two waits the card runs dry: it has nothing to do {card.waiting:.0%} of the time",
            evidence=(
                case.saw(
                    "stack",
                    f"pid {one.rank.pid}",
                    f"waits for the device at {frame}",
                    f"{syncs:.0%} of {seen.samples} samples",
                    "below 5 %, or a card that is busy meanwhile",
                ),
                monitored(case, one, "kernels come and go, with gaps", "a kernel resident all the time"),
            ),
            alternatives=(
                Alternative(cause="gpu_bound", refuted_by=f"the card has nothing to do {card.waiting:.0%} of the time"),
            ),
            next=(f"keep the value at {frame} on the device, and read it every hundredth step",),
        )
    return None


# Memory that is freed and allocated anew


def allocator_thrash(case: Case) -> Outcome:
    """Fires on memory that saw-tooths while the card waits."""
    for one in accelerated(case):
        emptying = one.profile.share_where(partial(_empties, case))
        large = (one.card.sm_active or 0.0) >= FILLS * (one.card.graphics or 1.0)
        if _tries_convolutions(case, one):
            continue  # cuDNN frees what its trials took
        frees = _frees(_memory_used(case, one))
        if not (emptying >= EMPTYING_ALONE or (_frees_often(frees, one) and (emptying >= EMPTYING or large))):
            continue
        lost = max(emptying, one.card.waiting)
        if lost >= LOST_SHARE:
            return _thrashes(case, one, frees, emptying, lost)
    return None


def _thrashes(case: Case, one: Accelerated, frees: int, emptying: float, lost: float) -> Finding:
    empties, name, used = partial(_empties, case), name_of(case.history, one.card.uuid), _memory_used(case, one)
    known = emptying >= EMPTYING or len(one.profile.runs(empties)) > 1  # it came back to the call
    frame = show(one.profile.top_line(empties)) if known else None
    told = f"{frees} times in {min(LATELY_SECONDS, case.history.at):.0f} s"
    between = f"between {min(used, default=0) / 2**30:.1f} and {max(used, default=0) / 2**30:.1f} GiB"
    memory = (case.saw("nvml", name, "memory falls and rises", told, "constant"),) if frees else ()
    return slow_on_gpu(
        case,
        ALLOCATOR_THRASH,
        one,
        lost=lost,
        frame=frame,
        confidence=CERTAIN if known else min(_sure_of_memory(case, one), certainty(lost)),
        summary=f"the memory of {name} is freed and allocated anew"
        + (f" {told}, {between}" if frees else "")
        + (f"; the training thread empties the cache at {frame}" if frame else ""),
        evidence=(
            *memory,
            *telling(case, f"pid {one.rank.pid}", ("stack", "empties the cache", emptying, "the samples", "0 %")),
            monitored(case, one, "waits meanwhile", "a kernel resident all the time"),
        ),
        alternatives=(Alternative(cause="synchronising", refuted_by="the memory itself goes up and down"),),
        next=(
            f"take empty_cache() out of the loop at {frame}"
            if frame
            else "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; a smaller batch, or inputs padded to a few sizes",
        ),
    )


def _sure_of_memory(case: Case, one: Accelerated) -> float:
    """How sure it is that memory falls for want of room. On a card that is not full the program may have set a limit, or cuDNN searches."""
    if _fills_up(case, one):
        return HIGH
    searches = (
        mode_on(case, one.rank, "cudnn_benchmark") is not False and one.profile.share_where(_in_convolution) > 0.0
    )
    return LOW if searches else MEDIUM


def _empties(case: Case, stack: Stack) -> bool:
    """True if a stack is in ``empty_cache``, or at a line that calls it."""
    if "empty_cache" in tags(stack):
        return True
    frame = user_frame(stack)
    seen = case.history.latest(SourceLine, frame.file, frame.line) if frame is not None else None
    return seen is not None and any(call.rsplit(".", 1)[-1] == "empty_cache" for call in seen.reading.calls)


def _memory_used(case: Case, one: Accelerated) -> list[int]:
    """What the rank's own process held, sample by sample; or the whole card, which is sampled more often, if the rank is alone there.

    Once a second hides most of what an allocator frees and asks for anew within a step. If the driver does not tell what a process
    holds, there is only the card.
    """
    looks = [
        seen
        for key in case.history.entities(GpuProcess)
        if key[0] == one.card.uuid
        for seen in case.history.series(GpuProcess, *key, seconds=LATELY_SECONDS)
    ]
    alone = all(seen.reading.local_pid == one.rank.pid for seen in looks)
    own = [
        seen.reading.memory_bytes
        for seen in looks
        if seen.reading.local_pid == one.rank.pid and seen.reading.memory_bytes is not None
    ]
    card = _of_card(case, one)
    return max(own, card, key=_frees) if alone else own or card


def _of_card(case: Case, one: Accelerated) -> list[int]:
    looks = case.history.series(GpuSample, one.card.uuid, seconds=LATELY_SECONDS)
    return [seen.reading.memory_used_bytes for seen in looks if seen.reading.memory_used_bytes is not None]


def _frees(used: list[int]) -> int:
    """How many samples found a good deal less memory in use than the one before."""
    return sum(1 for before, now in pairwise(used) if before - now >= FREED_BYTES)


def _frees_often(frees: int, one: Accelerated) -> bool:
    """True if that is more than a release now and then."""
    return frees >= max(FEW_FREES, FREES_PER_SECOND * min(LATELY_SECONDS, one.card.seconds))


def _fills_up(case: Case, one: Accelerated) -> bool | None:
    """True if the card was seen full, or nearly so; None if that is not known."""
    card, used = case.history.latest(Gpu, one.card.uuid), _of_card(case, one) or _memory_used(case, one)
    if card is None or not card.reading.memory_bytes or not used:
        return None
    return max(used) > FAR_FROM_FULL * card.reading.memory_bytes


# A search for kernels


def autotuning(case: Case) -> Outcome:
    """Fires on a rank that tries out kernels and makes no step; or that makes them, and tries anew in each."""
    for phase in phases(case):
        share = phase.profile.share("autotune")
        if share < TUNING_SHARE or (phase.runs < MOVES_SHARE and phase.motion.distinct <= 1):
            continue
        cards = regimes(case.history, phase.rank.pid)
        evidence = [
            case.saw(
                "stack",
                f"pid {phase.rank.pid}",
                "is in the autotuner",
                f"{share:.0%} of {phase.profile.samples} samples",
                "training code",
            )
        ]
        if cards:
            name = name_of(case.history, cards[0].uuid)
            evidence.append(case.saw(cards[0].source, name, "runs the candidates", cards[0].shown(), "busy meanwhile"))
        return phase.finding(AUTOTUNING, "kernels are tried out before their first use", CERTAIN, tuple(evidence))
    found = (one for one in accelerated(case) if one.card.kind == "wait" and one.card.waiting >= LOST_SHARE)
    return next((_searches_again(case, one) for one in found if _tries_convolutions(case, one)), None)


def _tries_convolutions(case: Case, one: Accelerated) -> bool:
    """True if cuDNN searches, step by step, for the way to run convolutions.

    Memory that no line frees then falls again and again, on a card that is far from full, and the forward pass is seen in
    convolutions. False if the agent says that it does not search.
    """
    if mode_on(case, one.rank, "cudnn_benchmark") is False:
        return False
    if one.profile.turns(_in_convolution) < FEW_TIMES or one.profile.share_where(partial(_empties, case)):
        return False
    return _fills_up(case, one) is False and _frees_often(_frees(_memory_used(case, one)), one)


def _in_convolution(stack: Stack) -> bool:
    """True if a stack stands at torch's native call for a convolution."""
    return bool(stack.frames) and "convolution" in tags_of(stack.frames[0].function, stack.frames[0].file)


def _searches_again(case: Case, one: Accelerated) -> Finding:
    frame, name = show(one.profile.top_line(_in_convolution)), name_of(case.history, one.card.uuid)
    forward, convolving = one.profile.share("forward", "convolution"), one.profile.share_where(_in_convolution)
    lost = min(one.card.waiting, convolving + one.profile.share("backward"))
    told = mode_on(case, one.rank, "cudnn_benchmark")
    sure = CERTAIN if told else HIGH if convolving >= CONVOLVES * forward else MEDIUM
    frees = f"{_frees(_memory_used(case, one))} times in {LATELY_SECONDS:.0f} s"
    return slow_on_gpu(
        case,
        AUTOTUNING,
        one,
        lost=lost,
        frame=frame,
        confidence=min(sure, certainty(lost)),
        summary=f"cuDNN tries out its kernels again and again, for inputs of ever new sizes: the forward pass stands in convolutions, "
        f"mostly at {frame}, {name} has no kernel to run {one.card.waiting:.0%} of the time, and its memory falls {frees} though "
        "no line empties the cache",
        evidence=(
            case.saw(
                "stack",
                f"pid {one.rank.pid}",
                "is in a convolution, of the samples in the forward pass",
                f"{convolving / forward:.0%} of {forward * one.profile.samples:.0f} samples",
                "a third or less",
            ),
            case.saw("nvml", name, "memory falls and rises, far from full", frees, "constant"),
            *([case.saw("agent", f"pid {one.rank.pid}", "cudnn.benchmark", "on", "off")] if told else []),
            monitored(case, one, "waits between trials", "a kernel resident all the time"),
        ),
        alternatives=(
            Alternative(cause="allocator_thrash", refuted_by="no line empties the cache, and the card is not full"),
            Alternative(
                cause="host_bound_python", refuted_by="nothing but convolutions takes time in the forward pass"
            ),
        ),
        next=("torch.backends.cudnn.benchmark = False, or inputs padded to a few sizes: it searches once for each",),
    )


RULES = (
    Rule(COPY_BOUND, copy_bound),
    Rule(SYNCHRONISING, synchronising),
    Rule(ALLOCATOR_THRASH, allocator_thrash),
    Rule(AUTOTUNING, autotuning),
)
