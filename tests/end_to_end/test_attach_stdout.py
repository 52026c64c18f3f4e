"""``attach`` into a stdout that takes nothing."""

import os
import subprocess
from collections.abc import Callable

import pytest

from tests.end_to_end.conftest import StartJob, complaints

pytestmark = [pytest.mark.live, pytest.mark.end_to_end]

Attaching = Callable[..., "subprocess.Popen[str]"]


@pytest.mark.parametrize("json_", [(), ("--json",)])
def test_a_closed_stdout_is_met_without_a_traceback(job: StartJob, attaching: Attaching, json_: tuple[str]) -> None:
    """``perfwatch attach PID | true``."""
    trainer = job()
    trainer.stop()
    reader, writer = os.pipe()
    os.close(reader)
    look = attaching(trainer.pid, *json_, stdout=writer)
    os.close(writer)

    _, err = look.communicate(timeout=60)

    assert look.returncode == 141
    assert complaints(err) == []


@pytest.mark.parametrize("json_", [(), ("--json",)])
def test_a_full_stdout_does_not_cost_the_verdict(job: StartJob, attaching: Attaching, json_: tuple[str]) -> None:
    """It is told on stderr."""
    trainer = job()
    trainer.stop()
    with open("/dev/full", "w") as full:
        look = attaching(trainer.pid, *json_, stdout=full)

    _, err = look.communicate(timeout=60)

    assert look.returncode == 74
    assert "stopped" in err
    assert "perfwatch: cannot write to stdout: No space left on device" in err
