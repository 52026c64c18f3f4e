"""Which threads of torch's engine tell anything of a training."""

import pytest

from perfwatch.triage.history import History
from perfwatch.triage.waits.devices import engine_threads
from perfwatch_probes.readings import Thread


@pytest.mark.parametrize(("run_seconds", "works"), [(0.00014, False), (0.002, True), (None, True)])
def test_the_engines_thread_of_a_card_that_was_never_used_tells_nothing(run_seconds: float | None, works: bool) -> None:
    """torch with CUDA makes it also for a training on the CPU, where compute threads remember the last step."""
    history = History(at=5.0)
    history.add(
        5.0,
        Thread(
            pid=7,
            tid=8,
            name="pt_autograd_0",
            state="S",
            cpu_seconds=0.0,
            run_seconds=run_seconds,
            voluntary_switches=1,
            ran_ago_seconds=14.2,
        ),
    )

    assert engine_threads(history, 7) == ([8] if works else [])
