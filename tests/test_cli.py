"""The command line as a user meets it: sentences, advice, exit codes, and a clean stdout."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest

from perfwatch import __version__
from perfwatch.cli import app
from perfwatch.commands import COMMANDS, SECTIONS
from perfwatch.errors import PerfwatchError
from perfwatch.processes.reinvoke import own_command
from perfwatch.top.started_watch import StartedWatch
from tests.command_line import perfwatch
from tests.recorded import RECORDINGS, session_of
from tests.sessions import record

pytestmark = pytest.mark.live

NAMES = list(COMMANDS)
HEAVY = ("rich", "pynvml", "psutil", "msgspec", "torch", "perfwatch.recording.recording", "perfwatch.triage")


def process(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "perfwatch", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "80", **environment},
    )


def test_version() -> None:
    """One line."""
    assert process("--version").stdout == f"perfwatch {__version__}\n"


def test_help_lists_every_command_with_a_whole_sentence() -> None:
    """In the order of the catalogue, none of them cut short."""
    lines = process("--help").stdout.splitlines()
    sections = {title: list(takewhile(str.strip, lines[lines.index(f"{title}:") + 1 :])) for title in SECTIONS}

    assert {title: tuple(line.split()[0] for line in listed) for title, listed in sections.items()} == SECTIONS
    assert [line for listed in sections.values() for line in listed if not line.endswith(".")] == []


@pytest.mark.parametrize("name", NAMES)
def test_help_is_within_80_columns(name: str) -> None:
    """Examples included, for they are what gets copied."""
    assert [line for line in process(name, "--help").stdout.splitlines() if len(line) > 80] == []


def test_explain_knows_the_forms_of_a_cause_by_their_own_words() -> None:
    """A verdict may say ``restart_loop``."""
    told = perfwatch("explain", "restart_loop").stdout

    assert told.startswith("retrying (slow;")
    assert "restarts the ranks" in told


def test_explain_lists_the_causes_of_a_state() -> None:
    """And of no other; their documentation quotes as a terminal does."""
    told = perfwatch("explain", "Hung").stdout

    assert told.startswith("hung:\n")
    assert "stuck_worker" in told
    assert "recompiling" not in told
    assert "``" not in perfwatch("explain", "stuck_worker").stdout


def test_help_loads_nothing_heavy() -> None:
    """What makes ``--help`` slow is what it imports."""
    code = "import sys, perfwatch.cli; print([name for name in sys.argv[1:] if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True)

    assert loaded.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says", "advises"),
    [
        (("explain", "stuck-workr"), 2, "there is no cause stuck-workr", "did you mean stuck_worker"),
        (("replay", "/nowhere/s"), 2, "/nowhere/s is not a perfwatch session", "session.json"),
        (("bundle", "/nowhere/s"), 2, "/nowhere/s is not a perfwatch session", "session.json"),
        (("doctor", "4194303"), 3, "no process 4194303", "perfwatch ps"),
        (("attach", "4194303"), 3, "no process 4194303", "perfwatch ps"),
        (("replay", "--at", "3", "--final"), 2, "two moments", "one of them"),
        (("drill", "stuck_worker", "--repeat", "5"), 2, "--repeat needs --all", "perfwatch drill --all"),
        (("drill", "--all", "--resume"), 2, "none is named", "add -o FOLDER"),
        (("run", "--notify", "http://", "--", "true"), 2, "it names no host", "--notify @"),
        (("daemon", "--directory", "/proc/x"), 2, "no recording can be written", "a local disk"),
        (("capture", "torch", "4194303", "--rank", "0,\u00b2"), 2, "--rank 0,\u00b2: numbers", "--rank 0,3"),
    ],
)
def test_bad_input_gets_a_sentence_an_advice_and_its_exit_code(
    arguments: tuple[str, ...], code: int, says: str, advises: str
) -> None:
    """All of it on stderr, so that nothing is parsed by mistake."""
    result = perfwatch(*arguments)

    assert result.returncode == code
    assert result.stdout == ""
    assert says in result.stderr
    assert advises in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [("frobnicate",), ("capture",), ("doctor", "--strickt"), ("ps", "--jsno")])
def test_usage_errors_are_exit_code_2(arguments: tuple[str, ...]) -> None:
    """As the README says, whoever finds them."""
    assert perfwatch(*arguments).returncode == 2


def test_a_reader_that_leaves_early_is_no_error_of_ours() -> None:
    """``perfwatch explain | head -1``: no traceback, whatever is buffered."""
    command = f"{sys.executable} -m perfwatch explain | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)

    assert result.stdout in ("141\n", "0\n")  # 0: all was in the pipe before its reader left
    assert result.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [("ps",), ("replay",), ("replay", "--json")], ids=" ".join)
def test_a_full_stdout_is_said_to_be(tmp_path: Path, arguments: tuple[str, ...], unbuffered: str) -> None:
    """However it is buffered."""
    rest = (str(record(tmp_path / "s")),) if "replay" in arguments else ()
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "perfwatch", *arguments, *rest],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip

    assert done.returncode == 74
    assert done.stderr.startswith("perfwatch: cannot write to stdout: No space left on device\n")


def command(*body: str) -> "subprocess.CompletedProcess[str]":
    """A command of ours that does this."""
    lines = ("from perfwatch import cli", "@cli.command", "def it():", *(f"    {line}" for line in body))
    code = "\n".join((*lines, "cli.main(['it'])", ""))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_too_few_open_files_are_said_to_be() -> None:
    """With the limit, and how to raise it."""
    result = command(
        "import os, resource",
        "resource.setrlimit(resource.RLIMIT_NOFILE, (12, 2000))",
        "files = [os.dup(0) for _ in range(13)]",
    )

    assert result.returncode == 1
    assert (
        result.stderr
        == "perfwatch: the limit on open files is too low: 12\n  raise it, if need be as root: ulimit -n 1024\n"
    )


def test_ctrl_c_ends_quietly(tmp_path: Path) -> None:
    """130 and no traceback, here while a session is looked for on a FIFO that nobody writes."""
    os.mkfifo(tmp_path / "slow")
    code = (
        "import sys, os\n"
        "from perfwatch import cli\n"
        "@cli.command\n"
        "def wait():\n"
        "    print('ready', flush=True)\n"
        "    open(sys.argv[2])\n"
        "cli.main(['wait'])\n"
    )
    waiting = subprocess.Popen(
        [sys.executable, "-c", code, "wait", str(tmp_path / "slow")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "ready\n"
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=60)

    assert waiting.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize("arguments", [("ps",), ("run", "--", "true")], ids=" ".join)
def test_ctrl_c_while_perfwatch_is_still_being_loaded_ends_quietly(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Here in the first import of a library, and of the launcher."""
    for name in ("click", "select"):
        (tmp_path / f"{name}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")

    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from perfwatch.__main__ import main; main()"
    done = subprocess.run((sys.executable, "-c", program, str(tmp_path), *arguments), capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("error", ["ZeroDivisionError", "PermissionError"])
def test_an_internal_error_says_where_and_that_the_job_is_safe(error: str) -> None:
    """One sentence for the user, the traceback for whoever asks for it; one that names no file is nobody's file."""
    result = command(f"raise {error}('of ours')")

    assert result.returncode == 1
    assert f"internal error: {error}: of ours (in it, <string>:4)" in result.stderr
    assert "the job is not touched" in result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(shell: str) -> None:
    """The script for the user's shell is printed on request."""
    result = process("--completion", shell)

    assert "_PERFWATCH_COMPLETE" in result.stdout


@pytest.mark.parametrize("name", ["explain", "drill"])
def test_names_of_causes_and_drills_are_completed(name: str) -> None:
    """What a shell asks when the user presses the tab key."""
    words = {"COMP_WORDS": f"perfwatch {name} stuck_w", "COMP_CWORD": "2", "_PERFWATCH_COMPLETE": "bash_complete"}
    program = Path(sys.executable).with_name("perfwatch")
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, env={**os.environ, **words})

    assert "plain,stuck_worker" in done.stdout.split()


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
@pytest.mark.parametrize("arguments", [("replay",), ("replay", "--json"), ("top", "--once")], ids=" ".join)
def test_letters_that_stdout_has_not_cost_neither_the_verdict_nor_its_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], encoding: str
) -> None:
    """A job with Japanese words in its command, shown where the locale is another: a question mark for each letter."""
    for path in session_of(RECORDINGS / "held_gil" / "fires" / "held_gil", tmp_path).iterdir():
        path.write_text(path.read_text().replace("held_gil_sleep.py", "\u5b66\u7fd2.py"))
        os.utime(path, (1.0, 1.0))  # of a watch that writes no more
    plain = process(arguments[0], str(tmp_path), *arguments[1:], PYTHONIOENCODING="utf-8")
    done = process(arguments[0], str(tmp_path), *arguments[1:], PYTHONIOENCODING=encoding)

    assert (done.returncode, done.stderr) == (plain.returncode, "")
    assert "held_gil" in done.stdout
    assert "??.py" in done.stdout


ITS_NAMES = ("click", "msgspec", "json", "perfwatch", "sitecustomize")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder with modules of common names, each of which would leave a trace."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in ITS_NAMES:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'executed')!r}, 'a').write(__name__)\nraise SystemExit(9)\n"
        )
    return folder


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that can be watched."""
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


def test_top_runs_no_module_of_the_working_directory(hostile: Path, tmp_path: Path, sleeper: int) -> None:
    """Neither when it is started nor in the watch that it starts."""
    environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path / "sessions")}
    command = [*own_command(), "top", str(sleeper), "--once"]
    done = subprocess.run(command, cwd=hostile, env=environment, capture_output=True, text=True, timeout=60)

    assert not (tmp_path / "executed").exists()
    assert (done.returncode, done.stderr) == (0, "")


def test_watch_that_ends_before_it_begins_is_told_so(
    tmp_path: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With how it ended and its last line; its exit code is none of ours."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho Traceback >&2\necho 'ImportError: no such thing' >&2\nexit 9\n")
    broken.chmod(0o700)
    monkeypatch.setenv("PERFWATCH_DIR", str(tmp_path / "sessions"))
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(PerfwatchError) as raised, StartedWatch(sleeper):
        pass

    assert str(raised.value) == "the watch ended at once (exit code 9): ImportError: no such thing"
    assert raised.value.exit_code == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_option_that_takes_a_value_says_which(name: str) -> None:
    """A metavar of its own, not the name of a type."""
    context = app.make_context("perfwatch", [name])
    found = app.get_command(context, name)
    assert found is not None
    options = [param for param in found.params if isinstance(param, click.Option) and not param.is_flag]

    assert [param.opts[0] for param in options if not param.metavar and not param.hidden] == []
