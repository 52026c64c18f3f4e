"""A stream that stops at something which never comes: the card has nothing to do, and the thread that waits for it spins."""

import pytest

from perfwatch_probes.readings import Frame, SourceLine, Thread
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, READS_LOSS, TORCH, TRAIN, Training

STEP = (FORWARD, BACKWARD, OPTIMIZER, READS_LOSS)
SYNCHRONISES = (Frame("synchronize", f"{TORCH}/cuda/streams.py", 108), Frame("train", TRAIN, 31))


def waits(seconds: float, at: tuple[Frame, ...] = READS_LOSS, load: str = "idle_context", **line: object) -> Training:
    """A loop at work for ten seconds, which then spins at one line."""
    job = Training()
    if line:
        job.add(SourceLine(file=TRAIN, line=20, **line))  # type: ignore[arg-type]
    job.goes_on(10.0, STEP, load="bf16_matmul", engine=0.5)
    return job.goes_on(seconds, [at], load=load, engine=0.0)


@pytest.mark.parametrize("at", [READS_LOSS, SYNCHRONISES])
def test_who_waits_for_a_card_with_nothing_to_do_hangs_when_the_patience_is_over(at: tuple[Frame, ...]) -> None:
    """At the reading of a loss as at a call that synchronises; until then it is suspected."""
    early, late = waits(40.0, at).verdict(), waits(70.0, at).verdict()

    assert (early.state, early.suspect.cause if early.suspect else None) == ("inconclusive", "stuck_kernel")
    assert (late.state, late.cause) == ("hung", "stuck_kernel")
    assert "nothing to do" in late.summary
    assert late.culprits[0].frame is not None
    assert late.culprits[0].frame.startswith("train (train.py:")


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("spectrum = torch.linalg.svd(weights).S.sum().item()", ("item", "sum", "torch.linalg.svd")),
        ("kinds = labels.unique().tolist()", ("tolist", "labels.unique")),
        ("best = sorted(scores)[0].item()", ("item", "sorted")),
    ],
)
def test_a_line_that_may_compute_on_the_host_is_no_wait_for_a_card(text: str, calls: tuple[str, ...]) -> None:
    """The same names are called on tensors in host memory, and what else the line calls may take its time."""
    assert waits(70.0, text=text, calls=calls).verdict().state != "hung"


def test_a_card_that_had_work_a_moment_ago_serves_the_thread() -> None:
    """A long kernel, and then a pause."""
    job = waits(50.0, load="fp32_matmul").goes_on(20.0, [READS_LOSS], load="idle_context", engine=0.0)

    assert job.verdict().state != "hung"


def test_a_thread_that_works_meanwhile_may_be_what_the_stream_waits_for() -> None:
    """A host function that writes out what the card has made."""
    job = waits(70.0)
    for second in range(10, 80):
        one = Thread(pid=PID, tid=PID + 9, name="cuda", state="R", cpu_seconds=0.5 * second, run_seconds=0.5 * second)
        job.history.add(float(second), one)

    assert job.verdict().state != "hung"
