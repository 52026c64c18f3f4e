"""What a newcomer types, and the screens: every command of README, and bad input of every kind, in ``screens.txt``.

A line ``$ COMMAND`` of that file is typed, and what follows is what is shown: stdout, stderr behind it, and an exit code that is
not 0. ``PERFWATCH_UPDATE_SCREENS=1 pytest tests/newcomer`` writes it anew: read the difference. Commands below ``# with jobs`` are
typed in a PID namespace with two jobs, one of which an orphan has outlived. Times, pids and names of sessions are made alike.
"""

import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfwatch.commands import COMMANDS
from tests.command_line import perfwatch
from tests.recorded import RECORDINGS, session_of

pytestmark = pytest.mark.live

SCREENS = Path(__file__).with_name("screens.txt")
WITH_JOBS = "# with jobs"
UPDATE = "PERFWATCH_UPDATE_SCREENS"
NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh")
END = "--end of a screen--"
# A process with a library of this name mapped is a training job; its children of this name are a loader's workers.
JOB = """
import ctypes, mmap, os, sys, time
file = open(sys.argv[1], "rb")
mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE)
def __getitem__():
    time.sleep(10**6)
def main():
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)
        __getitem__()
    if "--crash" in sys.argv:
        os._exit(1)
    while True:
        time.sleep(5)
main()
"""
ALIKE = (
    (r"\d{8}-\d{6}-\d+(-\d+)?", "SESSION"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|\b20\d\d-\d\d-\d\d\b", "TIME"),
    (r"(?<![\w.])\d+(\.\d+)? (us|ms|s|min|h|d)( \d+ (s|min|h))?(?!\w)", "N s"),
    (r"\d+(\.\d+)? (KiB|MiB|GiB)", "N MiB"),
    (r"(?<=\"python\": \")[\d.]+", "VERSION"),
    (r"(?<=\.)\d+(?=\.\d+\+)|0\.\d+\.\d+(?=$|\")", "VERSION"),
)
IN_PROCESS_NO_MORE = (["run"], ["ncu"], ["doctor"])  # these end the process, or use helpers that live on


def typed() -> Iterator[tuple[str, str, bool]]:
    """The commands of the file, what was shown, and True for those typed beside jobs."""
    command, shown, beside = "", "", False
    for line in [*SCREENS.read_text().splitlines(keepends=True), "$ "]:
        if line.startswith("$ "):
            if command:
                yield command, shown, beside
            command, shown = line[2:].strip(), ""
        elif line.startswith(WITH_JOBS):
            if command:
                yield command, shown, beside
            command, beside = "", True
        else:
            shown += line


def screens(beside: bool) -> dict[str, str]:
    """What is to be shown, by command."""
    return {command: shown for command, shown, jobs in typed() if jobs == beside}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where a newcomer works: a script that cannot be executed, two recordings, and files that are none."""
    for name, case in (("hung", "held_gil/fires/held_gil"), ("steady", "gpu_bound/fires/gpu_bound-run")):
        (tmp_path / "sessions" / name).mkdir(parents=True)
        session_of(RECORDINGS / case, tmp_path / "sessions" / name)
    (tmp_path / "train.py").write_text(JOB)
    (tmp_path / "libtorch_cpu.so").write_bytes(bytes(4096))
    (tmp_path / "notes.txt").write_text("none of these\n")
    (tmp_path / "sessions" / "torn").mkdir()
    (tmp_path / "sessions" / "torn" / "session.json").write_text('{"version": "0.')
    (tmp_path / "open.toml").write_text("hang_timeout = '2m'\n")
    (tmp_path / "open.toml").chmod(0o666)
    (tmp_path / "typo.toml").write_text("hang_timeot = '2m'\n")
    (tmp_path / "typo.toml").chmod(0o600)
    program = tmp_path / "bin" / "perfwatch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m perfwatch "$@"\n')
    program.chmod(0o755)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    """Of the newcomer, who has set nothing."""
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
    path = f"{home}/bin:{os.environ['PATH']}"
    return {
        **kept,
        "PATH": path,
        "HOME": str(home),
        "PERFWATCH_DIR": str(home / "sessions"),
        "COLUMNS": "80",
        "PERFWATCH_CONFIG": "",
    }


def alike(text: str, home: Path) -> str:
    """Without what differs from one time to the next."""
    text = (
        text.replace(str(home), "~")
        .replace(f"{sys.executable} -m perfwatch", "perfwatch")
        .replace(sys.executable, "python")
    )
    text = re.sub(r"\S*/bin/perfwatch\b", "perfwatch", text)
    for pattern, word in ALIKE:
        text = re.sub(pattern, word, text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def shown(home: Path, command: str) -> str:
    """The screen of a command."""
    words = shlex.split(command)
    if words[0] == "perfwatch" and words[1:2] not in IN_PROCESS_NO_MORE and not set(command) & set("|>;&$(*"):
        done = perfwatch(*words[1:], env=environment(home), cwd=home)
    else:
        done = subprocess.run(
            ("bash", "-c", command), env=environment(home), cwd=home, capture_output=True, text=True, timeout=60
        )
    code = f"[exit {done.returncode}]\n" if done.returncode else ""
    text = alike(done.stdout + done.stderr + code, home)
    return text if re.search(r"\bhelp\b|-h", command) else re.sub(r"(?<=\S)  +", "  ", text)


def shown_beside_jobs(home: Path, commands: list[str]) -> dict[str, str]:
    """The screens of commands that are typed where only our jobs run."""
    lines = "\n".join(f"({command}) 2>&1; echo \"[exit $?]\"; echo '{END}'" for command in commands)
    script = (
        textwrap.dedent(f"""
        cd {home}
        exec 3>&2
        {sys.executable} train.py libtorch_cpu.so --lr 1 >/dev/null 2>&1 3>&- &
        {sys.executable} train.py libtorch_cpu.so --crash >/dev/null 2>&1 3>&-
        sleep 2
    """)
        + lines
    )
    done = subprocess.run(
        (*NAMESPACE, "-c", script), env=environment(home), capture_output=True, text=True, timeout=300
    )
    screens = done.stdout.split(f"{END}\n")[:-1]
    pid = r"(?<![\w.-])[1-9]\d*(?= +root )|(?<=kill )\d+|(?<=attach )\d+|(?<=stacks )\d+|(?<=process )\d+|(?<=pid )\d+"
    found = {}
    for command, screen in zip(commands, screens, strict=True):
        text = re.sub(r"(?<=\S)  +", "  ", alike(screen.replace("[exit 0]\n", ""), home))
        found[command] = re.sub(pid, "PID", re.sub(r"(?m)^  \d+(?= +sleeps)", "  PID", text))
    return found


def compared(expected: dict[str, str], now: dict[str, str], beside: bool) -> None:
    """Fail with the difference; or write the file anew, where that is asked for."""
    if os.environ.get(UPDATE):
        known = {False: screens(False), True: screens(True), beside: now}
        parts = [*(f"$ {one}\n{text}" for one, text in known[False].items()), f"{WITH_JOBS}\n",
                 *(f"$ {one}\n{text}" for one, text in known[True].items())]  # fmt: skip
        SCREENS.write_text("".join(parts))
        return
    difference = [
        line
        for command, text in expected.items()
        for line in difflib.unified_diff(
            text.splitlines(), now[command].splitlines(), f"$ {command}", "now", lineterm=""
        )
    ]

    assert difference == [], "\n".join(difference)


def test_each_screen_is_as_it_was_reviewed(home: Path) -> None:
    """Help, errors, and what is said of recordings."""
    expected = screens(False)
    compared(expected, {command: shown(home, command) for command in expected}, False)


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare (util-linux)")
def test_each_screen_beside_jobs_is_as_it_was_reviewed(home: Path) -> None:
    """Which job is meant, and what is none."""
    if subprocess.run((*NAMESPACE, "-c", "true"), capture_output=True).returncode:
        pytest.skip("namespaces are not permitted here")
    expected = screens(True)
    compared(expected, shown_beside_jobs(home, list(expected)), True)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_screen_of_its_help(command: str) -> None:
    """And at least one command line that is wrong, or that does something."""
    commands = [typed_ for typed_, _, _ in typed()]

    assert f"perfwatch help {command}" in commands
    assert any(re.match(rf"perfwatch {command}\b(?! --help)", one) for one in commands)


def test_no_screen_shows_what_is_python_s_alone() -> None:
    """No traceback, no name of an exception with its module, no repr."""
    leaks = re.compile(r"Traceback|\[Errno|invalid literal|Error:|<class|object at 0x|None\b(?=['\",)])|internal error")

    assert [(command, leaks.findall(text)) for command, text, _ in typed() if leaks.search(text)] == []


def test_every_error_says_what_to_do() -> None:
    """A sentence behind ``perfwatch:``, and an indented line below it. ``perfwatch`` alone shows the help."""
    codes = ("[exit 2]", "[exit 3]", "[exit 77]")
    errors = [(one, text) for one, text, _ in typed() if one != "perfwatch" and any(code in text for code in codes)]

    assert [one for one, text in errors if not re.search(r"^perfwatch: .+\n  \S", text, flags=re.M)] == []
