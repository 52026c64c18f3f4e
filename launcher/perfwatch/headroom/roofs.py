"""What the card can do, and what an operation asks of it, from its shapes."""

import re
from math import prod

from perfwatch.headroom.step import GEMM_OPERATIONS, Card, Operation
from perfwatch.triage.questions import data_sheet_tflops
from perfwatch_probes.readings import Gpu

# GB/s of the card's memory, from the data sheet of each product; the first that matches counts.
MEMORY_GB: tuple[tuple[str, float], ...] = (
    (r"H200", 4800.0),
    (r"H100 NVL", 3938.0),
    (r"H100 PCIe", 2000.0),
    (r"H100|H800", 3350.0),
    (r"A100.*80GB|A800.*80GB", 2039.0),
    (r"A100|A800", 1555.0),
    (r"L40S|L40\b", 864.0),
    (r"\bL4\b", 300.0),
    (r"\bA10\b", 600.0),
    (r"V100", 900.0),
    (r"GB?200", 8000.0),
)
HALF = ("half", "bfloat16")


def peak_tflops(card: Card, type_: str) -> float | None:
    """Dense tensor TFLOP/s of the card for a type of number; None where card or type are not known."""
    if not card.name:
        return None
    known = Gpu(uuid="", index=0, name=card.name, compute_capability=card.capability, sms=card.sms)
    peak = data_sheet_tflops(known)
    if peak is None:
        return None
    return peak if type_ in HALF else peak / 2 if type_ == "float" else None


def memory_gb_per_second(card: Card) -> float | None:
    """The most that its memory moves; None for a card that is not in the table."""
    return next((rate for pattern, rate in MEMORY_GB if re.search(pattern, card.name)), None)


def matrices(operation: Operation) -> tuple[tuple[int, ...], ...]:
    """The sizes of the two factors of a matrix product; empty for what is none, or without shapes."""
    first = GEMM_OPERATIONS.get(operation.name)
    factors = () if first is None else operation.sizes[first : first + 2]
    return factors if len(factors) == 2 and all(len(size) >= 2 for size in factors) else ()


def flops_of(operation: Operation) -> float:
    """Floating-point operations of a matrix product or convolution (a multiply-add is two); 0 for what is none, or without shapes."""
    if factors := matrices(operation):
        return 2.0 * prod(factors[0]) * factors[1][-1]
    if operation.name == "aten::cudnn_convolution" and len(operation.sizes) > 1:
        return _convolution(operation.sizes[0], operation.sizes[1], operation.given, 2, 3)
    if operation.name == "aten::convolution_backward" and len(operation.sizes) > 2:
        out, _, weight = operation.sizes[:3]
        return 4.0 * prod(out) * prod(weight[1:]) if len(out) == len(weight) == 4 else 0.0
    return 0.0


def _convolution(
    given: tuple[int, ...], weight: tuple[int, ...], settings: tuple[str, ...], padding: int, stride: int
) -> float:
    if len(given) != 4 or len(weight) != 4 or len(settings) <= stride:
        return 0.0
    pads, strides = numbers(settings[padding]), numbers(settings[stride])
    if len(pads) != 2 or len(strides) != 2 or 0 in strides:
        return 0.0
    out = [
        (size + 2 * pad - kernel) // step + 1
        for size, pad, kernel, step in zip(given[2:], pads, weight[2:], strides, strict=True)
    ]
    return 2.0 * given[0] * prod(out) * prod(weight)


def numbers(text: str) -> list[int]:
    """``[1, 1]`` as numbers."""
    return [int(one) for one in re.findall(r"\d{1,9}", text[:200])]
