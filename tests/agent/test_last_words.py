"""The agent keeps the words of a crash, and a program ends and says what it would without it."""

import signal
from pathlib import Path

import pytest

from tests.agent.conftest import Run

pytestmark = pytest.mark.live


def test_traceback_on_stderr_is_unchanged_and_kept(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """The crash reads as without us, byte for byte, and its text is in crash-PID.txt."""
    program = "import torch\ndef train():\n    raise ValueError('loss is nan')\ntrain()\n"
    plain = run(interpreter, program, hook_api, armed=False)
    done = run(interpreter, program, hook_api)
    (crash,) = agent_directory.glob("crash-*.txt")

    assert (done.returncode, done.stderr) == (1, plain.stderr)
    assert crash.read_text() == plain.stderr
    assert crash.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("armed", [True, False])
def test_a_program_that_ctrl_c_ends_is_ended_by_that_signal(
    interpreter: str, run: Run, hook_api: Path, armed: bool
) -> None:
    """As without us: shells and schedulers look at how it ended."""
    done = run(interpreter, "import torch, os, signal\nos.kill(os.getpid(), signal.SIGINT)\n", hook_api, armed=armed)

    assert done.returncode == -signal.SIGINT


def test_crash_text_is_bounded_and_keeps_its_end(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """16 KiB at most; the exception itself stands at the end."""
    run(interpreter, "import torch\nraise ValueError('x' * 100_000 + ' the end')", hook_api)
    (crash,) = agent_directory.glob("crash-*.txt")

    assert crash.stat().st_size == 16 * 1024
    assert crash.read_text().endswith("the end\n")


def test_error_that_ends_a_thread_is_kept_and_reads_as_without_us(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """The program goes on: it is no crash."""
    program = (
        "import torch, threading\ndef produce():\n    raise ValueError('bad shard')\n"
        "one = threading.Thread(target=produce, name='producer')\none.start()\none.join()\nprint('goes on')\n"
    )
    plain = run(interpreter, program, hook_api, armed=False)
    done = run(interpreter, program, hook_api)
    (kept,) = agent_directory.glob("*.txt")

    assert (done.returncode, done.stdout, done.stderr) == (0, "goes on\n", plain.stderr)
    assert kept.name.startswith("thread-")
    assert kept.read_text().endswith("ValueError: bad shard\n")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_thread_that_asks_to_end_leaves_no_error(
    interpreter: str, run: Run, agent_directory: Path, hook_api: Path
) -> None:
    """SystemExit ends a thread in silence."""
    run(
        interpreter,
        "import torch, sys, threading\none = threading.Thread(target=sys.exit)\none.start()\none.join()",
        hook_api,
    )

    assert list(agent_directory.glob("*.txt")) == []


def test_excepthook_that_was_set_before_is_called(interpreter: str, run: Run, hook_api: Path) -> None:
    """A hook of the user runs as it would without us."""
    program = "import sys\nsys.excepthook = lambda *_: print('mine')\nimport torch\n1 / 0\n"

    assert run(interpreter, program, hook_api).stdout == "mine\n"
