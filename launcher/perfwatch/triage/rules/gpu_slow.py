"""A GPU that is held back from outside (heat, neighbours, links), that computes the wrong way, or that is simply the bottleneck."""

from functools import partial

import msgspec

from perfwatch.text import short_time
from perfwatch.triage.cards.accelerated import Accelerated, accelerated, monitored, slow_on_gpu
from perfwatch.triage.cards.efficiency import efficiency, headline, in_words, mfu_in_words
from perfwatch.triage.cards.gpu import Regime, regime
from perfwatch.triage.cards.hardware import (
    REASONS,
    ceiling_mib_per_second,
    clock_at_work,
    dram_peak_bytes_per_second,
    held_down,
    lane_speed,
    traffic_mib_per_second,
)
from perfwatch.triage.cards.neighbours import Neighbour, is_free, mps_servers, neighbours
from perfwatch.triage.cards.thresholds import (
    ACTIVE,
    BUSY,
    CERTAIN,
    FEW_SAMPLES,
    HIGH,
    IN_USE,
    LATELY_SECONDS,
    LOW,
    MEDIUM,
)
from perfwatch.triage.cards.whose import cards_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import median, quantile
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.traced import WITNESS, trace_of
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import any_tag, show, tags, user_frame, user_frames
from perfwatch.verdict import Abstention, Alternative, Evidence, Finding, Missing, Outcome
from perfwatch_probes.readings import (
    Gpu,
    GpuActivity,
    GpuBinding,
    GpuProcess,
    GpuSample,
    Process,
    SourceLine,
    Stack,
    TorchTrace,
)

THROTTLED_GPU = Cause("throttled_gpu", "slow", "node", (Gpu, GpuSample))
SHARED_GPU = Cause("shared_gpu", "slow", "scheduler", (GpuProcess, Process))
DEGRADED_LINK = Cause("degraded_link", "slow", "node", (Gpu, GpuSample))
WRONG_PRECISION = Cause("wrong_precision", "slow", "user_code", (GpuActivity,))
SLOW_ATTENTION_FALLBACK = Cause("slow_attention_fallback", "slow", "user_code", (GpuActivity, Stack))
MEMORY_BOUND_GPU = Cause("memory_bound_gpu", "slow", "user_code", (GpuSample,))
UNDERFILLED_GPU = Cause("underfilled_gpu", "slow", "user_code", (GpuActivity,))
GPU_BOUND = Cause("gpu_bound", "healthy", "user_code", (GpuSample,))

OFTEN = 0.3  # of the samples: a card that does something so often does it in each step
HELD_BACK_FROM_OUTSIDE = 0.9  # of the time: what it explains, beside causes inside of the job

# throttled_gpu
LOST_CLOCK = 0.05  # a smaller loss is not noticed
USUAL = 0.9  # quantile of the clocks before: what this run had when nothing held it back

# shared_gpu
TAKES = 0.1  # of the card

# degraded_link
LINK_IN_USE, LINK_IN_USE_MIB_PER_SECOND = 0.1, 100.0  # of the time with a kernel resident, or on the link
REPLAYS_PER_SECOND = 1.0  # a few in an hour are normal
SLOWER = 0.9  # of the samples below the maximum: a link is trained anew when the card wakes up
USED = 0.3  # of what the degraded link can do: then the job waits for it
# MiB/s of one link in each direction: 25 GB/s, and 50 from Blackwell on (NVIDIA's data sheets: 18 links make 450 and 900 GB/s).
NVLINK_3_AND_4, NVLINK_5, BLACKWELL = 23_842.0, 47_684.0, (10, 0)

# Which unit is used. Measured on H200, shares of tensor cores, memory and fp32 pipe:
#   fp32 matrix product 0.00, 0.03, 0.77; decoder in fp32 0.04 (attention), 0.08, 0.64; decoder in bf16 0.23, 0.37
#   elementwise work 0.00, 0.67 to 0.88, 0.02
#   decoder with 4,096 tokens in bf16 0.55, 0.32 with fused attention, 0.045, 0.37, 0.40 with the plain one;
#   attention that is written out 0.16, 0.58 to 0.62
FEW_PRODUCTS, NO_PRODUCTS = 0.06, 0.03  # of the tensor cores
ARITHMETIC, MUCH_ARITHMETIC = 0.25, 0.4  # of the fp32 or fp64 pipe
MEMORY_IN_USE, MUCH_MEMORY, NEARLY_ALL_MEMORY = 0.3, 0.55, 0.7  # of the bandwidth
FULL_TENSOR = 0.3  # then the card does what it was bought for
MEMORY_OF_UTILISATION = (
    0.77  # bandwidth of NVML's memory utilisation, where units cannot be read (measured 0.70 to 0.89)
)
FUSION_SAVES = 0.5  # of the traffic
PRECISION_SAVES = 0.8  # of the time in those products: TF32 is eight times as fast on the cards that have it
FILLING_SAVES = 0.8  # of what is idle: a fuller card is never quite full

# slow_attention_fallback
EAGER_SHARE = 0.1  # of the samples in a library's plain attention
ATTENDS = 0.02  # of the samples: with a full queue the host is seldom seen at the call
WRITTEN_OUT = 0.4  # of the bandwidth: then attention may be what moves the bytes
PLAIN_TENSOR = 0.1
PLAIN_SOFTMAX = 0.6  # of DRAM and fp32 together: the scores are written, read and exponentiated
TRACED_SHARE = 0.05  # of the card's time, in the forward pass alone
WITH_BACKWARD, MOST_LOST = 2.5, 0.8  # the backward pass of attention takes about one and a half times its forward
SDPA = "scaled_dot_product_attention"

LAYERS = ("forward", "attention", "eager_attention", "convolution")
PRODUCTS = frozenset(
    "matmul mm bmm addmm baddbmm einsum linear bilinear conv1d conv2d conv3d scaled_dot_product_attention".split()
)


# Held back from outside


def throttled_gpu(case: Case) -> Outcome:
    """Fires on a card in use that reports why its clock is down."""
    for one in accelerated(case):
        looks = [seen.reading for seen in case.history.series(GpuSample, one.card.uuid, seconds=LATELY_SECONDS)]
        known = [look for look in looks if look.reasons is not None and (look.utilisation or 0.0) >= IN_USE]
        held = [look for look in known if held_down(look)]
        clock = median(float(look.sm_clock_mhz) for look in held if look.sm_clock_mhz is not None)
        usual, source = _usual_clock(case, one.card.uuid)
        if clock is None or usual is None or len(held) < OFTEN * len(known) or clock > (1.0 - LOST_CLOCK) * usual:
            continue
        name, down = name_of(case.history, one.card.uuid), 1.0 - clock / usual
        bits = {text for bit, text in REASONS.items() if any((look.reasons or 0) & bit for look in held)}
        why, heat = " and ".join(sorted(bits)), looks[-1].temperature_celsius
        lost = down * (one.card.graphics or 0.0)
        return slow_on_gpu(
            case,
            THROTTLED_GPU,
            one,
            lost=lost,
            explains=max(lost, HELD_BACK_FROM_OUTSIDE if down >= 2 * LOST_CLOCK else lost),
            confidence=CERTAIN,
            summary=f"{name} runs at {clock:.0f} MHz instead of {usual:.0f} ({source}) because of {why}"
            + (f", at {heat} °C" if heat is not None else ""),
            evidence=(
                case.saw(
                    "nvml",
                    name,
                    "reports why its clock is down",
                    f"{why} in {len(held) / len(known):.0%} of the samples",
                    "none",
                ),
                case.saw("nvml", name, "SM clock", f"{clock:.0f} MHz", f"{usual:.0f} MHz ({source})"),
            ),
            alternatives=(
                Alternative(
                    cause="gpu_bound", refuted_by="the software power cap alone would be normal; this is not it"
                ),
            ),
            next=(
                "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; look at airflow and power supplies, drain the node",
            ),
        )
    return None


def _usual_clock(case: Case, uuid: str) -> tuple[float | None, str]:
    """What the clock should be: this card's own before, that of the job's other cards, or the card's maximum."""
    before = [
        clock
        for seen in case.history.series(GpuSample, uuid)
        if seen.at < case.at - LATELY_SECONDS
        and not held_down(seen.reading)
        and (clock := clock_at_work(seen.reading)) is not None
    ]
    if before:
        return quantile(before, USUAL), "earlier in this run"
    others = [
        clock
        for other in {one for rank in case.ranks for one in cards_of(case.history, rank.pid).uuids} - {uuid}
        if (seen := case.history.latest(GpuSample, other)) is not None
        and (clock := clock_at_work(seen.reading)) is not None
    ]
    if others:
        return median(others), "the job's other cards"
    card = case.history.latest(Gpu, uuid)
    most = card.reading.sm_clock_max_mhz if card is not None else None
    return (None if most is None else float(most)), "its maximum"


def shared_gpu(case: Case) -> Outcome:
    """Fires on a process of another job that uses the card, or on ranks that share one while another is idle."""
    if (crowded := _crowded(case)) is not None:
        return crowded
    served: Abstention | None = None
    for one in accelerated(case):
        found = neighbours(case.history, one.card.uuid)
        busy = [other for other in found if other.share is not None and other.share >= TAKES]
        unmeasured = [other for other in found if other.share is None]
        if not busy and not unmeasured:
            served = served or _served(case, one)
            continue
        name = name_of(case.history, one.card.uuid)
        taken = min(1.0, sum(other.share or 0.0 for other in busy))
        who = ", ".join(_shown(other) for other in (busy or unmeasured)[:3])
        return slow_on_gpu(
            case,
            SHARED_GPU,
            one,
            lost=taken,
            explains=max(taken, HELD_BACK_FROM_OUTSIDE if busy else 0.0),
            confidence=CERTAIN if busy else LOW,  # how much it uses is not measured: noted, not blamed
            summary=f"{name} is shared: {who}" + (f" takes {taken:.0%} of it" if busy else " is on it too"),
            evidence=(
                case.saw("nvml", name, "a process outside the job computes there", who, "the job's own only"),
                monitored(case, one, "is busy for both", "busy for the job alone"),
            ),
            alternatives=(
                Alternative(cause="gpu_bound", refuted_by=f"{taken:.0%} of the card's work is not this job's"),
            ),
            next=("nvidia-smi names the process; give the job a card of its own",),
        )
    return served


def _crowded(case: Case) -> Finding | None:
    """Ranks of this job on one busy card, while a card that each of them may use is idle and no process is on it."""
    ranks: dict[str, list[Accelerated]] = {}
    for one in accelerated(case):
        if one.certain and one.card.kind == "work" and len(cards_of(case.history, one.rank.pid).uuids) == 1:
            ranks.setdefault(one.card.uuid, []).append(one)
    for uuid, sharing in ranks.items():
        visible = [_visible(case, one.rank.pid) for one in sharing]
        idle = [other for other in sorted(set.intersection(*visible) - {uuid}) if is_free(case.history, other)]
        idle = [other for other in idle if regime(case.history, other, LATELY_SECONDS).kind == "idle"]
        if len(sharing) < 2 or not idle or mps_servers(case.history, uuid):
            continue
        one, name, free = sharing[0], name_of(case.history, uuid), name_of(case.history, idle[0])
        who = " and ".join(str(each.rank.rank if each.rank.rank is not None else each.rank.pid) for each in sharing)
        left = -(-len(sharing) // (1 + len(idle))) / len(sharing)
        found = slow_on_gpu(
            case,
            SHARED_GPU,
            one,
            lost=(1.0 - left) * (one.card.graphics or 0.0),
            explains=HELD_BACK_FROM_OUTSIDE,
            confidence=CERTAIN,
            summary=f"ranks {who} share {name} while {free} is idle",
            evidence=(
                case.saw("nvml", name, "several ranks compute on it", f"ranks {who}", "one rank on each card"),
                monitored(case, one, "is busy for all of them", "busy for one rank"),
                case.saw("nvml", free, "is idle, and the ranks may use it", "no process on it", "a rank of its own"),
            ),
            alternatives=(Alternative(cause="gpu_bound", refuted_by=f"{free} has nothing to do"),),
            next=('torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else touches the GPU',),
        )
        culprits = tuple(
            msgspec.structs.replace(found.culprits[0], pid=each.rank.pid, rank=each.rank.rank) for each in sharing
        )
        return msgspec.structs.replace(found, owner="user_code", culprits=culprits)
    return None


def _visible(case: Case, pid: int) -> set[str]:
    seen = case.history.latest(GpuBinding, pid)
    return set() if seen is None else set(seen.reading.visible)


def _served(case: Case, one: Accelerated) -> Abstention | None:
    servers = mps_servers(case.history, one.card.uuid)
    if not servers:
        return None
    reason = (
        f"the job uses {name_of(case.history, one.card.uuid)} through MPS: what its server, pid {servers[0]}, takes is the "
        "work of its clients, and of those only the job's own are listed"
    )
    return Abstention(cause=SHARED_GPU.name, missing=(Missing(witness="nvml", reason=reason),))


def _shown(other: Neighbour) -> str:
    used = "" if other.share is None else f" ({other.share:.0%} of the card)"
    held = "" if other.memory_bytes is None else f", {other.memory_bytes / 2**30:.1f} GiB"
    return f"pid {other.pid}{used}{held}"


def degraded_link(case: Case) -> Outcome:
    """Fires on a card in use whose link is below its maximum."""
    for one in accelerated(case):
        moved = traffic_mib_per_second(case.history, one.card)
        if (one.card.graphics or 0.0) < LINK_IN_USE and (moved or 0.0) < LINK_IN_USE_MIB_PER_SECOND:
            continue
        evidence, kept = _pcie(case, one.card.uuid)
        ceiling = ceiling_mib_per_second(case.history, one.card.uuid)
        used = moved / ceiling if ceiling and moved is not None else None
        matters = used is not None and used >= USED and one.card.waiting > 0.0
        down, left, sent = _nvlink(case, one.card)
        if down and sent >= USED:
            matters, kept, used = True, left, sent
        evidence += down
        if not evidence:
            continue
        name = name_of(case.history, one.card.uuid)
        what = "; ".join(f"{piece.claim}: {piece.observed}" for piece in evidence)
        share = "not measured by this card" if used is None else f"{used:.0%} of what it can do now"
        return slow_on_gpu(
            case,
            DEGRADED_LINK,
            one,
            lost=(1.0 - kept) * min(1.0, max(used or 0.0, one.card.waiting)) if matters else 0.0,
            explains=1.0 if matters else 0.0,
            confidence=CERTAIN if matters else LOW,
            summary=f"a link of {name} is below what it can do: {what}",
            evidence=(*evidence, case.saw("nvml", name, "uses the link", share)),
            alternatives=(Alternative(cause="copy_bound", refuted_by="the link itself is below its maximum"),),
            next=("nvidia-smi -q -d PCIE; lspci -vv shows LnkSta against LnkCap: reseat the card, or drain the node",),
        )
    return None


def _pcie(case: Case, uuid: str) -> tuple[list[Evidence], float]:
    """What is wrong with PCIe, and the share of its speed that is left."""
    found: list[Evidence] = []
    seen = case.history.latest(Gpu, uuid)
    looks = [one.reading for one in case.history.series(GpuSample, uuid, seconds=LATELY_SECONDS)]
    best = lane_speed(seen.reading.pcie_generation_max, seen.reading.pcie_width_max) if seen is not None else None
    speeds = [speed for look in looks if (speed := lane_speed(look.pcie_generation, look.pcie_width)) is not None]
    kept = max(speeds) / best if best and speeds else 1.0
    name = name_of(case.history, uuid)
    if seen is not None and best is not None and speeds and sum(s < best for s in speeds) >= SLOWER * len(speeds):
        last = next(look for look in reversed(looks) if look.pcie_width is not None)
        now = f"generation {last.pcie_generation} x{last.pcie_width}"
        most = f"generation {seen.reading.pcie_generation_max} x{seen.reading.pcie_width_max}"
        found.append(case.saw("nvml", name, "PCIe runs below its maximum", now, most))
    replays = case.history.rate(GpuSample, uuid, of=lambda s: s.pcie_replays, seconds=LATELY_SECONDS)
    if replays is not None and replays >= REPLAYS_PER_SECOND:
        found.append(case.saw("nvml", name, "PCIe repeats packets", f"{replays:.1f} replays/s", "none"))
    return found, kept


def _nvlink(case: Case, card: Regime) -> tuple[list[Evidence], float, float]:
    """Links that are down, the share of them that is left, and how much of what these can do is used."""
    seen, last = case.history.latest(Gpu, card.uuid), case.history.latest(GpuSample, card.uuid)
    links = seen.reading.nvlinks if seen is not None else None
    active = last.reading.nvlinks_active if last is not None else None
    if seen is None or not links or active is None or not 0 < active < links:
        return [], 1.0, 0.0  # none at all is how a card without a bridge looks
    each = NVLINK_5 if (seen.reading.compute_capability or (0, 0)) >= BLACKWELL else NVLINK_3_AND_4
    used = (card.nvlink_mib_per_second or 0.0) / (active * each)
    name = name_of(case.history, card.uuid)
    return [case.saw("nvml", name, "NVLinks are down", f"{active} of {links} active", "all")], active / links, used


# Computes the wrong way


def wrong_precision(case: Case) -> Outcome:
    """Fires on a busy card whose matrix products do not use its tensor cores."""
    for one in accelerated(case):
        card = one.card
        pipe, used = max((("fp32", card.fp32 or 0.0), ("fp64", card.fp64 or 0.0)), key=lambda kind: kind[1])
        if card.tensor is None or used < ARITHMETIC or (card.dram or 0.0) >= MUCH_MEMORY:
            continue
        plainly = used >= MUCH_ARITHMETIC and (card.dram or 0.0) < MEMORY_IN_USE
        if card.tensor > (FEW_PRODUCTS if plainly else NO_PRODUCTS):
            continue
        if card.spinning >= OFTEN:
            continue  # no data moves: a kernel iterates in its registers, and no matrix product is like that
        name = name_of(case.history, card.uuid)
        advice = (
            'torch.set_float32_matmul_precision("high"), or torch.autocast("cuda", dtype=torch.bfloat16)'
            if pipe == "fp32"
            else "a NumPy array or a default of float64 came in: convert to float32, then use autocast"
        )
        return slow_on_gpu(
            case,
            WRONG_PRECISION,
            one,
            lost=PRECISION_SAVES * used,
            confidence=_sure_of_products(case, one),
            summary=f"{name} computes in {pipe}: that pipe is used {used:.0%}, the tensor cores {card.tensor:.0%}",
            evidence=(
                monitored(case, one, "busy, and the tensor cores are not", "tensor cores used in matrix products"),
                case.saw(card.source, name, f"the {pipe} pipe is used", f"{used:.0%}", "below 5 %, tensor above 10 %"),
            ),
            alternatives=(
                Alternative(cause="memory_bound_gpu", refuted_by=f"memory is used only {card.dram or 0:.0%}"),
            ),
            next=(advice,),
        )
    return None


def _sure_of_products(case: Case, one: Accelerated) -> float:
    """How sure it is that the arithmetic is products of matrices: by a trace, by the stacks, or because something trains."""
    trace, whole = trace_of(case, one.rank.pid), case.profile(one.rank)
    if (trace is not None and trace.full_precision_gemm_share) or whole.share_where(partial(_multiplies, case)) > 0.0:
        return CERTAIN
    steps = case.steps(one.rank)
    trains = (steps is not None and steps.count > 0) or whole.seen("backward", "optimizer", "graph_replay")
    return MEDIUM if trains else LOW


def _multiplies(case: Case, stack: Stack) -> bool:
    """True if a stack is in a layer of a model, or at a line that multiplies matrices."""
    if any_tag(tags(stack), *LAYERS):
        return True
    lines = (line_of(case.history, frame) for frame in user_frames(stack))
    return any(line is not None and (names(line.calls) & PRODUCTS or " @ " in line.text) for line in lines)


def slow_attention_fallback(case: Case) -> Outcome:
    """Fires on plain attention that the frames show; suspects it, or abstains, where only a trace could tell."""
    for one in accelerated(case):
        seen, card = one.profile, one.card
        trace = trace_of(case, one.rank.pid)
        if trace is not None and (trace.math_attention_share or 0.0) >= TRACED_SHARE:
            return _attention_in_a_trace(case, one, trace)
        if card.dram is None or (card.tensor or 0.0) > FULL_TENSOR or seen.samples < FEW_SAMPLES:
            continue
        share = seen.share("eager_attention")
        if share >= EAGER_SHARE and card.dram >= WRITTEN_OUT:
            return _attention_in_frames(case, one, share)
        calls = seen.share_where(partial(_attends, case))
        fused = trace is not None and trace.families.get("attention", 0.0) > 0
        if calls < ATTENDS or fused:
            continue
        if _exponentiates(card):
            return _attention_from_outside(case, one, calls)
        if card.dram < WRITTEN_OUT:
            return None
        reason = "which attention kernel torch chose shows in no counter and no stack"
        advice = "perfwatch capture torch names it (plain: softmax and bmm kernels)"
        lacking = Missing(witness="kernel_trace", reason=reason, advice=advice)
        return Abstention(cause=SLOW_ATTENTION_FALLBACK.name, missing=(lacking,))
    return None


def _attends(case: Case, stack: Stack) -> bool:
    """True if a stack is at attention: in a library's module for it, or at a line of the program that calls torch's."""
    if any_tag(tags(stack), "attention"):
        return True
    frame = user_frame(stack)
    seen = case.history.latest(SourceLine, frame.file, frame.line) if frame is not None else None
    return seen is not None and any(call.endswith(SDPA) for call in seen.reading.calls)


def _exponentiates(card: Regime) -> bool:
    """True if a full card hardly uses its tensor cores, but memory and fp32 pipe, for what fused kernels keep on the chip."""
    dram, tensor = card.dram or 0.0, card.tensor or 0.0
    softmax = dram >= MEMORY_IN_USE and dram + (card.fp32 or 0.0) >= PLAIN_SOFTMAX
    return softmax and NO_PRODUCTS < tensor < PLAIN_TENSOR and (card.graphics or 0.0) >= BUSY


def _attention_in_frames(case: Case, one: Accelerated, share: float) -> Finding:
    frame = show(one.profile.top_line(lambda stack: "eager_attention" in tags(stack)))
    dram = one.card.dram or 0.0
    samples = f"{share:.0%} of {one.profile.samples} samples"
    saw = case.saw("stack", f"pid {one.rank.pid}", "is in plain attention", samples, "0 %")
    return slow_on_gpu(
        case,
        SLOW_ATTENTION_FALLBACK,
        one,
        lost=FUSION_SAVES * dram,
        explains=0.6 * dram,  # of what memory_bound_gpu sees, this is the reason
        confidence=HIGH,
        frame=frame,
        summary=f"attention is computed the plain way at {frame}: every pair of positions is written to memory",
        evidence=(saw, monitored(case, one, "memory busy, tensor cores not", "the other way round")),
        alternatives=(Alternative(cause="memory_bound_gpu", refuted_by="the frames name plain attention"),),
        next=('attn_implementation="sdpa" or "flash_attention_2" when the model is loaded',),
    )


def _attention_in_a_trace(case: Case, one: Accelerated, trace: TorchTrace) -> Finding:
    share = trace.math_attention_share or 0.0
    observed = (
        f"{trace.math_attention_calls} times in {short_time(trace.window_seconds)}, {share:.0%} of the card's time"
    )
    return slow_on_gpu(
        case,
        SLOW_ATTENTION_FALLBACK,
        one,
        lost=min(MOST_LOST, WITH_BACKWARD * share),
        confidence=CERTAIN,
        frame=show(one.profile.top_line(partial(_attends, case))),  # with a full queue it may never be seen there
        summary=f"attention falls back to its plain form (SDPA's math kernel): its forward pass alone takes {share:.0%} of the "
        "card's time in a trace",
        evidence=(
            case.saw(
                WITNESS,
                f"pid {one.rank.pid}",
                "scaled_dot_product_attention runs its plain implementation",
                observed,
                "one fused kernel a layer",
            ),
        ),
        alternatives=(Alternative(cause="memory_bound_gpu", refuted_by="the trace names plain attention"),),
        next=(
            "under torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION) torch says why the fused kernel is refused",
        ),
    )


def _attention_from_outside(case: Case, one: Accelerated, calls: float) -> Finding:
    frame, card = show(one.profile.top_line(partial(_attends, case))), one.card
    return slow_on_gpu(
        case,
        SLOW_ATTENTION_FALLBACK,
        one,
        lost=FUSION_SAVES * ((card.dram or 0.0) + (card.fp32 or 0.0)),
        confidence=MEDIUM,
        frame=frame,
        summary=f"attention at {frame} seems to fall back to its plain form: the card is full, and its tensor cores are used "
        f"only {card.tensor or 0:.0%}, beside {card.dram or 0:.0%} of its memory and {card.fp32 or 0:.0%} of its fp32 pipe",
        evidence=(
            case.saw("stack", f"pid {one.rank.pid}", f"calls attention at {frame}", f"{calls:.0%} of the samples"),
            monitored(case, one, "full, and the tensor cores are not", "tensor 30 % and more with fused kernels"),
            case.saw(card.source, name_of(case.history, card.uuid), "fp32 pipe", f"{card.fp32 or 0:.0%}", "below 10 %"),
        ),
        alternatives=(
            Alternative(cause="wrong_precision", refuted_by="the tensor cores do some of the products"),
            Alternative(cause="memory_bound_gpu", refuted_by=f"memory is used only {card.dram or 0:.0%}"),
        ),
        next=("perfwatch capture torch: softmax and bmm kernels instead of one fused kernel",),
    )


def memory_bound_gpu(case: Case) -> Outcome:
    """Fires on a busy card whose memory is the bottleneck."""
    for one in accelerated(case):
        card = one.card
        used = card.dram if card.dram is not None else MEMORY_OF_UTILISATION * (card.memory_utilisation or 0.0)
        if used < MUCH_MEMORY or (card.tensor or 0.0) >= FULL_TENSOR or (card.graphics or 0.0) < BUSY:
            continue
        name = name_of(case.history, card.uuid)
        described = case.history.latest(Gpu, card.uuid)
        peak = dram_peak_bytes_per_second(described.reading) if described is not None else None
        rate = "" if peak is None else f", {used * peak / 1e9:,.0f} GB/s"
        return slow_on_gpu(
            case,
            MEMORY_BOUND_GPU,
            one,
            lost=FUSION_SAVES * used,
            confidence=CERTAIN if used >= NEARLY_ALL_MEMORY else HIGH,
            summary=f"{name} waits for its own memory: {used:.0%} of the bandwidth is used{rate}"
            + ("" if card.tensor is None else f", the tensor cores {card.tensor:.0%}"),
            evidence=(monitored(case, one, "memory is near its ceiling", "tensor cores busier than memory"),),
            alternatives=(
                Alternative(cause="gpu_bound", refuted_by=f"the tensor cores are used only {card.tensor or 0:.0%}"),
                Alternative(
                    cause="slow_attention_fallback", refuted_by="only a trace can tell which kernels these are"
                ),
            ),
            next=("fuse: torch.compile(model), fused=True in the optimizer, flash attention; bf16 halves every byte",),
        )
    return None


def underfilled_gpu(case: Case) -> Outcome:
    """Fires on a card of a job with one rank that is always busy and mostly empty: kernels of a collective fill little as well."""
    if len(case.job.ranks) > 1 or (case.job.world_size or 1) > 1:
        return None
    for one in accelerated(case):
        card = one.card
        if card.sm_active is None or card.sm_active >= ACTIVE or (card.graphics or 0.0) < BUSY:
            continue
        name = name_of(case.history, card.uuid)
        return slow_on_gpu(
            case,
            UNDERFILLED_GPU,
            one,
            lost=FILLING_SAVES * (1.0 - card.sm_active),
            confidence=CERTAIN,
            summary=f"{name} is busy {card.graphics or 0:.0%} of the time with kernels that fill {card.sm_active:.0%} of it",
            evidence=(
                monitored(case, one, "busy, and mostly empty", "SM above 60 %"),
                case.saw(card.source, name, "warps in flight", f"{card.occupancy or 0:.0%} of what it can hold"),
            ),
            alternatives=(
                Alternative(cause="stuck_kernel", refuted_by=f"steps go on ({case.progress[one.rank.pid].basis})"),
                Alternative(
                    cause="host_bound_python", refuted_by=f"the card waits only {card.waiting:.0%} of the time"
                ),
            ),
            next=("raise the batch size until SM activity is above 60 %, or run several models side by side",),
        )
    return None


# Nothing holds it back


def gpu_bound(case: Case) -> Outcome:
    """Fires when every rank keeps its card busy."""
    found = accelerated(case)
    if not found or len(found) < len(case.ranks) or not all(_is_full(one.card) for one in found):
        return None
    figures = efficiency(case)
    evidence: list[Evidence] = [
        monitored(case, one, "busy nearly all the time, and full", "the bottleneck of a healthy run")
        for one in found[:4]
    ]
    evidence += [case.saw("hardware", name_of(case.history, card.uuid), *in_words(card)) for card in figures.cards[:4]]
    for one in found:
        for other in neighbours(case.history, one.card.uuid)[:2]:
            shares = f"{(other.memory_bytes or 0) / 2**30:.1f} GiB, {other.share or 0:.0%} of the time"
            evidence.append(case.saw("nvml", f"pid {other.pid}", "another process is on the card", shares, "none"))
    if figures.model is not None:
        evidence.append(
            case.saw(
                "model", "job", "does its own arithmetic", mfu_in_words(figures.model), "35 to 55 % in well tuned runs"
            )
        )
    least = min(found, key=lambda one: one.card.graphics or 0.0)
    reached = "; ".join(filter(None, (headline(figures, case), mfu_in_words(figures.model) if figures.model else "")))
    return Finding(
        cause=GPU_BOUND.name,
        state="healthy",
        summary=f"the GPU is busy {least.card.graphics or 0:.0%} of the time, and training goes on"
        + (f": {reached}" if reached else ""),
        confidence=min(_sure_of_health(case, found), *(one.ceiling for one in found)),
        owner=GPU_BOUND.owner,
        evidence=tuple(evidence),
        next=(
            "to go further: a table of the kernels of one step (ncu), fused ones (torch.compile), a lower precision",
        ),
        alternatives=(
            Alternative(
                cause="underfilled_gpu", refuted_by=f"{least.card.sm_active:.0%} of the multiprocessors are active"
            ),
        )
        if least.card.sm_active is not None
        else (),
    )


def _is_full(card: Regime) -> bool:
    """True if a card is busy and full; one that often spins for others is not what the job waits for."""
    full = card.sm_active is None or card.sm_active >= ACTIVE
    return (card.graphics or 0.0) >= BUSY and full and (card.spinning <= OFTEN or card.computes)


def _sure_of_health(case: Case, found: list[Accelerated]) -> float:
    if not all(_surroundings_known(case, one.card.uuid) for one in found):
        return MEDIUM
    if any(neighbours(case.history, one.card.uuid) for one in found):
        return HIGH
    used = all((one.card.tensor or 0.0) >= PLAIN_TENSOR or (one.card.dram or 0.0) >= MUCH_MEMORY for one in found)
    return CERTAIN if used else MEDIUM


def _surroundings_known(case: Case, uuid: str) -> bool:
    """True if it could be seen that nothing holds the card itself back: its link and clocks, and other processes on it."""
    described = case.history.latest(Gpu, uuid) is not None
    samples = case.history.series(GpuSample, uuid, seconds=LATELY_SECONDS)
    clocked = any(one.reading.reasons is not None and one.reading.sm_clock_mhz is not None for one in samples)
    return described and clocked and bool(case.history.of(GpuProcess, uuid))


RULES = (
    Rule(THROTTLED_GPU, throttled_gpu),
    Rule(SHARED_GPU, shared_gpu),
    Rule(DEGRADED_LINK, degraded_link),
    Rule(WRONG_PRECISION, wrong_precision),
    Rule(SLOW_ATTENTION_FALLBACK, slow_attention_fallback),
    Rule(MEMORY_BOUND_GPU, memory_bound_gpu),
    Rule(UNDERFILLED_GPU, underfilled_gpu),
    Rule(GPU_BOUND, gpu_bound),
)
