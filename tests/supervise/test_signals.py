"""Which signals reach the job, which are triggers, and that each arrives once."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from perfwatch.recording.recording import load
from perfwatch.run.forwarding import VERDICT_SIGNAL
from perfwatch.run.sentry import SPREAD_SECONDS
from tests.end_to_end.conftest import until
from tests.supervise.conftest import PATIENCE_SECONDS, Launch, Launched, python

pytestmark = pytest.mark.live

# Prints each signal that it gets, by name; ends at SIGTERM, a little later, so that a second copy would show.
COUNTER = """
import os, signal, sys, threading
CAUGHT = [getattr(signal, name) for name in sys.argv[1:]] + [signal.SIGTERM]
signal.pthread_sigmask(signal.SIG_BLOCK, [])
counts = []
def handler(number, frame):
    counts.append(number)
    os.write(1, (signal.Signals(number).name + "\\n").encode())
for number in CAUGHT:
    signal.signal(number, handler)
woken, waker = os.pipe()
os.set_blocking(waker, False)
signal.set_wakeup_fd(waker)  # a signal that comes just before the wait ends that wait too
os.write(1, b"ready\\n")
while signal.SIGTERM not in counts:
    os.read(woken, 1)
"""


def counter(launch: Launch, *names: str, options: tuple[str, ...] = (), **arguments: object) -> Launched:
    """A child that catches these signals (and SIGTERM), ready."""
    run = launch(*python(COUNTER), *names, options=options, **arguments)
    assert run.line() == "ready"
    return run


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGQUIT", "SIGCONT", "SIGALRM", "SIGWINCH"])
def test_signal_sent_to_the_launcher_reaches_the_child(launch: Launch, name: str) -> None:
    """``kill`` on the launcher means the job."""
    run = counter(launch, name)
    os.kill(run.pid, getattr(signal, name))

    assert run.line() == name


@pytest.mark.alone  # the launcher waits for the summary for 0.15 s: the watcher needs a processor in that time
@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_the_watcher_hears_of_a_signal_that_may_end_the_job(launch: Launch, name: str) -> None:
    """What such a signal ends, rank after rank, is no hang; a job that goes on is looked at again."""
    run = counter(launch, name)
    os.kill(run.pid, VERDICT_SIGNAL)  # the answer says that the watcher is up
    run.said()
    os.kill(run.pid, getattr(signal, name))
    assert run.line() == name
    os.kill(run.pid, signal.SIGTERM)
    assert (run.line(), run.end()) == ("SIGTERM", 0)
    session = re.search(r"; perfwatch report (.*)$", run.rest()[1], re.M)

    assert session is not None
    heard = [event for event in load(Path(session[1])).events if event.kind == "signal"]
    assert [one.text for one in heard] == ["asked for verdict", "asked to terminate", "asked to terminate"]
    assert all(one.facts["sender"].startswith(f"pid {os.getpid()} (") for one in heard[1:])


def test_sigterm_is_forwarded_once(launch: Launch) -> None:
    """One SIGTERM to us is one SIGTERM to the child."""
    run = counter(launch)
    os.kill(run.pid, signal.SIGTERM)

    assert (run.line(), run.end(), run.rest()[0]) == ("SIGTERM", 0, "")


def test_signal_for_the_whole_group_is_not_doubled(launch: Launch) -> None:
    """``kill %1`` and ``systemctl stop`` reach the child directly; a second copy would cut its orderly end short."""
    run = counter(launch, "SIGHUP", start_new_session=True)
    os.killpg(run.pid, signal.SIGHUP)
    assert run.line() == "SIGHUP"
    os.kill(run.pid, signal.SIGTERM)

    assert (run.line(), run.end(), run.rest()[0]) == ("SIGTERM", 0, "")


def test_sigusr1_that_the_child_catches_is_passed_on_once(launch: Launch) -> None:
    """A scheduler's SIGUSR1 (requeue, checkpoint) is the job's when the job has a handler."""
    run = counter(launch, "SIGUSR1")
    os.kill(run.pid, signal.SIGUSR1)
    assert run.line() == "SIGUSR1"
    os.kill(run.pid, signal.SIGTERM)

    assert (run.line(), run.end(), run.rest()[0]) == ("SIGTERM", 0, "")


@pytest.mark.parametrize("trigger_signal", ["all", "rt"])
def test_sigusr1_that_nobody_catches_is_never_passed_on(launch: Launch, trigger_signal: str) -> None:
    """It would kill the job."""
    run = counter(launch, options=("--trigger-signal", trigger_signal))
    os.kill(run.pid, signal.SIGUSR1)
    os.kill(run.pid, signal.SIGTERM)

    assert (run.line(), run.end()) == ("SIGTERM", 0)


def test_sigusr2_goes_to_the_rank_when_only_the_rank_catches_it(launch: Launch) -> None:
    """A shell between us and the rank does not hide the rank's handler; the rank's forked worker gets no copy."""
    program = COUNTER.replace('os.write(1, b"ready', 'os.fork() or signal.pause(); os.write(1, b"ready')
    run = launch("sh", "-c", '"$@"; true', "sh", *python(program), "SIGUSR2")
    assert run.line() == "ready"
    os.kill(run.pid, signal.SIGUSR2)

    assert run.line() == "SIGUSR2"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_requeue_handler_in_a_rank_under_torchrun_runs_once_and_torchrun_lives(
    launch: Launch, tmp_path: Path
) -> None:
    """torchrun has no handler for SIGUSR1 and would die of it; the rank has one, and gets the signal."""
    program = tmp_path / "rank.py"
    program.write_text(COUNTER)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    run = launch(*torchrun, str(program), "SIGUSR1", options=("--quiet",))
    assert run.line() == "ready"
    os.kill(run.pid, signal.SIGUSR1)
    assert run.line() == "SIGUSR1"
    os.kill(run.pid, signal.SIGTERM)

    assert run.line() == "SIGTERM"
    assert run.rest()[0] == ""


def test_real_time_trigger_gives_a_verdict_and_never_reaches_the_child(launch: Launch) -> None:
    """SIGRTMIN+8 asks for a verdict now: it is printed on stderr."""
    run = counter(launch)
    os.kill(run.pid, signal.SIGRTMIN + 8)
    answer = run.said()
    os.kill(run.pid, signal.SIGTERM)

    assert answer.startswith("perfwatch: ")
    assert "confidence" in answer
    assert (run.line(), run.end()) == ("SIGTERM", 0)


@pytest.mark.parametrize("trigger", [signal.SIGUSR1, signal.SIGRTMIN + 9])
def test_trigger_of_a_profiler_that_is_not_armed_says_so(launch: Launch, trigger: int) -> None:
    """SIGUSR1 without a handler in the job asks for a window; where no profiler was prepared, that is said."""
    run = counter(launch, options=("--arm", "none"))
    os.kill(run.pid, trigger)

    assert run.said() == "perfwatch: no timeline profiler is armed in this run; nothing was captured\n"


def test_group_directed_trigger_is_not_passed_on_and_a_requeue_handler_runs_once(launch: Launch) -> None:
    """A scheduler that signals the whole group has reached the rank already: its handler runs once, and nothing is captured."""
    run = counter(launch, "SIGUSR1", start_new_session=True)
    os.killpg(run.pid, signal.SIGUSR1)
    assert run.line() == "SIGUSR1"
    os.kill(run.pid, signal.SIGTERM)
    output, errors = run.rest()

    assert (run.end(), output) == (0, "SIGTERM\n")
    assert "captur" not in errors


def test_of_a_signal_to_the_group_the_job_gets_no_second_copy_however_late_it_is_known(launch: Launch) -> None:
    """Where the process that tells has no CPU for long, the launcher waits for it: a stopped one has none."""
    run = counter(launch, "SIGHUP", start_new_session=True)
    sentry = next(one for one in psutil.Process(run.pid).children() if one.name().startswith("perfwatch-sent"))
    sentry.suspend()
    until(lambda: sentry.status() == psutil.STATUS_STOPPED)
    os.killpg(run.pid, signal.SIGHUP)
    assert run.line() == "SIGHUP"
    stopped_until = time.monotonic() + 5 * SPREAD_SECONDS
    until(lambda: time.monotonic() > stopped_until)
    sentry.resume()
    os.kill(run.pid, signal.SIGTERM)

    assert (run.rest()[0], run.end()) == ("SIGTERM\n", 0)


def test_launcher_in_which_something_fails_still_forwards_and_ends_as_the_child() -> None:
    """The least that is left passes SIGTERM on and takes over the exit code."""
    program = (
        "import os, sys\n"
        "from perfwatch.processes import linux\n"
        "from perfwatch.run import child\n"
        "signals = linux.SignalFile()\n"
        "pid = child.start(sys.argv[1:], os.environ, signals)\n"
        "child.end_as(child.wait_plainly(pid))\n"
    )
    command = ["bash", "-c", "trap 'exit 9' TERM; echo ready; while :; do read -t 1 x; done"]
    with subprocess.Popen([*python(program), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        run.terminate()
        code = run.wait(PATIENCE_SECONDS)

    assert code == 9
