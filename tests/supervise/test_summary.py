"""What ``run`` says at the end."""

import os
import re
import time
from pathlib import Path

import pytest

from perfwatch.recording.recording import load
from perfwatch.watching.summary import Summary, Tally
from perfwatch_probes.readings import Steps
from tests.sessions import verdict
from tests.supervise.conftest import Launch


def tallied(*readings: Steps) -> Tally:
    """A tally that has seen these."""
    tally = Tally(None)
    for at, reading in enumerate(readings):
        tally.append(float(at), [reading])
    return tally


def text(tally: Tally, **other: object) -> list[str]:
    """The lines of a summary of a run of 100 s."""
    fields = {"ending": "exit code 0", "verdict": None, "said": (), "cost_seconds": 0.5, "session": "/s", **other}
    return Summary(elapsed_seconds=100.0, tally=tally, **fields).text().splitlines()  # type: ignore[arg-type]


def test_warm_up_is_left_out_of_the_quantiles() -> None:
    """The slow first ten steps do not show; each later step counts once although readings overlap."""
    first = Steps(pid=1, tid=1, count=10, interval_seconds=(9.0,) * 9)
    second = Steps(pid=1, tid=1, count=110, interval_seconds=(9.0, *(0.1,) * 63))
    third = Steps(pid=1, tid=1, count=112, interval_seconds=(0.1, 0.1, 2.0))
    tally = tallied(first, second, third)

    assert tally.quantile(0.5) == pytest.approx(0.1, rel=0.01)
    assert tally.quantile(1.0) == pytest.approx(9.0, rel=0.01)
    assert tally.quantile(0.95) == pytest.approx(0.1, rel=0.01)


def test_step_line_names_count_processes_and_quantiles() -> None:
    """Two ranks of fifty steps each."""
    ranks = [Steps(pid=pid, tid=pid, count=50, interval_seconds=(0.25,) * 49) for pid in (1, 2)]

    assert text(tallied(*ranks))[1] == (
        "perfwatch: steps:     50 on each of 2 processes; p50 250 ms, p95 250 ms, p99 250 ms (first 10 left out)"
    )


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ((2.0, 2.0), "of several optimizers, 2 to a turn"),
        ((1.0, 2.0), "of several optimizers"),
        ((None, None), "of several optimizers"),
    ],
)
def test_steps_of_several_optimizers_are_said_to_be(turns: tuple[float | None, ...], words: str) -> None:
    """The quantiles are of each step then, not of a turn."""
    ranks = [Steps(pid=pid, tid=pid, count=9, steps_each_turn=each) for pid, each in enumerate(turns, 1)]

    assert text(tallied(*ranks))[1].startswith(f"perfwatch: steps:     9 on each of 2 processes {words}; ")


def test_run_without_steps_says_so() -> None:
    """Missing is not zero: nothing was counted."""
    assert text(tallied())[1] == "perfwatch: steps:     none counted"


@pytest.mark.parametrize(
    ("said", "first", "told"),
    [
        ((("reported", "hung: endless_python (x)"),), "hung, then ended by signal 15", "hung: endless_python; then "),
        ((("reported", "hung: endless_python (x)"), ("retracted", "moves again")), "ended by signal 15", ""),
        ((("reported", "slow: regressed (x)"),), "slow, then ended by signal 15", "slow: regressed; then "),
        ((("suspected", "a lock"),), "ended by signal 15", ""),
    ],
)
def test_how_a_job_ran_until_it_was_ended_is_said_first(
    said: tuple[tuple[str, str], ...], first: str, told: str
) -> None:
    """The signal that ended it is not the verdict on it."""
    ended = verdict(state="gone", cause="killed", summary="pid 7 was ended by SIGTERM")
    lines = text(tallied(), verdict=ended, said=said, ending="ended by signal 15")

    assert lines[0] == f"perfwatch: {first} after 1 min 40 s"
    assert f"perfwatch: verdict:   {told}pid 7 was ended by SIGTERM" in lines


def test_cost_is_a_share_of_one_core() -> None:
    """Half a CPU second in a hundred."""
    assert "perfwatch: used:      500 ms of CPU by perfwatch (0.5 % of a core)" in text(tallied())


def test_text_from_the_job_cannot_steer_the_terminal() -> None:
    """A suspicion that quotes a file name with escape codes is shown harmless."""
    assert "\x1b" not in "\n".join(text(tallied(), said=(("reported", "hung: at \x1b[2Jx.py"),)))


def test_a_good_end_is_one_line() -> None:
    """That it ended well, how long it took, how fast it was, and where to read on."""
    steps = Steps(pid=1, tid=1, count=50, interval_seconds=(0.25,) * 49)
    ended = verdict(state="gone", cause="finished", summary="the job (pid 7) finished")

    assert text(tallied(steps), verdict=ended) == [
        "perfwatch: finished (exit code 0) after 1 min 40 s, 50 steps, p50 250 ms, no incident; perfwatch report /s"
    ]


def test_a_good_end_after_an_incident_tells_the_incident() -> None:
    """Whoever slept through it reads it in the log."""
    ended = verdict(state="gone", cause="finished", summary="the job (pid 7) finished")
    lines = text(tallied(), verdict=ended, said=(("reported", "hung: stuck_worker (x)"), ("retracted", "moves again")))

    assert "perfwatch: reported:  hung: stuck_worker (x)" in lines


@pytest.mark.live
@pytest.mark.alone  # the launcher waits for 0.15 s: the watcher needs a processor in that time
def test_summary_of_a_real_run_is_on_stderr_and_in_the_session(launch: Launch, tmp_path: Path) -> None:
    """Exit code, session and outcome agree."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    run = launch("sh", "-c", f"echo ready; read x < {fifo}; exit 3")
    assert run.line() == "ready"
    began = time.monotonic()
    os.kill(run.pid, 42)  # SIGRTMIN+8: the answer says that the watcher is up
    run.said()
    lasted = time.monotonic() - began
    fifo.write_text("go\n")
    code = run.end()
    said = run.rest()[1]
    session = re.search(r"^perfwatch: details:   perfwatch report (.*)$", said, re.M)
    told = re.search(r"^perfwatch: exit code 3 after ([\d.]+) (m?)s\b", said, re.M)

    assert code == 3
    assert told is not None
    assert (
        float(told[1]) * (0.001 if told[2] else 1.0) >= lasted - 0.5
    )  # rounded to two figures; since the job began, and not since its watcher did
    assert session is not None
    assert load(Path(session[1])).events[-1].facts == {"exit_code": 3, "signal": None}


STUCK = """
import signal, sys
class Stuck:
    def find_spec(self, name, path=None, target=None):
        while open("/proc/self/comm").read() == "perfwatch-watch\\n":
            signal.pause()
sys.meta_path.insert(0, Stuck())
"""


@pytest.mark.live
@pytest.mark.parametrize(
    ("script", "code", "told"), [("exit 3", 3, "exit code 3"), ("kill -KILL $$", -9, "ended by signal 9")]
)
@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_a_run_that_ends_before_its_watcher_is_up_is_told_all_the_same(
    launch: Launch, tmp_path: Path, script: str, code: int, told: str, quiet: tuple[str, ...]
) -> None:
    """By the launcher itself; here the watcher is stuck in its first import until it is killed."""
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    run = launch("sh", "-c", script, options=quiet, env={"PYTHONPATH": str(tmp_path)})

    assert run.end() == code
    said = run.rest()[1]
    assert re.fullmatch(
        "" if quiet else rf"perfwatch: {told} after [\d.]+ m?s: exited before monitoring started\n", said
    )


@pytest.mark.live
@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_a_run_says_at_its_start_where_it_is_recorded(launch: Launch, tmp_path: Path, options: tuple[str, ...]) -> None:
    """One line while the job runs, the first of all; none where nothing is to be said."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    run = launch("sh", "-c", f"read x < {fifo}", options=(*options, "--session", str(tmp_path / "kept")))
    assert run.process.stderr is not None
    said = "" if options else run.process.stderr.readline()
    fifo.write_text("go\n")

    assert said == ("" if options else f"perfwatch: recording to {tmp_path / 'kept'}\n")
    assert run.end() == 0
    assert not options or run.rest()[1] == ""


@pytest.mark.live
def test_session_that_cannot_be_written_is_told_and_the_job_runs(launch: Launch, tmp_path: Path) -> None:
    """The exit code is the child's; the loss is stated."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    run = launch("sh", "-c", f"read x < {fifo}; exit 6", options=("--session", "/proc/none/here"))
    said = run.said()
    fifo.write_text("go\n")

    assert said.startswith("perfwatch: nothing is recorded: ")
    assert run.end() == 6


def test_what_was_told_is_kept_apart_from_what_was_only_suspected() -> None:
    """A hang that was told stays in the summary of a run that somebody then ended."""
    lines = text(tallied(), said=(("suspected", "main waits"), ("reported", "hung: stuck_worker (worker 7 stands)")))

    assert lines[2:4] == [
        "perfwatch: suspected: main waits",
        "perfwatch: reported:  hung: stuck_worker (worker 7 stands)",
    ]
