"""What attention that is computed the plain way looks like from outside: a stack at a call of it, and a card that exponentiates.

Measured on H200, a decoder with 4,096 tokens in bf16: fused kernels make 0.55 tensor and 0.32 DRAM of it, the plain way 0.045
and 0.37 (fp32 0.40).
"""

from perfwatch.triage.cards.accelerated import Accelerated, monitored
from perfwatch.triage.cards.gpu import Regime
from perfwatch.triage.cards.residency import BUSY
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.words.frames import any_tag, tags, user_frame
from perfwatch.verdict import Evidence
from perfwatch_probes.readings import SourceLine, Stack

PLAIN_TENSOR = 0.1
PLAIN_MEMORY = 0.3
PLAIN_SOFTMAX = 0.6  # of DRAM and fp32 together: the scores are written, read and exponentiated
TENSOR_SEEN = 0.03  # below it no product uses them: that is the precision, not the attention
SDPA = "scaled_dot_product_attention"


def attends(case: Case, stack: Stack) -> bool:
    """Whether a stack is at attention: in a library's module for it, or at a line of the program that calls torch's."""
    if any_tag(tags(stack), "attention"):
        return True
    frame = user_frame(stack)
    seen = case.history.latest(SourceLine, frame.file, frame.line) if frame is not None else None
    return seen is not None and any(call.endswith(SDPA) for call in seen.reading.calls)


def exponentiates(card: Regime) -> bool:
    """Whether a full card hardly uses its tensor cores, but its memory and fp32 pipe, for what fused kernels keep on the chip."""
    dram, tensor = card.dram or 0.0, card.tensor or 0.0
    softmax = dram >= PLAIN_MEMORY and dram + (card.fp32 or 0.0) >= PLAIN_SOFTMAX
    return softmax and TENSOR_SEEN < tensor < PLAIN_TENSOR and (card.graphics or 0.0) >= BUSY


def seen_from_outside(case: Case, one: Accelerated, frame: str | None, calls: float) -> tuple[Evidence, ...]:
    """What speaks for it where only the card tells: the call at ``frame`` in that share of the samples, and the card's units."""
    card = one.card
    return (
        case.saw("stack", f"pid {one.rank.pid}", f"calls attention at {frame}", f"{calls:.0%} of the samples"),
        monitored(case, one, "full, and the tensor cores are not", "tensor 30 % and more with fused kernels"),
        case.saw(card.source, name_of(case.history, card.uuid), "fp32 pipe", f"{card.fp32 or 0:.0%}", "below 10 %"),
    )
