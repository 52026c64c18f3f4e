"""Matrix products run in full precision: the tensor cores are idle."""

from functools import partial

from perfwatch.triage.cards.accelerated import Accelerated, accelerated, monitored, slow_on_gpu
from perfwatch.triage.cards.gpu import Regime
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.traced import trace_of
from perfwatch.triage.slowness import NOTED
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import any_tag, tags, user_frames
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import GpuActivity, Stack

CAUSE = Cause("wrong_precision", "slow", "user_code", (GpuActivity,))

# Measured on H200: an fp32 matrix product 0.77 fp32, 0.00 tensor, 0.03 DRAM; a decoder in fp32 0.64, 0.04 (attention) and 0.08;
# elementwise work 0.02, 0.00 and 0.88; plain attention in bf16 0.40, 0.045 and 0.37.
ARITHMETIC, MUCH_ARITHMETIC = 0.25, 0.4
TENSOR, LITTLE_TENSOR = 0.03, 0.06
LITTLE_MEMORY = 0.3
MEMORY = 0.6
SPEED_UP = 0.8  # of the time in those products: TF32 is eight times as fast on the cards that have it
ITERATES = 0.3  # of the looks without any traffic
LAYERS = ("forward", "attention", "eager_attention", "convolution")
PRODUCTS = frozenset(
    "matmul mm bmm addmm baddbmm einsum linear bilinear conv1d conv2d conv3d scaled_dot_product_attention".split()
)
SURE, UNSEEN = 0.9, 0.75  # it trains, but by graphs or compiled functions: what it computes was not seen


def judge(case: Case) -> Outcome:
    """Fires on a busy card whose arithmetic passes its tensor cores by."""
    for one in accelerated(case):
        card = one.card
        pipe, used = max((("fp32", card.fp32 or 0.0), ("fp64", card.fp64 or 0.0)), key=lambda kind: kind[1])
        if card.tensor is None or used < ARITHMETIC or (card.dram or 0.0) >= MEMORY or not _idle(card, used):
            continue
        if card.spinning >= ITERATES:
            continue  # no data moves: a kernel iterates in its registers, and no matrix product is like that
        name = name_of(case.history, card.uuid)
        advice = (
            'torch.set_float32_matmul_precision("high"), or torch.autocast("cuda", dtype=torch.bfloat16)'
            if pipe == "fp32"
            else "a NumPy array or a default of float64 came in: convert to float32, then use autocast"
        )
        return slow_on_gpu(
            case,
            CAUSE,
            one,
            lost=SPEED_UP * used,
            confidence=_certainty(case, one),
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


def _idle(card: Regime, used: float) -> bool:
    """Whether the tensor cores do nothing, or nearly nothing beside arithmetic that is plainly what fills the card."""
    tensor = card.tensor or 0.0
    plain = used >= MUCH_ARITHMETIC and (card.dram or 0.0) < LITTLE_MEMORY
    return tensor <= TENSOR or (tensor <= LITTLE_TENSOR and plain)


def _certainty(case: Case, one: Accelerated) -> float:
    """How sure it is that the arithmetic is products of matrices: by a trace, by the stacks, or because something trains."""
    trace, whole = trace_of(case, one.rank.pid), case.profile(one.rank)
    if (trace is not None and trace.full_precision_gemm_share) or whole.share_where(partial(_multiplies, case)) > 0.0:
        return SURE
    steps = case.steps(one.rank)
    trains = (steps is not None and steps.count > 0) or whole.seen("backward", "optimizer", "graph_replay")
    return UNSEEN if trains else NOTED


def _multiplies(case: Case, stack: Stack) -> bool:
    """Whether a stack is in a layer of a model, or at a line that multiplies matrices."""
    if any_tag(tags(stack), *LAYERS):
        return True
    lines = (line_of(case.history, frame) for frame in user_frames(stack))
    return any(line is not None and (names(line.calls) & PRODUCTS or " @ " in line.text) for line in lines)


RULES = (Rule(CAUSE, judge),)
