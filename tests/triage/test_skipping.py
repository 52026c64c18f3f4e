"""What counts as an optimizer's update."""

from perfwatch.probes.readings import Frame, Stack
from perfwatch.triage.rules.skipping_steps import updates

OPTIM = "/v/lib/python3.12/site-packages/torch/optim"
SGD, BASE, PROGRAM = f"{OPTIM}/sgd.py", f"{OPTIM}/optimizer.py", "/u/t.py"


def stack(*frames: tuple[str, str]) -> Stack:
    """Innermost first."""
    return Stack(
        pid=1, tid=1, frames=tuple(Frame(function, file, 1) for function, file in (*frames, ("main", PROGRAM)))
    )


def test_where_the_optimizer_is_made_or_cleared_no_step_is_made() -> None:
    """Making one imports torch._dynamo, which takes seconds: a loop whose scaler skips every step looked well for those."""
    assert updates(stack(("SGD.step", SGD)))
    assert not updates(stack(("Optimizer.__init__", BASE), ("SGD.__init__", SGD)))
    assert not updates(stack(("Optimizer.zero_grad", BASE)))
