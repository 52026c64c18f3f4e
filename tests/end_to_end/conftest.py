"""A cheap training job, and ``perfwatch attach`` on it as a user would call it. Every wait is for a word or an end."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from perfwatch.processes.place import start_ticks
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.process import tree

PATIENCE_SECONDS = (
    180.0  # a deadline for broken code, never a wait: a job that imports torch is hung after 60 s on a crowded machine
)
PERFWATCH = (sys.executable, "-m", "perfwatch")
NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")
TRAINER = Path(__file__).parent / "trainer.py"
FAKE_TORCH = {
    "__init__.py": "",
    "autograd/__init__.py": "import time\n\ndef backward():\n    sum(range(20000))\n    time.sleep(0.01)\n",
    "optim/__init__.py": "from torch.optim.optimizer import step\n",
    "optim/optimizer.py": "def step():\n    sum(range(20000))\n",
}


@dataclass
class Job:
    """A running trainer."""

    process: "subprocess.Popen[str]"
    pid: int
    workers: list[int]
    born: dict[int, int | None] = field(default_factory=dict)

    def say(self, letter: str) -> None:
        """Tell it something."""
        assert self.process.stdin is not None
        self.process.stdin.write(letter)
        self.process.stdin.flush()

    def line(self) -> str:
        """What it prints next; fails when nothing comes."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_SECONDS)
        assert ready, f"the job {self.pid} is silent"
        return self.process.stdout.readline().strip()

    def steps(self) -> int:
        """How many steps it has made so far."""
        self.say("s")
        return int(self.line())

    def stop(self) -> None:
        """SIGSTOP, and wait until it is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: state(self.pid) == "T")

    def finish(self) -> int:
        """Have it end; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_SECONDS)


@dataclass
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str
    verdict: dict[str, Any] = field(default_factory=dict)

    @property
    def complaints(self) -> list[str]:
        """What stderr has beside the lines that say what goes on."""
        return complaints(self.err)

    @property
    def missing(self) -> dict[str, str]:
        """Witnesses that were not there: name to reason."""
        return {one["source"]: one["reason"] for one in self.verdict["not_observed"]}


def complaints(err: str) -> list[str]:
    """The lines of a stderr that are no status of ``attach``."""
    return [line for line in err.splitlines() if "attaching to pid" not in line and " sampled for " not in line]


StartJob = Callable[..., Job]
Attach = Callable[..., Answer]


def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    """Look again and again until something outside is so; fails when it never is."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it never came to be")
        select.select([], [], [], 0.01)


def state(pid: int) -> str:
    """The state letter of a process; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def needs_root() -> pytest.MarkDecorator:
    """For tests that change user or mount something."""
    return pytest.mark.skipif(os.getuid() != 0, reason="needs root")


@pytest.fixture(scope="session")
def library() -> Iterator[Path]:
    """What the trainer takes for torch, readable for everybody."""
    with tempfile.TemporaryDirectory(prefix="fake-torch-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for path, text in FAKE_TORCH.items():
            file = folder / "torch" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (folder / "libtorch_cpu.so").write_bytes(bytes(4096))
        (folder / "trainer.py").write_text(TRAINER.read_text())
        yield folder


@pytest.fixture
def job(library: Path) -> Iterator[StartJob]:
    """Starts trainers; whatever is left of them is killed afterwards."""
    started: list[Job] = []

    def start(
        *before: str, workers: int = 0, extra: Sequence[str] = (), program: Path | None = None, **options: Any
    ) -> Job:
        process = subprocess.Popen(
            [*before, sys.executable, str(program or library / "trainer.py"), str(library), str(workers), *extra],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )
        one = Job(process, process.pid, [])
        started.append(one)
        words = [int(word) for word in one.line().split()]
        one.born = born(process.pid)
        if set(words) <= set(one.born):  # in a PID namespace of its own it has other names for them
            one.pid, *one.workers = words
        return one

    yield start
    for one in started:
        if one.process.poll() is None:
            one.born.update(born(one.process.pid))
        for pid, ticks in one.born.items():
            if start_ticks(pid) == ticks:
                kill(pid)
        one.process.wait(PATIENCE_SECONDS)
        for stream in (one.process.stdin, one.process.stdout):
            if stream is not None:
                stream.close()


def born(pid: int) -> dict[int, int | None]:
    """A process and its descendants with their start times: a pid alone may be somebody else's by the time we kill."""
    filesystem = Filesystem()
    return {one: start_ticks(one) for one in tree(filesystem, pid)}


def kill(pid: int) -> None:
    """SIGKILL, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@pytest.fixture
def attach(tmp_path: Path) -> Attach:
    """``perfwatch attach PID --json``, with a session below the test's folder unless told otherwise."""

    def run(
        pid: int, *options: str, before: Sequence[str] = (), env: dict[str, str] | None = None, json_: bool = True
    ) -> Answer:
        done = subprocess.run(
            [*before, *PERFWATCH, "attach", str(pid), *(["--json"] if json_ else []), *options],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS + 30,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PERFWATCH_DIR": str(tmp_path / "sessions"), **(env or {})},
        )
        verdict = json.loads(done.stdout) if json_ and done.stdout else {}
        return Answer(done.returncode, done.stdout, done.stderr, verdict)

    return run


@pytest.fixture
def attaching(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts an attach and returns when its look has begun: the recording has its first lines."""
    started: list[subprocess.Popen[str]] = []

    def start(pid: int, *options: str, before: Sequence[str] = (), **more: Any) -> "subprocess.Popen[str]":
        session = tmp_path / f"session-{len(started)}"
        started.append(
            subprocess.Popen(
                [*before, *PERFWATCH, "attach", str(pid), "--session", str(session), *options],
                stdout=more.pop("stdout", subprocess.PIPE),
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
                **more,
            )
        )
        until(lambda: any(file.stat().st_size for file in session.glob("readings*.jsonl")))
        return started[-1]

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.communicate()
