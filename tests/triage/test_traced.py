"""A trace in the recording makes a finding surer and names what counters and stacks cannot: a module, a kernel, a line."""

from typing import Any

import pytest

from perfwatch.triage.rules import slow_attention_fallback
from perfwatch.triage.shares.traced import LONGEST_AGO_SECONDS, sharpened
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Culprit, Finding
from perfwatch_probes.readings import HostShare, KernelShare, SourceLine, SyncPoint, TorchTrace
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, TRAIN, Training

ALLREDUCE = KernelShare(
    name="ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    family="collective",
    part="backward",
    count=50,
    seconds=0.0065,
    exposed_seconds=0.0041,
)
SAYS: dict[str, tuple[dict[str, Any], str]] = {
    "host_bound_python": (
        {
            "launch_bound_share": 0.4,
            "idle": {"python": 0.3, "forward": 0.1},
            "idle_modules": (HostShare(name="Block_3", count=9, seconds=0.02),),
        },
        "Block_3",
    ),
    "synchronising": (
        {"syncs": (SyncPoint(call="cudaStreamSynchronize", where="train.py(30): log", count=5, seconds=0.03),)},
        "train.py(30): log",
    ),
    "exposed_communication": ({"exposed_communication_share": 0.2, "kernels": (ALLREDUCE,)}, ALLREDUCE.name),
    "copy_bound": ({"exposed_copy_share": 0.3, "pageable_copies": 12}, "12 copies from pageable memory"),
    "wrong_precision": (
        {
            "full_precision_gemm_share": 0.7,
            "kernels": (
                KernelShare(name="ampere_sgemm_128x64_nn", family="gemm", part="forward", count=9, seconds=0.05),
            ),
        },
        "ampere_sgemm_128x64_nn",
    ),
    "starved_by_transforms": ({"gpu_busy_share": 0.5, "idle": {"data": 0.5}}, ""),
    "starved_by_storage": ({"step_seconds": 0.2, "phases": {"data": 0.13, "forward": 0.05}}, ""),  # on the CPU
}


def finding(cause: str) -> Finding:
    """What a rule says by itself."""
    return Finding(
        cause=cause, state="slow", summary="slow it is", confidence=0.8, culprits=(Culprit(pid=PID, rank=0),)
    )


def trace(**says: Any) -> TorchTrace:
    """A tenth of a second of rank 0."""
    return TorchTrace(pid=PID, rank=0, window_seconds=0.1, steps=5, **says)


@pytest.mark.parametrize("cause", SAYS)
def test_trace_that_agrees_makes_surer_and_names(cause: str) -> None:
    """One more witness in the evidence, half of the doubt gone, and the name in the summary."""
    says, name = SAYS[cause]
    training = Training(card=False)
    training.add(trace(**says))
    sharp = sharpened(training.case(), finding(cause))

    assert sharp.confidence == 0.88
    assert [one.witness for one in sharp.evidence] == ["torch_trace"]
    assert name in sharp.summary


@pytest.mark.parametrize("cause", SAYS)
def test_trace_that_says_nothing_of_it_changes_nothing(cause: str) -> None:
    """Nor does one of long ago, nor none at all."""
    training = Training(card=False)
    before = sharpened(training.case(), finding(cause))
    training.add(trace(**SAYS[cause][0]))
    training.history.at += LONGEST_AGO_SECONDS + 1
    training.add(trace().__class__(pid=PID + 1, window_seconds=0.1))

    assert before == finding(cause)
    assert sharpened(training.case(), finding(cause)) == finding(cause)


def test_cause_of_which_no_trace_speaks_stays_as_it_is() -> None:
    """A dead worker is not deader by it."""
    training = Training(card=False)
    training.add(trace(**SAYS["host_bound_python"][0]))

    assert sharpened(training.case(), finding("dead_worker")) == finding("dead_worker")


def trained(**says: Any) -> Training:
    """A job whose card is full, and a trace of it."""
    training = Training().steps(10, *([0.1] * 9))
    training.goes_on(8, (FORWARD, BACKWARD, OPTIMIZER), load="elementwise")
    training.steps(90, *([0.1] * 60))
    training.add(trace(**says))
    return training


def test_plain_attention_in_a_trace_is_proof() -> None:
    """No counter and no stack shows which kernel torch chose; the trace does, with its share of the card."""
    outcome = slow_attention_fallback.judge(trained(math_attention_calls=36, math_attention_share=0.25).case())

    assert isinstance(outcome, Finding)
    assert outcome.cause == "slow_attention_fallback"
    assert "36 times" in outcome.evidence[0].observed
    assert outcome.confidence > 0.6


def test_the_line_that_calls_attention_is_to_blame_where_it_was_seen() -> None:
    """A trace knows no lines of the program; the samples may."""
    training = trained(math_attention_calls=36, math_attention_share=0.25)
    (line,) = {frame for frame in FORWARD if frame.file == TRAIN}
    training.add(SourceLine(file=TRAIN, line=line.line, text="", calls=("F.scaled_dot_product_attention",)))
    seen, unseen = (slow_attention_fallback.judge(one.case()) for one in (training, trained(math_attention_share=0.2)))

    assert isinstance(seen, Finding)
    assert isinstance(unseen, Finding)
    assert [one.frame for one in seen.culprits] == [show(line)]
    assert [one.frame for one in unseen.culprits] == [None]


def test_fused_attention_in_a_trace_clears_it() -> None:
    """A kernel of the attention family ran: it is something else."""
    outcome = slow_attention_fallback.judge(
        trained(math_attention_calls=0, math_attention_share=0.0, families={"attention": 0.2, "gemm": 0.8}).case()
    )

    assert not isinstance(outcome, Finding)
