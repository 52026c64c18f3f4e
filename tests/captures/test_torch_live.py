"""``capture torch`` on real torch: two gloo ranks under ``run``, a job that armed itself, and one that did not."""

import gzip
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfwatch.run.arming import AGENT_FOLDER

pytestmark = pytest.mark.live

if importlib.util.find_spec("torch") is None:  # not imported here: this process would look like a job
    pytest.skip("torch is not installed", allow_module_level=True)

PATIENCE_SECONDS = 240.0
TRAINER = Path(__file__).parent / "gloo_trainer.py"
ALONE = Path(__file__).parent / "alone_trainer.py"
RANKS = 'for rank in 0 1; do RANK=$rank WORLD_SIZE=2 "$@" < "$0" & done; wait'


@dataclass
class Running:
    """A job, and what holds it open."""

    process: "subprocess.Popen[bytes]"
    stdin: int
    errors: Path
    _said: bytes = b""

    def line(self) -> str:
        """What it says next; two lines may come at once."""
        assert self.process.stdout is not None
        while b"\n" not in self._said:
            ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_SECONDS)
            assert ready, self.errors.read_text()
            some = os.read(self.process.stdout.fileno(), 4096)
            assert some, self.errors.read_text()
            self._said += some
        line, _, self._said = self._said.partition(b"\n")
        return line.decode().strip()

    def end(self) -> int:
        """Let it end; its exit code."""
        os.close(self.stdin)
        self.stdin = -1
        return self.process.wait(PATIENCE_SECONDS)


@dataclass
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def report(self) -> dict[str, Any]:
        """The object of ``--json``."""
        found: dict[str, Any] = json.loads(self.out)
        return found


def capture(*arguments: str) -> Answer:
    """``perfwatch capture torch --json`` with these."""
    command = [sys.executable, "-m", "perfwatch", "capture", "torch", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, stdin=subprocess.DEVNULL)
    return Answer(done.returncode, done.stdout, done.stderr)


def spans(file: dict[str, Any]) -> list[dict[str, Any]]:
    """The optimizer steps in a trace."""
    with gzip.open(file["path"]) as packed:
        trace = json.load(packed)
    return sorted(
        (one for one in trace["traceEvents"] if one.get("name", "").startswith("Optimizer.step")),
        key=lambda one: float(one["ts"]),
    )


def updates(file: dict[str, Any]) -> list[str]:
    """What the trainer calls the updates in a trace, in order; the one in which the window began is not whole and not in it."""
    with gzip.open(file["path"]) as packed:
        trace = json.load(packed)
    named = (one for one in trace["traceEvents"] if one.get("name", "").startswith("update "))
    return [str(one["name"]) for one in sorted(named, key=lambda one: float(one["ts"]))]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where the module's jobs have their files."""
    with tempfile.TemporaryDirectory(prefix="capture-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def ranks(folder: Path) -> Iterator[Running]:
    """Two ranks that train over gloo, watched."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    command = ["sh", "-c", RANKS, str(fifo), sys.executable, str(TRAINER), str(folder / "store")]
    with start(
        folder, fifo, sys.executable, "-m", "perfwatch", "run", "--session", str(folder / "s"), "--", *command
    ) as run:
        assert [run.line(), run.line()] == ["training", "training"]
        yield run


class start:  # noqa: N801
    """A job whose stdin is a FIFO that we hold; it is ended afterwards, whatever happened."""

    def __init__(self, folder: Path, fifo: Path, *command: str, **environment: str) -> None:
        self._errors = folder / f"{fifo.name}-errors"
        with self._errors.open("w") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PERFWATCH_DIR": str(folder), **environment},
            )
        self._run = Running(process, os.open(fifo, os.O_WRONLY), self._errors)

    def __enter__(self) -> Running:
        return self._run

    def __exit__(self, *_: object) -> None:
        if self._run.stdin >= 0:
            os.close(self._run.stdin)
        try:
            self._run.process.wait(PATIENCE_SECONDS)
        finally:
            self._run.process.kill()
            assert self._run.process.stdout is not None
            self._run.process.stdout.close()


def test_both_ranks_record_the_same_steps(ranks: Running, folder: Path) -> None:
    """One gzip'd trace per rank, from the same step on, five steps at least; the session says what came of it.

    torch's profiler ends a window of steps from a thread of its own (Kineto's ``collectTrace``): what the rank does until that
    thread has run is in the trace too, on a crowded machine a dozen small steps. Where a window begins is certain.
    """
    answer = capture("--session", str(folder / "s"))
    files = answer.report["files"]
    first, second = (spans(file) for file in files)

    assert answer.code == 0, answer.err
    assert [file["rank"] for file in files] == [0, 1]
    assert min(len(first), len(second)) >= 5
    # By name, not by time: two processes' profilers do not agree on the clock to the microseconds between two steps.
    assert updates(files[0])[:4] == updates(files[1])[:4]
    # How much the profiler slows small steps depends on the machine; that is said, and nothing else.
    said = [note for note in answer.report["notes"] if "times as long as usual" not in note]
    assert [note for note in said if "the profiler ends a window" not in note] == []
    assert any("the profiler ends a window" in note for note in said) is (len(first) != len(second))
    assert "a step took" in answer.report["cost"]
    assert [one["steps"] for one in answer.report["report"]["ranks"]] == [len(first), len(second)]
    events = [json.loads(line) for line in (folder / "s" / "events.jsonl").read_text().splitlines()]
    assert [event["facts"]["exit_code"] for event in events if event["kind"] == "capture"] == [0]
    assert [event["kind"] for event in events if event["kind"].startswith("capture")] == ["capture_begun", "capture"]


def test_window_of_time_with_stacks_and_shapes(ranks: Running, folder: Path) -> None:
    """A second capture of the same processes, of one rank: as long as asked for, with Python frames and dimensions."""
    answer = capture(
        "--session", str(folder / "s"), "--seconds", "0.3", "--rank", "1", "--stacks", "--shapes", "--memory"
    )
    (file,) = answer.report["files"]
    with gzip.open(file["path"]) as packed:
        text = packed.read().decode()

    assert (answer.code, file["rank"]) == (0, 1), answer.err
    assert 0.25 < answer.report["window_seconds"] < 0.6
    assert '"python_function"' in text
    assert '"Input Dims"' in text
    assert answer.report["report"]["ranks"][0]["stacks"] is True
    # No torch that was tried tells allocations to a trace on demand; one that does needs no such word.
    assert ('"[memory]"' in text) != any("no allocations" in note for note in answer.report["notes"])


@pytest.mark.alone
def test_ten_triggers_in_a_second_are_one_capture_and_a_second_request_is_refused(ranks: Running, folder: Path) -> None:
    """The first one works; nine say nothing; a command meanwhile is told that one is at work."""
    for _ in range(10):
        os.kill(ranks.process.pid, signal.SIGRTMIN + 9)
    answer = capture("--session", str(folder / "s"))
    if answer.code == 0:  # it came before the signals did
        answer = capture("--session", str(folder / "s"))
    for _ in range(int(PATIENCE_SECONDS / 0.1)):
        said = ranks.errors.read_text()
        if "torch: wrote" in said:
            break
        select.select([], [], [], 0.1)

    assert answer.code == 62
    assert "is running" in answer.err
    assert said.count("capturing torch") == 1
    assert said.count("torch: wrote") == 1


def test_rank_that_is_not_there_is_refused(ranks: Running, folder: Path) -> None:
    """The message names those that are."""
    answer = capture("--session", str(folder / "s"), "--rank", "7")

    assert answer.code == 62
    assert "the job has no rank 7 on this machine; its ranks here are 0-1" in answer.err


def test_job_ends_as_ever_and_heard_nothing_of_it(ranks: Running) -> None:
    """Exit code 0, at once, and not a line of Kineto's on its stderr (but for torch's own about stacks)."""
    code = ranks.end()
    said = [line for line in ranks.errors.read_text().splitlines() if not line.startswith("perfwatch:")]

    assert code == 0
    assert [line for line in said if "collection.cpp" not in line] == []


def test_job_that_armed_itself_is_captured_without_run(folder: Path) -> None:
    """Attach: the endpoint that its environment names is bound for the time of the capture, and then let go."""
    fifo, sockets = folder / "armed", folder / "k"
    os.mkfifo(fifo)
    sockets.mkdir(mode=0o700)
    (folder / "config").write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    environment = {
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(sockets),
        "KINETO_CONFIG": str(folder / "config"),
        "KINETO_LOG_LEVEL": "5",
    }
    command = ("sh", "-c", 'exec "$@" < "$0"', str(fifo), sys.executable, str(ALONE))
    with start(folder, fifo, *command, **environment) as run:
        assert run.line() == "training"
        answer = capture(str(run.process.pid), "--seconds", "0.3")

        assert answer.code == 0, answer.err
        assert len(spans(answer.report["files"][0])) > 0
        assert not (sockets / "dynolog").exists()
        assert run.end() == 0


@pytest.mark.parametrize(("asked", "said"), [("1", "1 unset"), ("", "0 unset")])
def test_profiler_that_is_armed_later_asks_the_endpoint_and_children_inherit_nothing(
    folder: Path, asked: str, said: str
) -> None:
    """As under ``run`` where there is a GPU: the agent has torch do so when CUDA is initialised, and not where it is not asked to."""
    fifo, sockets = folder / f"later{asked}", folder / f"l{asked}"
    os.mkfifo(fifo)
    sockets.mkdir(mode=0o700)
    (folder / "config").write_text("ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    environment = {
        "PYTHONPATH": str(AGENT_FOLDER),
        "PERFWATCH_AGENT_DIR": str(folder),
        "PERFWATCH_PROFILER": asked,
        "KINETO_IPC_SOCKET_DIR": str(sockets),
        "KINETO_CONFIG": str(folder / "config"),
        "KINETO_LOG_LEVEL": "5",
    }
    command = ("sh", "-c", 'exec "$@" < "$0"', str(fifo), sys.executable, str(ALONE), "later")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as endpoint:
        endpoint.bind(str(sockets / "dynolog"))
        with start(folder, fifo, *command, **environment) as run:
            assert run.line() == said
            assert run.line() == "training"
            if asked:
                assert select.select([endpoint], [], [], PATIENCE_SECONDS)[0]
            (sockets / "dynolog").unlink()
            assert run.end() == 0


def test_own_profiler_of_the_job_wins(folder: Path) -> None:
    """The capture is refused, or fails when it comes to it, and says why; the job's own trace is whole."""
    fifo = folder / "own"
    os.mkfifo(fifo)
    command = ("sh", "-c", 'exec "$@" < "$0"', str(fifo), sys.executable, str(ALONE), "profiled")
    with start(
        folder, fifo, sys.executable, "-m", "perfwatch", "run", "--session", str(folder / "o"), "--", *command
    ) as run:
        assert run.line() == "training"
        answer = capture("--session", str(folder / "o"), "--seconds", "0.3")
        code = run.end()
        profiled = run.line()

    assert answer.code in (62, 63)
    assert "comes first" in answer.err or "has taken the request" in answer.err  # by when it was noticed
    assert code == 0
    assert int(profiled) > 20


def test_job_that_is_not_armed_is_told_what_is_missing(folder: Path) -> None:
    """With the exact way to arm it, and exit code 61."""
    fifo = folder / "unarmed"
    os.mkfifo(fifo)
    with start(folder, fifo, "sh", "-c", 'exec "$@" < "$0"', str(fifo), sys.executable, str(ALONE)) as run:
        assert run.line() == "training"
        answer = capture(str(run.process.pid))

    assert answer.code == 61
    assert "KINETO_USE_DAEMON is not in its environment" in answer.err
    assert "perfwatch run -- COMMAND" in answer.err
