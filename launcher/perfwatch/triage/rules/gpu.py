"""A GPU that is held back from outside (heat, neighbours, links), that computes the wrong way, or that is simply the bottleneck."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import msgspec

from perfwatch.text import duration
from perfwatch.triage.cards.accelerated import Accelerated, accelerated, monitored, slow_on_gpu
from perfwatch.triage.cards.gpu import ACTIVE, BUSY, IN_USE, Regime, regime, regimes
from perfwatch.triage.cards.hardware import (
    COPIES_MIB_PER_SECOND,
    REASONS,
    ceiling_mib_per_second,
    clock_at_work,
    dram_peak_bytes_per_second,
    efficiency,
    headline,
    held_down,
    in_words,
    lane_speed,
    mfu_in_words,
    traffic_mib_per_second,
)
from perfwatch.triage.cards.whose import Neighbour, cards_of, is_free, mps_servers, name_of, neighbours, share_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import median, quantile
from perfwatch.triage.moving.thresholds import SIGN_OF_LIFE
from perfwatch.triage.rule import Cause, Facts, Rule
from perfwatch.triage.shares.budget import Bin, is_in, mode_on
from perfwatch.triage.shares.own_work import calls_at, lines_around
from perfwatch.triage.shares.thresholds import (
    ENOUGH_SAMPLES,
    FEW_TIMES,
    LARGE,
    LATELY_SECONDS,
    LOST_SHARE,
    MOST,
    MOSTLY,
    NEARLY_ALL,
    NOTABLE,
    OFTEN,
)
from perfwatch.triage.shares.traced import trace_of
from perfwatch.triage.slowness import certainty, phases
from perfwatch.triage.words.code import names
from perfwatch.triage.words.frames import any_tag, show, tags, tags_of
from perfwatch.verdict import Abstention, Evidence, Finding, Level, Missing, Outcome
from perfwatch_probes import readings as r

THROTTLED_GPU = Cause("throttled_gpu", "slow", "node", (r.Gpu, r.GpuSample))
SHARED_GPU = Cause("shared_gpu", "slow", "scheduler", (r.GpuProcess, r.Process))
DEGRADED_LINK = Cause("degraded_link", "slow", "node", (r.Gpu, r.GpuSample))
WRONG_PRECISION = Cause("wrong_precision", "slow", "user_code", (r.GpuActivity,))
SLOW_ATTENTION_FALLBACK = Cause("slow_attention_fallback", "slow", "user_code", (r.GpuActivity, r.Stack))
MEMORY_BOUND_GPU = Cause("memory_bound_gpu", "slow", "user_code", (r.GpuSample,))
UNDERFILLED_GPU = Cause("underfilled_gpu", "slow", "user_code", (r.GpuActivity,))
GPU_BOUND = Cause("gpu_bound", "healthy", "user_code", (r.GpuSample,))

HELD_BACK_FROM_OUTSIDE = NEARLY_ALL  # of the time: what it explains, beside causes inside of the job
SAVED = 0.8  # of the time in full-precision products, of what is idle on an empty card, of the whole card by any such change
FUSION_SAVES = 0.5  # of the traffic

# Which unit is used. Measured on H200, shares of tensor cores, memory and fp32 pipe:
#   fp32 matrix product 0.00, 0.03, 0.77; decoder in fp32 0.04 (attention), 0.08, 0.64; decoder in bf16 0.23, 0.37
#   elementwise work 0.00, 0.67 to 0.88, 0.02
#   decoder with 4,096 tokens in bf16 0.55, 0.32 with fused attention, 0.045, 0.37, 0.40 with the plain one;
#   attention that is written out 0.16, 0.58 to 0.62
FEW_PRODUCTS, NO_PRODUCTS, FULL_TENSOR = 0.06, 0.03, 0.3  # of the tensor cores; full: it does what it was bought for
ARITHMETIC, MUCH_ARITHMETIC = 0.25, 0.4  # of the fp32 or fp64 pipe
MEMORY_IN_USE, WRITTEN_OUT, MUCH_MEMORY, NEARLY_ALL_MEMORY = 0.3, 0.4, 0.55, 0.7  # of the bandwidth
# bandwidth of NVML's memory utilisation, where units cannot be read (measured 0.70 to 0.89)
MEMORY_OF_UTILISATION = 0.77


# Held back from outside

LOST_CLOCK = 0.05  # a smaller loss is not noticed
THROTTLED = THROTTLED_GPU.line("""
    {name} runs at {clock:.0f} MHz instead of {usual:.0f} ({source}) because of {why}[, at {heat} °C]
    - saw nvml of {name}: reports why its clock is down | {why} in {often:.0%} of the samples | none
    - saw nvml of {name}: SM clock | {clock:.0f} MHz | {usual:.0f} MHz ({source})
    - not gpu_bound: the software power cap alone would be normal; the reason here is another
    - next: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; look at airflow and power supplies, drain the node
""")


def throttled_gpu(case: Case) -> Outcome:
    """Fires on a card in use that reports why its clock is down."""
    for one in accelerated(case):
        looks = [seen.reading for seen in case.history.series(r.GpuSample, one.card.uuid, seconds=LATELY_SECONDS)]
        known = [look for look in looks if look.reasons is not None and (look.utilisation or 0.0) >= IN_USE]
        held = [look for look in known if held_down(look)]
        clock = median(float(look.sm_clock_mhz) for look in held if look.sm_clock_mhz is not None)
        usual, source = _usual_clock(case, one.card.uuid)
        if clock is None or usual is None or len(held) < OFTEN * len(known) or clock > (1.0 - LOST_CLOCK) * usual:
            continue
        down, heat = 1.0 - clock / usual, looks[-1].temperature_celsius
        lost, bits = down * (one.card.graphics or 0.0), [look.reasons or 0 for look in held]
        why = " and ".join(sorted(text for bit, text in REASONS.items() if any(each & bit for each in bits)))
        facts = Facts(clock=clock, usual=usual, source=source, why=why, often=len(held) / len(known))
        facts |= Facts(heat=heat, confidence=Level.CERTAIN)
        explains = HELD_BACK_FROM_OUTSIDE if down >= 2 * LOST_CLOCK else lost
        return slow_on_gpu(case, THROTTLED, one, lost, explains=explains, **facts)
    return None


def _usual_clock(case: Case, uuid: str) -> tuple[float | None, str]:
    """What the clock should be: this card's own before, that of the job's other cards, or the card's maximum."""
    looks = [one for one in case.history.series(r.GpuSample, uuid) if one.at < case.at - LATELY_SECONDS]
    before = [
        clock for one in looks if not held_down(one.reading) and (clock := clock_at_work(one.reading)) is not None
    ]
    if before:
        return quantile(before, NEARLY_ALL), "earlier in this run"
    cards = {other for rank in case.ranks for other in cards_of(case.history, rank.pid).uuids} - {uuid}
    now = [seen.reading for other in cards if (seen := case.history.latest(r.GpuSample, other)) is not None]
    if others := [clock for one in now if (clock := clock_at_work(one)) is not None]:
        return median(others), "the job's other cards"
    card = case.history.latest(r.Gpu, uuid)
    most = card.reading.sm_clock_max_mhz if card is not None else None
    return (None if most is None else float(most)), "its maximum"


SHARED = SHARED_GPU.line("""
    {name} is shared with another process: {who}[; together they take {together:.0%} of it]
    - saw nvml of {name}: a process outside the job computes there | {who} | the job's own only
    - saw {card.source} of {name}: is busy for both | {shown} | busy for the job alone
    - not gpu_bound: {lost:.0%} of the card's work is not this job's
    - next: nvidia-smi names the process; give the job a card of its own
""")
CROWDED = replace(SHARED_GPU, owner="user_code").line("""
    ranks {who} share {name} while {free} is idle
    - saw nvml of {name}: several ranks compute on it | ranks {who} | one rank on each card
    - saw {card.source} of {name}: is busy for all of them | {shown} | busy for one rank
    - saw nvml of {free}: is idle, and the ranks may use it | nothing computes on it | a rank of its own
    - not gpu_bound: {free} has nothing to do
    - next: torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything else touches the GPU
""")


def shared_gpu(case: Case) -> Outcome:
    """Fires on a process of another job that uses the card, or on ranks that share one while another is idle."""
    if (crowded := _crowded(case)) is not None:
        return crowded
    served: Abstention | None = None
    for one in accelerated(case):
        found = neighbours(case.history, one.card.uuid)
        busy = [other for other in found if other.share is not None and other.share >= NOTABLE]
        known = busy or [other for other in found if other.share is None]
        if not known:
            served = served or _served(case, one)
            continue
        taken = min(1.0, sum(other.share or 0.0 for other in busy))
        # How much an unmeasured one uses is not known: it is noted, not blamed.
        facts = Facts(explains=max(taken, HELD_BACK_FROM_OUTSIDE if busy else 0.0))
        facts |= Facts(confidence=Level.CERTAIN if busy else Level.LOW, who=", ".join(map(_shown, known[:3])))
        facts |= Facts(together=taken if len(busy) > 1 else None)
        return slow_on_gpu(case, SHARED, one, taken, **facts)
    return served


def _crowded(case: Case) -> Finding | None:
    """Ranks of this job on one busy card, while a card that each of them may use is idle and no process is on it."""
    ranks: dict[str, list[Accelerated]] = {}
    for one in accelerated(case):
        if one.certain and one.card.kind == "work" and _computes_on(case, one):
            ranks.setdefault(one.card.uuid, []).append(one)
    for uuid, sharing in ranks.items():
        bound = [case.history.latest(r.GpuBinding, one.rank.pid) for one in sharing]
        idle = sorted(set.intersection(*(set(seen.reading.visible) if seen else set() for seen in bound)) - {uuid})
        idle = [other for other in idle if is_free(case.history, other, {one.rank.pid for one in sharing})]
        idle = [other for other in idle if (regime(case.history, other, LATELY_SECONDS).graphics or 0.0) < NOTABLE]
        if len(sharing) < 2 or not idle or mps_servers(case.history, uuid):
            continue
        left = -(-len(sharing) // (1 + len(idle))) / len(sharing)
        lost = (1.0 - left) * (sharing[0].card.graphics or 0.0)
        members = [each.rank for each in sharing]
        who = " and ".join(str(each.rank if each.rank is not None else each.pid) for each in members)
        facts = Facts(who=who, free=name_of(case.history, idle[0]), explains=HELD_BACK_FROM_OUTSIDE)
        found = slow_on_gpu(case, CROWDED, sharing[0], lost, confidence=Level.CERTAIN, **facts)
        both = (msgspec.structs.replace(found.culprits[0], pid=each.pid, rank=each.rank) for each in members)
        return msgspec.structs.replace(found, culprits=tuple(both))
    return None


def _computes_on(case: Case, one: Accelerated) -> bool:
    """True if a rank has no other card, or takes a good part of this one: a context alone takes nothing."""
    alone = len(cards_of(case.history, one.rank.pid).uuids) == 1
    return alone or (share_of(case.history, one.card.uuid, one.rank.pid) or 0.0) >= NOTABLE


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


LINK_IN_USE_MIB_PER_SECOND = 100.0
REPLAYS_PER_SECOND = 1.0  # a few in an hour are normal
# MiB/s of one link in each direction: 25 GB/s, and 50 from Blackwell on (NVIDIA's data sheets: 18 links make 450 and 900 GB/s).
NVLINK_3_AND_4, NVLINK_5, BLACKWELL = 23_842.0, 47_684.0, (10, 0)
DEGRADED = DEGRADED_LINK.line("""
    {name} has a slow link: {what}
    - not copy_bound: the link itself is below its maximum
    - next: nvidia-smi -q -d PCIE; lspci -vv shows LnkSta against LnkCap: reseat the card, or drain the node
""")


def degraded_link(case: Case) -> Outcome:
    """Fires on a card in use whose link is below its maximum."""
    for one in accelerated(case):
        moved = traffic_mib_per_second(case.history, one.card)
        if (one.card.graphics or 0.0) < NOTABLE and (moved or 0.0) < LINK_IN_USE_MIB_PER_SECOND:
            continue
        evidence, kept = _pcie(case, one.card.uuid)
        ceiling = ceiling_mib_per_second(case.history, one.card.uuid)
        used = moved / ceiling if ceiling and moved is not None else None
        matters = used is not None and used >= OFTEN and one.card.waiting > 0.0
        down, left, sent = _nvlink(case, one.card)
        if down and sent >= OFTEN:
            matters, kept, used = True, left, sent
        evidence += down
        if not evidence:
            continue
        share = "not measured by this card" if used is None else f"{used:.0%} of what it can do now"
        use = case.saw("nvml", name_of(case.history, one.card.uuid), "uses the link", share)
        facts = Facts(more=(*evidence, use), what="; ".join(f"{piece.claim}: {piece.observed}" for piece in evidence))
        facts |= Facts(explains=float(matters), confidence=Level.CERTAIN if matters else Level.LOW)
        lost = (1.0 - kept) * min(1.0, max(used or 0.0, one.card.waiting)) if matters else 0.0
        return slow_on_gpu(case, DEGRADED, one, lost, **facts)
    return None


def _pcie(case: Case, uuid: str) -> tuple[list[Evidence], float]:
    """What is wrong with PCIe, and the share of its speed that is left."""
    found: list[Evidence] = []
    seen = case.history.latest(r.Gpu, uuid)
    looks = [one.reading for one in case.history.series(r.GpuSample, uuid, seconds=LATELY_SECONDS)]
    best = lane_speed(seen.reading.pcie_generation_max, seen.reading.pcie_width_max) if seen is not None else None
    speeds = [speed for look in looks if (speed := lane_speed(look.pcie_generation, look.pcie_width)) is not None]
    kept = max(speeds) / best if best and speeds else 1.0
    name = name_of(case.history, uuid)
    # A link is trained anew when the card wakes up: nearly all samples are to be below the maximum.
    if seen is not None and best is not None and speeds and sum(s < best for s in speeds) >= NEARLY_ALL * len(speeds):
        last = next(look for look in reversed(looks) if look.pcie_width is not None)
        now = f"generation {last.pcie_generation} x{last.pcie_width}"
        most = f"generation {seen.reading.pcie_generation_max} x{seen.reading.pcie_width_max}"
        found.append(case.saw("nvml", name, "PCIe runs below its maximum", now, most))
    replays = case.history.rate(r.GpuSample, uuid, of=lambda s: s.pcie_replays, seconds=LATELY_SECONDS)
    if replays is not None and replays >= REPLAYS_PER_SECOND:
        found.append(case.saw("nvml", name, "PCIe repeats packets", f"{replays:.1f} replays/s", "none"))
    return found, kept


def _nvlink(case: Case, card: Regime) -> tuple[list[Evidence], float, float]:
    """Links that are down, the share of them that is left, and how much of what these can do is used."""
    seen, last = case.history.latest(r.Gpu, card.uuid), case.history.latest(r.GpuSample, card.uuid)
    links = seen.reading.nvlinks if seen is not None else None
    active = last.reading.nvlinks_active if last is not None else None
    if seen is None or not links or active is None or not 0 < active < links:
        return [], 1.0, 0.0  # none at all is how a card without a bridge looks
    each = NVLINK_5 if (seen.reading.compute_capability or (0, 0)) >= BLACKWELL else NVLINK_3_AND_4
    used = (card.nvlink_mib_per_second or 0.0) / (active * each)
    name = name_of(case.history, card.uuid)
    return [case.saw("nvml", name, "NVLinks are down", f"{active} of {links} active", "all")], active / links, used


# Computes the wrong way

LAYERS = ("forward", "attention", "eager_attention", "convolution")
PRODUCTS = frozenset(
    "matmul mm bmm addmm baddbmm einsum linear bilinear conv1d conv2d conv3d scaled_dot_product_attention".split()
)
ADVICE = {
    "fp32": 'torch.set_float32_matmul_precision("high"), or torch.autocast("cuda", dtype=torch.bfloat16)',
    "fp64": "float64 came in from NumPy or a default dtype: convert to float32, then use autocast",
}
IN_FULL = WRONG_PRECISION.line("""
    {name} computes in {pipe}: the {pipe} pipe is {used:.0%} busy, the tensor cores {card.tensor:.0%}
    - saw {card.source} of {name}: busy, and the tensor cores are not | {shown} | tensor cores used in matrix products
    - saw {card.source} of {name}: the {pipe} pipe is used | {used:.0%} | below 5 %, tensor above 10 %
    - not memory_bound_gpu: memory is used only {dram:.0%}
    - next: {advice}
""")


def wrong_precision(case: Case) -> Outcome:
    """Fires on a busy card whose matrix products do not use its tensor cores."""
    for one in accelerated(case):
        card, dram = one.card, one.card.dram or 0.0
        pipe, used = max((("fp32", card.fp32 or 0.0), ("fp64", card.fp64 or 0.0)), key=lambda kind: kind[1])
        plainly = used >= MUCH_ARITHMETIC and dram < MEMORY_IN_USE
        if card.tensor is None or card.tensor > (FEW_PRODUCTS if plainly else NO_PRODUCTS):
            continue
        if used < ARITHMETIC or dram >= MUCH_MEMORY or card.spinning >= OFTEN:
            continue  # if no data moves, a kernel iterates in its registers, and no matrix product is like that
        sure, facts = _sure_of_products(case, one), Facts(pipe=pipe, used=used, dram=dram, advice=ADVICE[pipe])
        return slow_on_gpu(case, IN_FULL, one, SAVED * used, confidence=sure, **facts)
    return None


def _sure_of_products(case: Case, one: Accelerated) -> float:
    """How sure it is that the arithmetic is products of matrices: by a trace, by the stacks, or because something trains."""
    trace, whole = trace_of(case, one.rank.pid), case.profile(one.rank)
    if (trace is not None and trace.full_precision_gemm_share) or whole.share_where(partial(_multiplies, case)) > 0.0:
        return Level.CERTAIN
    steps = case.steps(one.rank)
    trains = (steps is not None and steps.count > 0) or whole.seen("backward", "optimizer", "graph_replay")
    return Level.MEDIUM if trains else Level.LOW


def _multiplies(case: Case, stack: r.Stack) -> bool:
    """True if a stack is in a layer of a model, or at a line that multiplies matrices."""
    if any_tag(tags(stack), *LAYERS):
        return True
    return any(names(line.calls) & PRODUCTS or " @ " in line.text for line in lines_around(case.history, stack))


ATTENDS = 0.02  # of the samples: with a full queue the host is seldom seen at the call
# of the card's time, in the forward pass alone; how many times that with the backward pass
TRACED_SHARE, WITH_BACKWARD = 0.05, 2.5
IN_FRAMES = SLOW_ATTENTION_FALLBACK.line("""
    attention at {at} is not fused: every pair of positions is written to memory
    - saw stack: is in plain attention | {share:.0%} of {seen.samples} samples | 0 %
    - saw {card.source} of {name}: memory busy, tensor cores not | {shown} | the other way round
    - not memory_bound_gpu: the frames name plain attention
    - next: attn_implementation="sdpa" or "flash_attention_2" when the model is loaded
""")
IN_A_TRACE = SLOW_ATTENTION_FALLBACK.line("""
    attention falls back to its plain form (SDPA's math kernel): its forward pass alone takes {share:.0%} of the card's time in a trace
    - saw torch_trace: scaled_dot_product_attention runs its plain implementation | {trace.math_attention_calls} times in {window},
      {share:.0%} of the card's time | one fused kernel a layer
    - not memory_bound_gpu: the trace names plain attention
    - next: under torch.nn.attention.sdpa_kernel(SDPBackend.FLASH_ATTENTION) torch says why the fused kernel is refused
""")
FROM_OUTSIDE = SLOW_ATTENTION_FALLBACK.line("""
    attention at {at} seems to fall back to its plain form: the card is full, and its tensor cores are used only {tensor:.0%}, beside
    {dram:.0%} of its memory and {fp32:.0%} of its fp32 pipe
    - saw stack: calls attention at {at} | {share:.0%} of the samples
    - saw {card.source} of {name}: full, and the tensor cores are not | {shown} | tensor 30 % and more with fused kernels
    - saw {card.source} of {name}: fp32 pipe | {fp32:.0%} | below 10 %
    - not wrong_precision: the tensor cores do some of the products
    - not memory_bound_gpu: memory is used only {dram:.0%}
    - next: perfwatch capture torch: softmax and bmm kernels instead of one fused kernel
""")


def slow_attention_fallback(case: Case) -> Outcome:
    """Fires on plain attention that the frames show; suspects it, or abstains, where only a trace could tell."""
    for one in accelerated(case):
        seen, card, attends = one.profile, one.card, partial(_attends, case)
        trace, dram, frame = trace_of(case, one.rank.pid), card.dram or 0.0, show(seen.top_line(attends))
        if trace is not None and (share := trace.math_attention_share or 0.0) >= TRACED_SHARE:
            lost = min(SAVED, WITH_BACKWARD * share)
            facts = Facts(trace=trace, window=duration(trace.window_seconds, 3))
            return slow_on_gpu(case, IN_A_TRACE, one, lost, confidence=Level.CERTAIN, frame=frame, share=share, **facts)
        if card.dram is None or (card.tensor or 0.0) > FULL_TENSOR or seen.samples < ENOUGH_SAMPLES:
            continue
        if (share := seen.share("eager_attention")) >= NOTABLE and dram >= WRITTEN_OUT:
            # Of what memory_bound_gpu sees, this is the reason.
            lost, more = FUSION_SAVES * dram, Facts(explains=0.6 * dram, confidence=Level.HIGH)
            frame = show(seen.top_line(lambda stack: "eager_attention" in tags(stack)))
            return slow_on_gpu(case, IN_FRAMES, one, lost, frame=frame, share=share, **more)
        calls = seen.share_where(attends)
        if calls < ATTENDS or (trace is not None and trace.families.get("attention", 0.0) > 0):
            continue
        if _exponentiates(card):
            used = Facts(tensor=card.tensor or 0.0, dram=dram, fp32=card.fp32 or 0.0)
            lost = FUSION_SAVES * (used["dram"] + used["fp32"])
            return slow_on_gpu(case, FROM_OUTSIDE, one, lost, confidence=Level.MEDIUM, frame=frame, share=calls, **used)
        if card.dram < WRITTEN_OUT:
            return None
        reason = "no counter and no stack shows which attention kernel torch chose"
        advice = "perfwatch capture torch names it (plain: softmax and bmm kernels)"
        lacking = Missing(witness="kernel_trace", reason=reason, advice=advice)
        return Abstention(cause=SLOW_ATTENTION_FALLBACK.name, missing=(lacking,))
    return None


def _attends(case: Case, stack: r.Stack) -> bool:
    """True if a stack is at attention: in a library's module for it, or at a line of the program that calls torch's."""
    return "attention" in tags(stack) or "scaled_dot_product_attention" in calls_at(case.history, stack)


def _exponentiates(card: Regime) -> bool:
    """True if a full card hardly uses its tensor cores, but memory and fp32 pipe, for what fused kernels keep on the chip."""
    dram, tensor = card.dram or 0.0, card.tensor or 0.0
    softmax = dram >= MEMORY_IN_USE and dram + (card.fp32 or 0.0) >= MOST
    return softmax and NO_PRODUCTS < tensor < NOTABLE and (card.graphics or 0.0) >= BUSY


MEMORY_BOUND = MEMORY_BOUND_GPU.line("""
    {name} waits for its own memory: {used:.0%} of the bandwidth is used[, {rate:,.0f} GB/s][, the tensor cores {cores:.0%}]
    - saw {card.source} of {name}: memory is near its ceiling | {shown} | tensor cores busier than memory
    - not gpu_bound: the tensor cores are used only {tensor:.0%}
    - not slow_attention_fallback: only a trace can tell which kernels these are
    - next: fuse: torch.compile(model), fused=True in the optimizer, flash attention; bf16 halves every byte
""")


def memory_bound_gpu(case: Case) -> Outcome:
    """Fires on a busy card whose memory is the bottleneck."""
    for one in accelerated(case):
        card, tensor = one.card, one.card.tensor or 0.0
        used = card.dram if card.dram is not None else MEMORY_OF_UTILISATION * (card.memory_utilisation or 0.0)
        if used < MUCH_MEMORY or tensor >= FULL_TENSOR or (card.graphics or 0.0) < BUSY:
            continue
        described = case.history.latest(r.Gpu, card.uuid)
        peak = dram_peak_bytes_per_second(described.reading) if described is not None else None
        sure, facts = (
            Level.CERTAIN if used >= NEARLY_ALL_MEMORY else Level.HIGH,
            Facts(used=used, cores=card.tensor),
        )
        facts |= Facts(tensor=tensor, rate=None if peak is None else used * peak / 1e9)
        return slow_on_gpu(case, MEMORY_BOUND, one, FUSION_SAVES * used, confidence=sure, **facts)
    return None


UNDERFILLED = UNDERFILLED_GPU.line("""
    {name} is busy {card.graphics:.0%} of the time with kernels that fill {card.sm_active:.0%} of it
    - saw {card.source} of {name}: busy, and mostly empty | {shown} | SM above 60 %
    - saw {card.source} of {name}: warps in flight | {occupancy:.0%} of what it can hold
    - not stuck_kernel: steps continue ({basis})
    - not host_bound_python: the card waits only {card.waiting:.0%} of the time
    - next: raise the batch size until SM activity is above 60 %, or run several models side by side
""")


def underfilled_gpu(case: Case) -> Outcome:
    """Fires on a card of a job with one rank that is always busy and mostly empty: kernels of a collective fill little as well."""
    if len(case.job.ranks) > 1 or (case.job.world_size or 1) > 1:
        return None
    for one in accelerated(case):
        card = one.card
        if card.sm_active is None or card.sm_active >= ACTIVE or (card.graphics or 0.0) < BUSY:
            continue
        facts = Facts(occupancy=card.occupancy or 0.0, basis=case.progress[one.rank.pid].basis)
        return slow_on_gpu(case, UNDERFILLED, one, SAVED * (1.0 - card.sm_active), confidence=Level.CERTAIN, **facts)
    return None


# Nothing holds it back

BUSY_CARD = GPU_BOUND.line("""
    the GPU is busy {busy:.0%} of the time, and training makes progress[: {reached}]
    - next: to go further: a kernel table of one step (perfwatch ncu), fused kernels (torch.compile), a lower precision
""")


def gpu_bound(case: Case) -> Outcome:
    """Fires when every rank keeps its card busy."""
    found = accelerated(case)
    if not found or len(found) < len(case.ranks) or not all(_is_full(one.card) for one in found):
        return None
    figures = efficiency(case)
    evidence = [
        monitored(case, one, "busy nearly all the time, and full", "the bottleneck of a healthy run")
        for one in found[:4]
    ]
    evidence += [case.saw("hardware", name_of(case.history, card.uuid), *in_words(card)) for card in figures.cards[:4]]
    for other in (other for one in found for other in neighbours(case.history, one.card.uuid)[:2]):
        shares = f"{(other.memory_bytes or 0) / 2**30:.1f} GiB, {other.share or 0:.0%} of the time"
        evidence.append(case.saw("nvml", f"pid {other.pid}", "another process is on the card", shares, "none"))
    model = mfu_in_words(figures.model) if figures.model is not None else ""
    if model:
        evidence.append(case.saw("model", "job", "does its own arithmetic", model, "35 to 55 % in well tuned runs"))
    least = min(found, key=lambda one: one.card.graphics or 0.0).card
    reached = "; ".join(filter(None, (headline(figures, case), model)))
    active = ("underfilled_gpu", f"{least.sm_active or 0:.0%} of the multiprocessors are active")
    line = BUSY_CARD if least.sm_active is None else replace(BUSY_CARD, but=(active,))
    sure = min(_sure_of_health(case, found), *(one.ceiling for one in found))
    return line.finding(case, (), sure, more=tuple(evidence), busy=least.graphics or 0.0, reached=reached)


def _is_full(card: Regime) -> bool:
    """True if a card is busy and full; one that often spins for others is not what the job waits for."""
    full = card.sm_active is None or card.sm_active >= ACTIVE
    return (card.graphics or 0.0) >= BUSY and full and (card.spinning <= OFTEN or card.computes)


def _sure_of_health(case: Case, found: list[Accelerated]) -> float:
    if not all(_surroundings_known(case, one.card.uuid) for one in found):
        return Level.MEDIUM
    if any(neighbours(case.history, one.card.uuid) for one in found):
        return Level.HIGH
    used = all((one.card.tensor or 0.0) >= NOTABLE or (one.card.dram or 0.0) >= MUCH_MEMORY for one in found)
    return Level.CERTAIN if used else Level.MEDIUM


def _surroundings_known(case: Case, uuid: str) -> bool:
    """True if it could be seen that nothing holds the card itself back: its link and clocks, and other processes on it."""
    described = case.history.latest(r.Gpu, uuid) is not None
    samples = case.history.series(r.GpuSample, uuid, seconds=LATELY_SECONDS)
    clocked = any(one.reading.reasons is not None and one.reading.sm_clock_mhz is not None for one in samples)
    return described and clocked and bool(case.history.of(r.GpuProcess, uuid))


# Runs dry between kernels

COPY_BOUND = Cause("copy_bound", "slow", "user_code", (r.Stack, r.GpuSample))
SYNCHRONISING = Cause("synchronising", "slow", "user_code", (r.Stack, r.SourceLine, r.GpuSample))
ALLOCATOR_THRASH = Cause("allocator_thrash", "slow", "user_code", (r.GpuSample,))
AUTOTUNING = Cause("autotuning", "busy", "user_code", (r.Thread, r.Stack))

OF_BATCHES = "DataLoader(pin_memory=True) and .to(device, non_blocking=True); send uint8 and convert on the card"
OF_ACTIVATIONS = (
    "save_on_cpu(pin_memory=True), for larger tensors only; or compute activations again (torch.utils.checkpoint)"
)
COPIES = COPY_BOUND.line("""
    {gib:.1f} GiB/s cross PCIe while the GPU has no kernel to run {card.waiting:.0%} of the time[; the training thread copies
    {copying:.0%} of the time, mostly at {at}][{saving:if}: save_on_cpu moves what backward needs to host memory]
    - saw {card.source} of {name}: has no kernel resident while bytes arrive | {shown} | copies beside the kernels
    - saw {card.source} of pcie: bytes cross the link | {moved:.0f} MiB/s[, {of:.0%} of what the link can do] | some hundred MiB/s
    - saw stack: stands at a line that copies | {copying:.0%} of {seen.samples} samples | below 5 %
    - not degraded_link: the link runs at its full generation and width
    - next: {advice}
""")


def copy_bound(case: Case) -> Outcome:
    """Fires on a card that waits while bytes cross the link."""
    for one in accelerated(case):
        seen, spent, moved = one.profile, one.spent(case), traffic_mib_per_second(case.history, one.card)
        if one.card.waiting < LOST_SHARE or seen.samples < ENOUGH_SAMPLES:
            continue
        copying = spent.share(Bin.COPYING)
        if moved is None and copying >= LOST_SHARE:
            unmeasured = Missing(witness="pcie", reason="how many bytes cross the link of this card is not measured")
            return Abstention(cause=COPY_BOUND.name, missing=(unmeasured,))
        ceiling = ceiling_mib_per_second(case.history, one.card.uuid)
        full = ceiling is not None and (moved or 0.0) >= MOSTLY * ceiling
        if moved is None or moved < COPIES_MIB_PER_SECOND or not (copying >= LOST_SHARE or full):
            continue
        frame, saving = show(spent.of(Bin.COPYING).top_line()), seen.share("saved_on_host") >= MOSTLY * copying > 0.0
        facts = Facts(frame=frame, gib=moved / 1024, moved=moved, copying=copying)
        facts |= Facts(of=None if ceiling is None else moved / ceiling, saving=saving)
        facts |= Facts(advice=OF_ACTIVATIONS if saving else OF_BATCHES)
        lost, explains = (
            min(one.card.waiting, max(copying, LOST_SHARE)),
            one.card.waiting if copying >= LOST_SHARE else None,
        )
        return slow_on_gpu(case, COPIES, one, lost, explains=explains, **facts)
    return None


SYNCHRONISES = SYNCHRONISING.line("""
    the training thread repeatedly waits for the GPU at {at} ({syncs:.0%} of its time), and each time the GPU runs out of work: it is idle
    {card.waiting:.0%} of the time
    - saw stack: waits for the device at {at} | {syncs:.0%} of {seen.samples} samples | below 5 %, or a card that is busy meanwhile
    - saw {card.source} of {name}: kernels come and go, with gaps | {shown} | a kernel resident all the time
    - not gpu_bound: the card has nothing to do {card.waiting:.0%} of the time
    - next: keep the value at {at} on the device, and read it every hundredth step
""")


def synchronising(case: Case) -> Outcome:
    """Fires on a thread that waits for a card which is not busy."""
    for one in accelerated(case):
        seen, card, spent = one.profile, one.card, one.spent(case)
        syncs, others = spent.share(Bin.GPU), spent.share(Bin.DATA, Bin.LOADING, Bin.SAVING, Bin.RANKS)
        gaps = card.kind == "wait" or card.waits_for_launches
        if not gaps or card.waiting < LOST_SHARE or seen.samples < ENOUGH_SAMPLES or syncs < NOTABLE or others > OFTEN:
            continue  # a loop that reads its loss every tenth step waits less where the card is not the bottleneck
        lost, frame = min(card.waiting, 1.0 - others), show(spent.of(Bin.GPU).top_line())
        sure = certainty(min(lost, 2 * syncs))
        return slow_on_gpu(case, SYNCHRONISES, one, lost, frame=frame, confidence=sure, syncs=syncs)
    return None


# Memory that is freed and allocated anew

FREED_BYTES = 20 * 2**20  # the least that torch asks the driver for at once (its large segments)
FREES_PER_SECOND, FEW_FREES = 0.25, 2  # memory is sampled once a second: faster swings show as often as they can
EMPTYING, EMPTYING_ALONE = 0.02, 0.06  # of the samples, beside memory that falls and rises, and without
LEAVE_ROOM = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; a smaller batch, or inputs padded to a few sizes"
THRASHES = ALLOCATOR_THRASH.line("""
    memory of {name} is freed and allocated again[{frees:if} {often}, between {low:.1f} and {high:.1f} GiB][; the training thread
    empties the cache at {at}]
    - saw nvml of {name} if frees: memory falls and rises | {often} | constant
    - saw stack if emptying: empties the cache | {emptying:.0%} of the samples | 0 %
    - saw {card.source} of {name}: waits meanwhile | {shown} | a kernel resident all the time
    - not synchronising: the memory itself goes up and down
    - next: {advice}
""")


def allocator_thrash(case: Case) -> Outcome:
    """Fires on memory that saw-tooths while the card waits."""
    for one in accelerated(case):
        emptying = one.spent(case).share(Bin.EMPTYING)
        # Kernels that fill so much of the card do not wait for their launch.
        large = (one.card.sm_active or 0.0) >= OFTEN * (one.card.graphics or 1.0)
        if _tries_convolutions(case, one):
            continue  # cuDNN frees what its trials took
        frees = _frees(_memory_used(case, one))
        if not (emptying >= EMPTYING_ALONE or (_frees_often(frees, one) and (emptying >= EMPTYING or large))):
            continue
        if (lost := max(emptying, one.card.waiting)) >= LOST_SHARE:
            return _thrashes(case, one, frees, emptying, lost)
    return None


def _thrashes(case: Case, one: Accelerated, frees: int, emptying: float, lost: float) -> Finding:
    used = _memory_used(case, one)
    known = emptying >= EMPTYING or len(one.profile.runs(is_in(case, Bin.EMPTYING))) > 1  # it came back to the call
    frame = show(one.spent(case).of(Bin.EMPTYING).top_line()) if known else None
    often = f"{frees} times in {duration(min(LATELY_SECONDS, case.history.at))}"
    facts = Facts(frame=frame, often=often, frees=frees, emptying=emptying)
    facts |= Facts(low=min(used, default=0) / 2**30, high=max(used, default=0) / 2**30)
    facts |= Facts(advice=f"take empty_cache() out of the loop at {frame}" if frame else LEAVE_ROOM)
    sure = Level.CERTAIN if known else min(_sure_of_memory(case, one), certainty(lost))
    return slow_on_gpu(case, THRASHES, one, lost, confidence=sure, **facts)


def _sure_of_memory(case: Case, one: Accelerated) -> float:
    """How sure it is that memory falls for want of room. On a card that is not full the program may have set a limit, or cuDNN searches."""
    if _fills_up(case, one):
        return Level.HIGH
    may_search = mode_on(case, one.rank, "cudnn_benchmark") is not False
    return Level.LOW if may_search and one.profile.share_where(_in_convolution) > 0.0 else Level.MEDIUM


def _memory_used(case: Case, one: Accelerated) -> list[int]:
    """What the rank's own process held, sample by sample; or the whole card, which is sampled more often, if the rank is alone there.

    Once a second hides most of what an allocator frees and asks for anew within a step. If the driver does not tell what a process
    holds, there is only the card.
    """
    keys = (key for key in case.history.entities(r.GpuProcess) if key[0] == one.card.uuid)
    looks = [one.reading for key in keys for one in case.history.series(r.GpuProcess, *key, seconds=LATELY_SECONDS)]
    own = [each.memory_bytes for each in looks if each.local_pid == one.rank.pid and each.memory_bytes is not None]
    alone = all(each.local_pid == one.rank.pid for each in looks)
    return max(own, _of_card(case, one), key=_frees) if alone else own or _of_card(case, one)


def _of_card(case: Case, one: Accelerated) -> list[int]:
    looks = case.history.series(r.GpuSample, one.card.uuid, seconds=LATELY_SECONDS)
    return [seen.reading.memory_used_bytes for seen in looks if seen.reading.memory_used_bytes is not None]


def _frees(used: list[int]) -> int:
    """How many samples found a good deal less memory in use than the one before."""
    return sum(1 for before, now in pairwise(used) if before - now >= FREED_BYTES)


def _frees_often(frees: int, one: Accelerated) -> bool:
    """True if that is more than a release now and then."""
    return frees >= max(FEW_FREES, FREES_PER_SECOND * min(LATELY_SECONDS, one.card.seconds))


def _fills_up(case: Case, one: Accelerated) -> bool | None:
    """True if the card was seen full, or nearly so, as an allocator that frees for want of room has seen it; None if not known."""
    card, used = case.history.latest(r.Gpu, one.card.uuid), _of_card(case, one) or _memory_used(case, one)
    if card is None or not card.reading.memory_bytes or not used:
        return None
    return max(used) > MOST * card.reading.memory_bytes


# A search for kernels

TUNES = AUTOTUNING.line("""
    kernels are benchmarked before their first use
    - saw stack: is in the autotuner | {share:.0%} of {seen.samples} samples | training code
""")
SEARCHES = AUTOTUNING.line("""
    cuDNN benchmarks its kernels again and again, because input sizes keep changing: the forward pass is in convolutions, mostly at
    {at}, {name} has no kernel to run {card.waiting:.0%} of the time, and its memory falls {frees} though no line empties the cache
    - saw stack: is in a convolution, of the samples in the forward pass | {convolving:.0%} of {forward:.0f} samples | a third or less
    - saw nvml of {name}: memory falls and rises, far from full | {frees} | constant
    - saw agent if told: cudnn.benchmark | on | off
    - saw {card.source} of {name}: waits between trials | {shown} | a kernel resident all the time
    - not allocator_thrash: no line empties the cache, and the card is not full
    - not host_bound_python: nothing but convolutions takes time in the forward pass
    - next: torch.backends.cudnn.benchmark = False, or inputs padded to a few sizes: it searches once for each
""")


def autotuning(case: Case) -> Outcome:
    """Fires on a rank that tries out kernels and makes no step; or that makes them, and tries anew in each."""
    for phase in phases(case):
        share = phase.profile.share("autotune")
        if share < LARGE or (phase.runs < SIGN_OF_LIFE and phase.motion.distinct <= 1):
            continue
        saw = partial(case.saw, claim="runs the candidates", expected="busy meanwhile")
        cards = regimes(case.history, phase.rank.pid)[:1]
        more = tuple(saw(card.source, name_of(case.history, card.uuid), observed=card.shown()) for card in cards)
        return phase.finding(case, TUNES, Level.CERTAIN, share=share, more=more)
    found = (one for one in accelerated(case) if one.card.kind == "wait" and one.card.waiting >= LOST_SHARE)
    return next((_searches_again(case, one) for one in found if _tries_convolutions(case, one)), None)


def _tries_convolutions(case: Case, one: Accelerated) -> bool:
    """True if cuDNN searches, step by step, for the way to run convolutions.

    Memory that no line frees then falls again and again, on a card that is far from full, and the forward pass is seen in
    convolutions. False if the agent says that it does not search.
    """
    if mode_on(case, one.rank, "cudnn_benchmark") is False:
        return False
    if one.profile.turns(_in_convolution) < FEW_TIMES or one.spent(case).share(Bin.EMPTYING):
        return False
    return _fills_up(case, one) is False and _frees_often(_frees(_memory_used(case, one)), one)


def _in_convolution(stack: r.Stack) -> bool:
    """True if a stack stands at torch's native call for a convolution."""
    return bool(stack.frames) and "convolution" in tags_of(stack.frames[0].function, stack.frames[0].file)


def _searches_again(case: Case, one: Accelerated) -> Finding:
    forward, convolving = one.profile.share("forward", "convolution"), one.profile.share_where(_in_convolution)
    lost = min(one.card.waiting, convolving + one.profile.share("backward"))
    told = mode_on(case, one.rank, "cudnn_benchmark")
    # Elsewhere a third of the forward pass or less is in convolutions: a convolution itself returns at once.
    sure = Level.CERTAIN if told else Level.HIGH if convolving >= MOST * forward else Level.MEDIUM
    facts = Facts(told=told, convolving=convolving / forward, forward=forward * one.profile.samples)
    facts |= Facts(frees=f"{_frees(_memory_used(case, one))} times in {duration(LATELY_SECONDS)}")
    frame = show(one.profile.top_line(_in_convolution))
    return slow_on_gpu(case, SEARCHES, one, lost, frame=frame, confidence=min(sure, certainty(lost)), **facts)


RULES = (
    Rule(THROTTLED_GPU, throttled_gpu),
    Rule(SHARED_GPU, shared_gpu),
    Rule(DEGRADED_LINK, degraded_link),
    Rule(WRONG_PRECISION, wrong_precision),
    Rule(SLOW_ATTENTION_FALLBACK, slow_attention_fallback),
    Rule(MEMORY_BOUND_GPU, memory_bound_gpu),
    Rule(UNDERFILLED_GPU, underfilled_gpu),
    Rule(GPU_BOUND, gpu_bound),
    Rule(COPY_BOUND, copy_bound),
    Rule(SYNCHRONISING, synchronising),
    Rule(ALLOCATOR_THRASH, allocator_thrash),
    Rule(AUTOTUNING, autotuning),
)
