"""``run`` ends exactly as its child ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.supervise.conftest import Launch

pytestmark = pytest.mark.live


@pytest.mark.parametrize("code", [0, 7, 255])
def test_exit_code_is_the_childs(launch: Launch, code: int) -> None:
    """Whatever the child exits with, the launcher exits with."""
    assert launch("sh", "-c", f"exit {code}").end() == code


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGRTMIN])
def test_signal_of_the_child_ends_the_launcher_too(launch: Launch, number: int) -> None:
    """A parent sees the same signal as if it had started the child itself."""
    assert launch("sh", "-c", f"kill -{int(number)} $$").end() == -number


def test_missing_command_is_127(launch: Launch) -> None:
    """A command that does not exist ends with 127 and one line that names it, as in a shell."""
    for name, shown in (("no-such-command", "no-such-command"), ("", "''"), ("a\udcff", "a\\xff")):
        run = launch(name)

        assert run.end() == 127
        assert run.rest() == ("", f"perfwatch: {shown}: command not found\n")


def test_command_that_cannot_be_executed_is_126(launch: Launch, tmp_path: Path) -> None:
    """A file without execute permission ends with 126."""
    plain = tmp_path / "plain"
    plain.write_text("exit 0\n")

    assert launch(str(plain)).end() == 126


def test_script_without_interpreter_line_is_given_to_sh(launch: Launch, tmp_path: Path) -> None:
    """What a shell, env(1) and nohup(1) can start, run can start."""
    script = tmp_path / "script"
    script.write_text("echo from $1\nexit 3\n")
    script.chmod(0o700)
    run = launch(str(script), "sh")

    assert (run.line(), run.end()) == ("from sh", 3)


def test_a_child_that_dumps_core_leaves_no_second_core_of_the_launcher(launch: Launch, tmp_path: Path) -> None:
    """The launcher re-raises SIGSEGV on itself but is not dumpable then."""
    run = launch("sh", "-c", "ulimit -c 0; kill -SEGV $$", cwd=tmp_path)

    assert run.end() == -signal.SIGSEGV
    assert [path for path in tmp_path.iterdir() if "core" in path.name] == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root for a PID namespace")
@pytest.mark.parametrize(("script", "code"), [("exit 5", 5), ("kill -KILL $$", 137)])
def test_as_pid_1_it_exits_with_128_plus_the_signal(tmp_path: Path, script: str, code: int) -> None:
    """In a container no signal of its own ends PID 1: the exit code tells, as shells have it."""
    command = [sys.executable, "-m", "perfwatch", "run", "-q", "--", "sh", "-c", script]
    environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path)}
    done = subprocess.run(["unshare", "-fp", "--mount-proc", *command], env=environment, timeout=30)

    assert done.returncode == code


@pytest.mark.skipif(os.getuid() != 0, reason="needs root for a PID namespace")
def test_as_pid_1_it_reaps_orphans(tmp_path: Path) -> None:
    """A grandchild that outlives its parent does not stay a zombie."""
    program = (
        "import os, time, glob\n"
        "reader, writer = os.pipe()\n"
        "middle = os.fork()\n"
        "if middle == 0:\n"
        "    orphan = os.fork()\n"
        "    if orphan == 0:\n"
        "        os.close(writer); os._exit(0)\n"
        "    os.write(writer, str(orphan).encode()); os._exit(0)\n"
        "os.waitpid(middle, 0)\n"
        "orphan = os.read(reader, 20).decode()\n"
        "deadline = time.monotonic() + 20\n"
        "while os.path.exists('/proc/' + orphan) and time.monotonic() < deadline: time.sleep(0.01)\n"
        "print('reaped' if not os.path.exists('/proc/' + orphan) else 'zombie')\n"
    )
    command = [sys.executable, "-m", "perfwatch", "run", "-q", "--", sys.executable, "-c", program]
    environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path)}
    done = subprocess.run(
        ["unshare", "-fp", "--mount-proc", *command], env=environment, timeout=60, capture_output=True, text=True
    )

    assert done.stdout == "reaped\n"
