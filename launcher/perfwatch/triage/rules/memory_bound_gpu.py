"""The GPU's memory is the bottleneck: its bandwidth is used up while the arithmetic units wait."""

from perfwatch.triage.cards.accelerated import accelerated, monitored, slow_on_gpu
from perfwatch.triage.cards.hardware import dram_peak_bytes_per_second
from perfwatch.triage.cards.residency import BUSY
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Gpu, GpuSample

CAUSE = Cause("memory_bound_gpu", "slow", "user_code", (GpuSample,))

# Measured on H200: elementwise work on large tensors 0.67 to 0.88, attention that is written out 0.58 to 0.62 beside 0.16 of the
# tensor cores; a decoder in bf16 0.37 beside 0.23.
MEMORY = 0.55
TENSOR = 0.3
OF_BANDWIDTH = 0.77  # of NVML's memory utilisation, where a card's units cannot be seen (measured 0.70 to 0.89)
WEIGHS = 0.5  # of the traffic: fusion saves about half of it


def judge(case: Case) -> Outcome:
    """Fires on a busy card whose memory is the bottleneck."""
    for one in accelerated(case):
        card = one.card
        used = card.dram if card.dram is not None else OF_BANDWIDTH * (card.memory_utilisation or 0.0)
        if used < MEMORY or (card.tensor or 0.0) >= TENSOR or (card.graphics or 0.0) < BUSY:
            continue
        name = name_of(case.history, card.uuid)
        described = case.history.latest(Gpu, card.uuid)
        peak = dram_peak_bytes_per_second(described.reading) if described is not None else None
        rate = "" if peak is None else f", {used * peak / 1e9:,.0f} GB/s"
        return slow_on_gpu(
            case,
            CAUSE,
            one,
            lost=WEIGHS * used,
            confidence=0.75 + 0.2 * min(1.0, (used - MEMORY) / (1.0 - MEMORY) * 2),
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


RULES = (Rule(CAUSE, judge),)
