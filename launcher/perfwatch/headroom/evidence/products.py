"""Matrix products and convolutions: their types, sizes, layouts, and how cuDNN chooses among its algorithms."""

import re
from collections import Counter

from perfwatch.headroom.facts import SEARCHED_KERNELS, WORTH, Facts, Seen, longest, operations_of, simt, towards
from perfwatch.headroom.gain import Saved
from perfwatch.headroom.roofs import HALF, flops_of, matrices, peak_tflops
from perfwatch.headroom.step import SECOND, Kernel, Operation
from perfwatch.traces.intervals import length, union

LAYOUT = re.compile(r"nchwtonhwc|nhwctonchw|nchw2nhwc|nhwc2nchw", re.IGNORECASE)


# Of the data sheet's peak, what products reach at most and at least where they are large; measured on H200 in bf16 and TF32.
REACHED, HARDLY_REACHED = 0.8, 0.4
CONVOLUTIONS_REACH = 0.5  # of what matrix products do
SHORTEST_SECONDS = 4e-6  # of a product, however small
SHORTEST_SIDE = 256  # padding a shorter one to the next multiple of 64 may cost more than it brings


def mixed_precision(facts: Facts) -> Seen | None:
    """Products in 32 bits."""
    steps = facts.steps
    products, attention = facts.full_products, steps.per_step(facts.full_attention)
    seconds = steps.per_step(products)
    if seconds + attention < WORTH * facts.whole:
        return None
    loops = steps.per_step(one for one in facts.loops if one.operation is not None and one.operation.type == "float")
    fast, slow = _at_rate(facts, products, "bfloat16", (0.07, 0.25), (0.35, 0.65))
    # Autocast also casts: every product's inputs once more, two launches each.
    casts = facts.host_of(2 * len(operations_of(products)) / 3 / steps.count)
    least = Saved(card=seconds - slow + attention * 0.5 - 0.1 * loops, host=-casts)
    fused = steps.per_step(
        facts.fused_loops
    )  # their types are not in the trace: of what the products are given, at most
    most = Saved(card=seconds - fast + attention * 0.93 + 0.5 * (loops + fused))
    outside = steps.per_step(one for one in products if simt(one))
    kind = "outside the tensor cores" if outside > seconds / 2 else "in TF32"
    told = f"{facts.share(seconds + attention)} are products in 32 bits, mostly {kind}"
    return Seen(told, least, most, steps.top_line(operations_of(products)), _unknown_card(facts))


def tf32(facts: Facts) -> Seen | None:
    """Products in fp32 outside the tensor cores."""
    outside = [one for one in facts.full_products if simt(one)]
    seconds = facts.steps.per_step(outside)
    if seconds < WORTH * facts.whole:
        return None
    fast, slow = _at_rate(facts, outside, "float", (0.14, 0.4), (1.0, 1.0))
    told = f"{facts.share(seconds)} are products in fp32 outside the tensor cores ({longest(outside)})"
    line = facts.steps.top_line(operations_of(outside))
    return Seen(told, Saved(card=seconds - slow), Saved(card=seconds - fast), line, _unknown_card(facts))


def _at_rate(
    facts: Facts, kernels: list[Kernel], kind: str, of_simt: tuple[float, float], of_tf32: tuple[float, float]
) -> tuple[float, float]:
    """Seconds a step that products would take in another type, at least and at most.

    From their operations where shapes and the card are known, else as parts of what they take now (``of_simt``, ``of_tf32``).
    """
    steps = facts.steps
    peak = peak_tflops(steps.card, kind)
    fast = slow = 0.0
    known: dict[int, Operation] = {}
    for one in kernels:
        if one.operation is not None and peak and flops_of(one.operation):
            known[id(one.operation)] = one.operation
        else:
            part = of_simt if simt(one) else of_tf32
            fast, slow = fast + (one.end - one.begin) * part[0], slow + (one.end - one.begin) * part[1]
    fast, slow = fast / SECOND, slow / SECOND
    for operation in known.values():
        now = operation.device / SECOND
        rate = (peak or 1.0) * 1e12 * (CONVOLUTIONS_REACH if "conv" in operation.name else 1.0)
        least = max(flops_of(operation) / rate / REACHED, SHORTEST_SECONDS)
        fast += min(least, now)
        slow += min(max(flops_of(operation) / rate / HARDLY_REACHED, 2 * SHORTEST_SECONDS), now)
    return fast / steps.count, slow / steps.count


def fp8(facts: Facts) -> Seen | None:
    """Large products in 16 bits, on a card with fp8."""
    capability = facts.steps.card.capability
    if capability is None or capability < (8, 9):
        return None
    large = [
        one
        for one in facts.steps.operations
        if one.name in ("aten::mm", "aten::addmm") and one.type in HALF and _large(one)
    ]
    seconds = sum(one.device for one in large) / SECOND / facts.steps.count
    if seconds < 0.3 * facts.whole or not facts.fused:  # without a compiler the scaling costs more than it brings
        return None
    told = f"{facts.share(seconds)} are products in 16 bits of 4,096 and more in every direction"
    least, most = facts.spread(seconds, 0.1, 0.4)
    return Seen(told, Saved(card=least), Saved(card=most), facts.steps.top_line(large))


def _large(operation: Operation) -> bool:
    factors = matrices(operation)
    return len(factors) == 2 and all(len(size) == 2 and min(size) >= 4096 for size in factors)


def _unknown_card(facts: Facts) -> str:
    return "" if facts.steps.card.name else "the trace does not name the card"


def matrix_sizes(facts: Facts) -> Seen | None:
    """Products in 16 bits whose sizes the tensor cores do not like."""
    odd: list[Operation] = []
    even: list[Operation] = []
    for one in facts.steps.operations:
        if one.kernels and one.type in HALF and matrices(one):
            (odd if _odd_sides(one) else even).append(one)
    seconds = sum(one.device for one in odd) / SECOND / facts.steps.count
    if seconds < WORTH * facts.whole:
        return None
    rate = sum(map(flops_of, odd)) / seconds / facts.steps.count / 1e12
    large = [one for one in even if one.device > 20] or even
    usual = sum(map(flops_of, large)) / (sum(one.device for one in large) / SECOND) / 1e12 if large else 0.0
    if usual < 1.15 * rate:
        return None
    size = _odd_sides(odd[0])[0]
    told = (
        f"{facts.share(seconds)} are products with a side of {size:,}, no multiple of 8, at {rate:,.0f} TFLOP/s; "
        f"the others reach {usual:,.0f}"
    )
    saved = 1 - rate / usual
    # The smallest of the others may be limited by their size, the largest gain more than the average.
    return Seen(
        told, Saved(card=0.5 * saved * seconds), Saved(card=min(0.95, 1.3 * saved) * seconds), facts.steps.top_line(odd)
    )


def _odd_sides(operation: Operation) -> list[int]:
    """Sides that are no multiple of 8. A short one is left out: its product is slow because it is short."""
    return [n for size in matrices(operation) for n in size[-2:] if n % 8 and n > SHORTEST_SIDE]


def channels_last(facts: Facts) -> Seen | None:
    """Convolutions on images laid out channel by channel."""
    planar = [one for one in facts.convolutions if _planar(one)]
    seconds = sum(one.device for one in planar) / SECOND / facts.steps.count
    turned = [one for one in facts.steps.kernels if LAYOUT.search(one.name)]
    turning = facts.steps.per_step(turned)
    grouped = any(one.name == "aten::native_group_norm" for one in facts.steps.operations)
    # Group normalisation turns the layout back: UNets were slower by a fifth to a third with it (measured).
    if grouped or turning < 0.01 * facts.whole or (facts.steps.has_shapes and seconds < WORTH * facts.whole):
        return None
    norms = facts.steps.per_step(
        one for one in facts.steps.kernels if one.family == "norm" and one.part in ("forward", "backward")
    )
    count = len(turned) / facts.steps.count
    told = f"{facts.share(turning)} turns images from one layout into the other around convolutions ({count:,.0f} kernels a step)"
    loops = facts.steps.per_step(one for one in facts.loops if one.family == "elementwise")
    least = Saved(card=0.8 * turning + 0.25 * norms)
    most = Saved(card=turning + 0.7 * norms + 0.5 * loops + 0.2 * max(0.0, seconds - turning))
    return Seen(told, least, most, facts.steps.top_line(planar))


def _planar(operation: Operation) -> bool:
    """True if its images lie channel by channel."""
    given = next((at for at, size in enumerate(operation.sizes) if len(size) == 4), None)
    if given is None or len(operation.strides) <= given or len(operation.strides[given]) != 4:
        return False
    return operation.strides[given][1] != 1 and operation.sizes[given][1] > 1


def cudnn_benchmark(facts: Facts) -> Seen | None:
    """Convolutions of fixed shapes for which cuDNN may not search."""
    asked = [one for one in facts.steps.operations if one.name == "aten::_convolution" and len(one.given) > 9]
    plain = [one for one in asked if one.given[9] == "False"]
    seconds = sum(one.device for one in facts.convolutions) / SECOND / facts.steps.count
    if not plain or len(plain) < len(asked) or seconds < 0.2 * facts.whole or not _fixed(facts, plain):
        return None
    told = f"{facts.share(seconds)} are convolutions, their shapes are the same in each step, and cuDNN may not search among its algorithms"
    return Seen(told, Saved(card=0.01 * seconds), Saved(card=0.1 * seconds), facts.steps.top_line(facts.convolutions))


def cudnn_search(facts: Facts) -> Seen | None:
    """Searching among cuDNN's algorithms at each new shape."""
    searching = [one for one in facts.convolutions if len(one.kernels) >= SEARCHED_KERNELS]
    spent = length(union((one.begin, one.end) for one in searching)) / SECOND / facts.steps.count
    if len(searching) < 0.3 * len(facts.convolutions) or spent < 0.1 * facts.whole or _fixed(facts, searching):
        return None
    kernels = sum(len(one.kernels) for one in searching) / len(searching)
    told = (
        f"cuDNN searches in {len(searching) / facts.steps.count:,.0f} convolutions a step ({kernels:,.0f} kernels each, "
        f"{facts.share(spent)}): their shapes are new"
    )
    whole = facts.budget
    keep = facts.whole - spent
    return Seen(
        told, towards(whole, keep + 0.3 * spent), towards(whole, max(0.05 * facts.whole, keep + 0.02 * spent)),
        facts.steps.top_line(searching),
    )  # fmt: skip


def _fixed(facts: Facts, operations: list[Operation]) -> bool:
    """True if each shape comes as often as there are steps."""
    counts = Counter(one.sizes[:2] for one in operations)
    return all(count >= facts.steps.count for count in counts.values())
