"""A GPU that runs dry between kernels: for copies, synchronisations, memory that is freed and allocated anew, or a search for kernels.

torch's allocator returns its cache to the driver when it is told to (``empty_cache``), when the card is full, and each time that cuDNN
has tried its ways to run a convolution, for that takes gigabytes (torch, ``aten/src/ATen/native/cudnn/Conv_v7.cpp``; seen on an H200
with 2.11).
"""

from functools import partial
from itertools import pairwise

from perfwatch.text import duration
from perfwatch.triage.busy import MOVES_SHARE, phases
from perfwatch.triage.cards.accelerated import Accelerated, accelerated, in_copy, slow_on_gpu, sync_share, units
from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.cards.hardware import ceiling_mib_per_second, traffic_mib_per_second
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.own_work import calls_at
from perfwatch.triage.shares.python import mode_on
from perfwatch.triage.shares.thresholds import (
    CERTAIN,
    ENOUGH_SAMPLES,
    FEW_TIMES,
    HIGH,
    LARGE,
    LATELY_SECONDS,
    LOW,
    MEDIUM,
    MOST,
    MOSTLY,
    NOTABLE,
    OFTEN,
)
from perfwatch.triage.slowness import LOST_SHARE, Line, Saw, certainty, samples
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.words.frames import show, tags, tags_of
from perfwatch.verdict import Abstention, Finding, Missing, Outcome
from perfwatch_probes.readings import Gpu, GpuProcess, GpuSample, SourceLine, Stack, Thread

COPY_BOUND = Cause("copy_bound", "slow", "user_code", (Stack, GpuSample))
SYNCHRONISING = Cause("synchronising", "slow", "user_code", (Stack, SourceLine, GpuSample))
ALLOCATOR_THRASH = Cause("allocator_thrash", "slow", "user_code", (GpuSample,))
AUTOTUNING = Cause("autotuning", "busy", "user_code", (Thread, Stack))

TRAFFIC_MIB_PER_SECOND = 1024.0  # a healthy training moves some hundred
NEAR_CEILING = 0.6  # of what the link can do
OF_BATCHES = "DataLoader(pin_memory=True) and .to(device, non_blocking=True); send uint8 and convert on the card"
OF_ACTIVATIONS = (
    "save_on_cpu(pin_memory=True), for larger tensors only; or compute activations again (torch.utils.checkpoint)"
)
COPIES = Line(
    COPY_BOUND,
    "{gib:.1f} GiB/s cross PCIe while the GPU has no kernel to run {card.waiting:.0%} of the time{where}{saving}",
    (
        units("has no kernel resident while bytes arrive", "copies beside the kernels"),
        Saw("{card.source}", "bytes cross the link", "{moved:.0f} MiB/s{of}", "some hundred MiB/s", "pcie"),
        samples("stands at a line that copies", "below 5 %", "copying"),
    ),
    (("degraded_link", "the link runs at its full generation and width"),),
    ("{advice}",),
)


def copy_bound(case: Case) -> Outcome:
    """Fires on a card that waits while bytes cross the link."""
    copies = partial(in_copy, case.history)
    for one in accelerated(case):
        seen, moved = one.profile, traffic_mib_per_second(case.history, one.card)
        if one.card.waiting < LOST_SHARE or seen.samples < ENOUGH_SAMPLES:
            continue
        copying = seen.share_where(copies)
        if moved is None and copying >= LOST_SHARE:
            unmeasured = Missing(witness="pcie", reason="how many bytes cross the link of this card is not measured")
            return Abstention(cause=COPY_BOUND.name, missing=(unmeasured,))
        ceiling = ceiling_mib_per_second(case.history, one.card.uuid)
        full = ceiling is not None and (moved or 0.0) >= NEAR_CEILING * ceiling
        if moved is None or moved < TRAFFIC_MIB_PER_SECOND or not (copying >= LOST_SHARE or full):
            continue
        frame, saving = show(seen.top_line(copies)), seen.share("saved_on_host") >= MOSTLY * copying > 0.0
        return slow_on_gpu(
            case,
            COPIES,
            one,
            min(one.card.waiting, max(copying, LOST_SHARE)),
            explains=one.card.waiting if copying >= LOST_SHARE else None,
            frame=frame,
            gib=moved / 1024,
            moved=moved,
            copying=copying,
            of="" if ceiling is None else f", {moved / ceiling:.0%} of what the link can do",
            where=f"; the training thread copies {copying:.0%} of the time, mostly at {frame}" if frame else "",
            saving=": save_on_cpu moves what backward needs to host memory" if saving else "",
            advice=OF_ACTIVATIONS if saving else OF_BATCHES,
        )
    return None


SYNCHRONISES = Line(
    SYNCHRONISING,
    "the training thread waits for the GPU at {at} again and again ({syncs:.0%} of its time), and between two waits the card runs "
    "dry: it has nothing to do {card.waiting:.0%} of the time",
    (
        samples("waits for the device at {at}", "below 5 %, or a card that is busy meanwhile", "syncs"),
        units("kernels come and go, with gaps", "a kernel resident all the time"),
    ),
    (("gpu_bound", "the card has nothing to do {card.waiting:.0%} of the time"),),
    ("keep the value at {at} on the device, and read it every hundredth step",),
)


def synchronising(case: Case) -> Outcome:
    """Fires on a thread that waits for a card which is not busy."""
    for one in accelerated(case):
        seen, card = one.profile, one.card
        syncs, others = sync_share(case, seen), seen.share("loader_wait", "fetch", "save", "collective")
        gaps = card.kind == "wait" or card.waits_for_launches
        if not gaps or card.waiting < LOST_SHARE or seen.samples < ENOUGH_SAMPLES or syncs < NOTABLE or others > OFTEN:
            continue  # a loop that reads its loss every tenth step waits less where the card is not the bottleneck
        lost, frame = min(card.waiting, 1.0 - others), show(seen.top_line(partial(in_sync, case.history)))
        sure = certainty(min(lost, 2 * syncs))
        return slow_on_gpu(case, SYNCHRONISES, one, lost, frame=frame, confidence=sure, syncs=syncs)
    return None


# Memory that is freed and allocated anew

FREED_BYTES = 20 * 2**20  # the least that torch asks the driver for at once (its large segments)
FREES_PER_SECOND, FEW_FREES = 0.25, 2  # memory is sampled once a second: faster swings show as often as they can
EMPTYING, EMPTYING_ALONE = 0.02, 0.06  # of the samples, beside memory that falls and rises, and without
THRASHES = Line(
    ALLOCATOR_THRASH,
    "memory of {name} is freed and allocated again{told}{where}",
    (
        Saw("nvml", "memory falls and rises", "{often}", "constant", "{name}", share="frees"),
        Saw("stack", "empties the cache", "{emptying:.0%} of the samples", "0 %", share="emptying"),
        units("waits meanwhile", "a kernel resident all the time"),
    ),
    (("synchronising", "the memory itself goes up and down"),),
    ("{advice}",),
)


def allocator_thrash(case: Case) -> Outcome:
    """Fires on memory that saw-tooths while the card waits."""
    for one in accelerated(case):
        emptying = one.profile.share_where(partial(_empties, case))
        # Kernels that fill so much of the card do not wait for their launch.
        large = (one.card.sm_active or 0.0) >= OFTEN * (one.card.graphics or 1.0)
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
    empties, used = partial(_empties, case), _memory_used(case, one)
    known = emptying >= EMPTYING or len(one.profile.runs(empties)) > 1  # it came back to the call
    frame = show(one.profile.top_line(empties)) if known else None
    often = f"{frees} {'time' if frees == 1 else 'times'} in {duration(min(LATELY_SECONDS, case.history.at))}"
    between = f"between {min(used, default=0) / 2**30:.1f} and {max(used, default=0) / 2**30:.1f} GiB"
    return slow_on_gpu(
        case,
        THRASHES,
        one,
        lost,
        frame=frame,
        confidence=CERTAIN if known else min(_sure_of_memory(case, one), certainty(lost)),
        often=often,
        frees=frees,
        emptying=emptying,
        told=f" {often}, {between}" if frees else "",
        where=f"; the training thread empties the cache at {frame}" if frame else "",
        advice=f"take empty_cache() out of the loop at {frame}"
        if frame
        else "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; a smaller batch, or inputs padded to a few sizes",
    )


def _sure_of_memory(case: Case, one: Accelerated) -> float:
    """How sure it is that memory falls for want of room. On a card that is not full the program may have set a limit, or cuDNN searches."""
    if _fills_up(case, one):
        return HIGH
    may_search = mode_on(case, one.rank, "cudnn_benchmark") is not False
    return LOW if may_search and one.profile.share_where(_in_convolution) > 0.0 else MEDIUM


def _empties(case: Case, stack: Stack) -> bool:
    """True if a stack is in ``empty_cache``, or at a line that calls it."""
    return "empty_cache" in tags(stack) or "empty_cache" in calls_at(case.history, stack)


def _memory_used(case: Case, one: Accelerated) -> list[int]:
    """What the rank's own process held, sample by sample; or the whole card, which is sampled more often, if the rank is alone there.

    Once a second hides most of what an allocator frees and asks for anew within a step. If the driver does not tell what a process
    holds, there is only the card.
    """
    keys = (key for key in case.history.entities(GpuProcess) if key[0] == one.card.uuid)
    looks = [one.reading for key in keys for one in case.history.series(GpuProcess, *key, seconds=LATELY_SECONDS)]
    own = [each.memory_bytes for each in looks if each.local_pid == one.rank.pid and each.memory_bytes is not None]
    alone = all(each.local_pid == one.rank.pid for each in looks)
    return max(own, _of_card(case, one), key=_frees) if alone else own or _of_card(case, one)


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
    """True if the card was seen full, or nearly so, as an allocator that frees for want of room has seen it; None if not known."""
    card, used = case.history.latest(Gpu, one.card.uuid), _of_card(case, one) or _memory_used(case, one)
    if card is None or not card.reading.memory_bytes or not used:
        return None
    return max(used) > MOST * card.reading.memory_bytes


# A search for kernels

TUNES = Line(
    AUTOTUNING,
    "kernels are benchmarked before their first use",
    (samples("is in the autotuner", "training code", "share"),),
)
SEARCHES = Line(
    AUTOTUNING,
    "cuDNN benchmarks its kernels again and again, because input sizes keep changing: the forward pass is in convolutions, "
    "mostly at {at}, {name} has no kernel to run {card.waiting:.0%} of the time, and its memory falls {frees} though "
    "no line empties the cache",
    (
        Saw(
            "stack",
            "is in a convolution, of the samples in the forward pass",
            "{convolving:.0%} of {forward:.0f} samples",
            "a third or less",
        ),
        Saw("nvml", "memory falls and rises, far from full", "{frees}", "constant", "{name}"),
        Saw("agent", "cudnn.benchmark", "on", "off", share="told"),
        units("waits between trials", "a kernel resident all the time"),
    ),
    (
        ("allocator_thrash", "no line empties the cache, and the card is not full"),
        ("host_bound_python", "nothing but convolutions takes time in the forward pass"),
    ),
    ("torch.backends.cudnn.benchmark = False, or inputs padded to a few sizes: it searches once for each",),
)


def autotuning(case: Case) -> Outcome:
    """Fires on a rank that tries out kernels and makes no step; or that makes them, and tries anew in each."""
    for phase in phases(case):
        share = phase.profile.share("autotune")
        if share < LARGE or (phase.runs < MOVES_SHARE and phase.motion.distinct <= 1):
            continue
        more = tuple(
            case.saw(
                card.source, name_of(case.history, card.uuid), "runs the candidates", card.shown(), "busy meanwhile"
            )
            for card in regimes(case.history, phase.rank.pid)[:1]
        )
        return phase.finding(case, TUNES, CERTAIN, share=share, more=more)
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
    forward, convolving = one.profile.share("forward", "convolution"), one.profile.share_where(_in_convolution)
    lost = min(one.card.waiting, convolving + one.profile.share("backward"))
    told = mode_on(case, one.rank, "cudnn_benchmark")
    # Elsewhere a third of the forward pass or less is in convolutions: a convolution itself returns at once.
    sure = CERTAIN if told else HIGH if convolving >= MOST * forward else MEDIUM
    return slow_on_gpu(
        case,
        SEARCHES,
        one,
        lost,
        frame=show(one.profile.top_line(_in_convolution)),
        confidence=min(sure, certainty(lost)),
        frees=f"{_frees(_memory_used(case, one))} times in {duration(LATELY_SECONDS)}",
        convolving=convolving / forward,
        forward=forward * one.profile.samples,
        told=told,
    )


RULES = (
    Rule(COPY_BOUND, copy_bound),
    Rule(SYNCHRONISING, synchronising),
    Rule(ALLOCATOR_THRASH, allocator_thrash),
    Rule(AUTOTUNING, autotuning),
)
