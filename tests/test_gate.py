"""The gate on model FLOPs utilisation: what fails it, what it cannot say, and what it leaves alone."""

import pytest

from perfwatch.errors import UsageError
from perfwatch.gate import Model, checked, gated, told
from perfwatch.recording.recording import Recording
from perfwatch.verdict import Efficiency, ModelFigures, Spread, Verdict
from tests.sessions import session, verdict


def reached(share: float | None, state: str = "healthy") -> Verdict:
    """A verdict with this model FLOPs utilisation."""
    mfu = None if share is None else Spread(p50=share, p95=share, p99=share)
    model = ModelFigures(mfu=mfu, missing="" if mfu else "no step times")
    return verdict(state=state, cause="gpu_bound", efficiency=Efficiency(model=model))


@pytest.mark.parametrize(
    ("share", "state", "code"),
    [
        (0.34, "healthy", 60),
        (0.36, "healthy", 0),
        (0.34, "slow", 60),
        (0.36, "slow", 20),
        (None, "healthy", 50),
        (0.10, "hung", 30),
    ],
)
def test_a_job_that_goes_on_is_held_against_the_gate(share: float | None, state: str, code: int) -> None:
    """What is hung says so by its own code; what cannot be measured is no success."""
    assert gated(reached(share, state), 35.0)[0] == code


def test_without_a_gate_the_state_alone_gives_the_code() -> None:
    """And nothing is said."""
    assert gated(reached(0.01), None) == (0, "")


def test_a_gate_without_a_model_is_a_mistake_on_the_command_line() -> None:
    """Parameters cannot be seen from outside."""
    with pytest.raises(UsageError, match="needs to know the model"):
        checked(Model(), 35.0)
    assert checked(Model(), 35.0, recorded=True) == {}


@pytest.mark.parametrize(
    "model", [Model(params=8e9), Model(params=8e9, tokens_per_step=4e6, layers=32), Model(layers=3)]
)
def test_what_belongs_together_is_given_together(model: Model) -> None:
    """Half of it would give a wrong figure."""
    with pytest.raises(UsageError, match="belong together"):
        model.conditions()


def test_a_recording_is_told_of_its_model_afterwards() -> None:
    """The gate can be asked of a recording that knew nothing of it."""
    recording = told(Recording(session(conditions={"world_size": 2})), {"params": 8e9, "tokens_per_step": 4e6})

    assert recording.session.conditions == {"world_size": 2, "params": 8e9, "tokens_per_step": 4e6}
