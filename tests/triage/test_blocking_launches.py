"""CUDA_LAUNCH_BLOCKING and tracers: what they cost decides, where it can be known."""

import pytest

from perfwatch.triage.rules import debug_apis_on
from perfwatch.triage.shares.debugging_aids import UNWEIGHED
from perfwatch.triage.slowness import NOTED
from perfwatch.verdict import Finding
from perfwatch_probes.readings import Process, ProcessUsage
from tests.training import BACKWARD, FORWARD, OPTIMIZER, PID, Training

STEPS = [FORWARD, BACKWARD, OPTIMIZER]


@pytest.mark.parametrize(
    ("card", "load", "confidence"),
    [
        (False, None, NOTED),  # exported in .bashrc: there is no launch that could block
        (True, "tiny_kernels", 0.97),  # the card waits for its host
        (True, None, UNWEIGHED),  # nobody looks at the card
    ],
)
def test_blocking_launches_are_blamed_where_a_card_waits(card: bool, load: str | None, confidence: float) -> None:
    """A variable alone is no fault."""
    job = Training(card=card)
    job.add(
        Process(pid=PID, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"), python=True,
                torch_loaded=True, environment={"CUDA_LAUNCH_BLOCKING": "1"}),
    )  # fmt: skip
    found = debug_apis_on.judge(job.goes_on(30, STEPS, load=load).case())

    assert isinstance(found, Finding)
    assert found.confidence == confidence


def test_a_tracer_alone_is_noted() -> None:
    """Somebody looks at the process, and it goes on as before."""
    job = Training(card=False).goes_on(30, STEPS)
    job.add(
        ProcessUsage(pid=PID, state="R", threads=1, cpu_seconds=30.0, major_faults=0, minor_faults=0, resident_bytes=1,
                     tracer_pid=9),
    )  # fmt: skip
    found = debug_apis_on.judge(job.case())

    assert isinstance(found, Finding)
    assert found.confidence == NOTED
