"""``attach`` on a job that ``perfwatch run`` started: its steps are known, whoever looks."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import PERFWATCH, Attach, state, until

pytestmark = [pytest.mark.live, pytest.mark.end_to_end]
TRAINER = """
import os, torch
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    print(os.getpid(), flush=True)
    if not os.read(0, 1):
        break
"""


def test_steps_are_known_with_and_without_the_watcher(attach: Attach, tmp_path: Path) -> None:
    """From the watcher; from the agent's page in a look of our own; and after the launcher was killed."""
    if importlib.util.find_spec("torch") is None:  # found, not imported: attach looks at what its callers have loaded
        pytest.skip("needs torch")
    command = [*PERFWATCH, "run", "-q", "--session", str(tmp_path / "run"), "--", sys.executable, "-c", TRAINER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        for _ in range(6):
            run.stdin.write("s")
            run.stdin.flush()
            run.stdout.readline()
        try:
            os.kill(pid, signal.SIGSTOP)
            until(lambda: state(pid) == "T")

            asked = attach(pid)
            looked = attach(pid, "--session", str(tmp_path / "own"))
            run.kill()
            run.wait()
            orphaned = attach(pid)
        finally:
            os.kill(pid, signal.SIGKILL)

    assert [one.verdict["last_step"] for one in (asked, looked, orphaned)] == [7, 7, 7]
    assert [one.verdict["cause"] for one in (asked, looked, orphaned)] == ["stopped"] * 3
