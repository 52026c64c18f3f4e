"""A job ends with its terminal as it would without perfwatch, and hears each signal of the kernel's as often.

Each test runs the same command alone and below ``perfwatch run``, and compares. What the kernel sends to a session leader alone is in
Linux' drivers/tty/tty_jobctrl.c: SIGHUP and SIGCONT when the terminal hangs up.
"""

import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.security.conftest import DEADLINE_SECONDS, PERFWATCH

pytestmark = [pytest.mark.live, pytest.mark.without_root]

TIOCVHANGUP = 0x5437  # asm-generic/ioctls.h
RUN = (*PERFWATCH, "run", "--quiet", "--")
# Writes each signal that it takes to a file, by name, with its sender (0: the kernel); the first line is its pid. Ends at SIGTERM, or
# with what it does not take.
JOB = """
import os, signal, sys
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
taken = {getattr(signal, name) for name in (*sys.argv[2:], "SIGTERM")}
signal.pthread_sigmask(signal.SIG_BLOCK, taken)
os.write(log, f"{os.getpid()}\\n".encode())
number = None
while number != signal.SIGTERM:
    got = signal.sigwaitinfo(taken)
    number = got.si_signo
    os.write(log, f"{signal.Signals(number).name} {got.si_pid}\\n".encode())
sys.exit(7)
"""
CATCHING = ("SIGHUP", "SIGCONT")
HEARD = ["SIGHUP", "SIGCONT"]


@dataclass
class Job:
    """The program, told by its file."""

    log: Path
    caught: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """Starts it."""
        return (sys.executable, "-c", JOB, str(self.log), *self.caught)

    def lines(self, least: int) -> list[str]:
        """What it has written, as soon as it is so many lines."""
        until(lambda: self.log.exists() and len(self.log.read_text().splitlines()) >= least, f"{least} lines")
        return self.log.read_text().splitlines()

    @property
    def pid(self) -> int:
        """Its process, which has its handlers."""
        return int(self.lines(1)[0])

    def end(self, least: int, top: int) -> list[tuple[str, int]]:
        """End it with SIGTERM after so many signals, when all before it have come: their names and senders."""
        self.lines(1 + least)
        os.kill(top, signal.SIGTERM)
        until(lambda: "SIGTERM" in self.log.read_text(), "SIGTERM")
        signals = [line.split() for line in self.lines(1)[1:]]
        return [(name, int(sender)) for name, sender in signals if name != "SIGTERM"]

    def heard(self, least: int, top: int) -> list[str]:
        """The names alone."""
        return [name for name, _ in self.end(least, top)]


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that has no descriptor to wait for."""
    ends = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < ends, f"never: {what}"
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """True if the process has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@dataclass
class Leader:
    """A command that leads a session of its own, on a terminal of its own."""

    pid: int
    terminal: int
    status: int | None = None

    def hang_up(self) -> None:
        """Close the other side, as ssh and a terminal's window do."""
        os.close(self.terminal)
        self.terminal = -1

    def vhangup(self) -> None:
        """Hang up from this side, as login does."""
        slave = os.open(os.readlink(f"/proc/{self.pid}/fd/2"), os.O_RDWR | os.O_NOCTTY)
        fcntl.ioctl(slave, TIOCVHANGUP)
        os.close(slave)

    def ended(self) -> bool:
        """True if it has ended, with ``status``."""
        if self.status is None and (got := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.status = os.waitstatus_to_exitcode(got[1])
        return self.status is not None

    def end(self) -> int | None:
        """Its exit code, negative for a signal."""
        until(self.ended, f"the end of {self.pid}")
        return self.status


Lead = Callable[..., Leader]


MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[MakeJob]:
    """Makes the numbered programs of a test; what still runs afterwards is killed, with its launcher."""
    jobs: list[Job] = []

    def make(number: int, *caught: str) -> Job:
        jobs.append(Job(tmp_path / f"log-{number}", caught))
        return jobs[-1]

    yield make
    for job in jobs:
        if job.log.exists() and lives(job.pid):
            if (parent := parent_of(job.pid)) not in (1, os.getpid()):
                os.kill(parent, signal.SIGKILL)
            os.kill(job.pid, signal.SIGKILL)


def parent_of(pid: int) -> int:
    """The parent process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def lead(tmp_path: Path) -> Iterator[Lead]:
    """Starts a command as the leader of a session on a terminal."""
    leaders: list[Leader] = []

    def start(*command: str) -> Leader:
        environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path / "sessions"), "SHELL": "/bin/sh"}
        pid, terminal = pty.fork()
        if pid == 0:
            try:
                os.chdir(tmp_path)
                os.execvpe(command[0], command, environment)
            finally:
                os._exit(127)
        leaders.append(Leader(pid, terminal))
        return leaders[-1]

    yield start
    for leader in leaders:
        if leader.terminal >= 0:
            os.close(leader.terminal)
        if not leader.ended():
            os.kill(leader.pid, signal.SIGKILL)
            leader.end()


HANG_UPS = {"closed": Leader.hang_up, "vhangup": Leader.vhangup}


@pytest.mark.parametrize("hang_up", HANG_UPS.values(), ids=HANG_UPS)
def test_a_hang_up_ends_a_job_whose_launcher_leads_the_session(
    lead: Lead, make_job: MakeJob, hang_up: Callable[[Leader], None]
) -> None:
    """ssh -t, tmux new-session and docker run -t start perfwatch as a leader: a lost connection leaves no job behind."""
    if hang_up is Leader.vhangup and os.geteuid() != 0:
        pytest.skip("needs root")
    ends, seconds = [], []
    for number, prefix in enumerate(((), RUN)):
        job = make_job(number)
        leader = lead(*prefix, *job.command)
        pid = job.pid
        began = time.monotonic()
        hang_up(leader)
        until(lambda pid=pid: not lives(pid), "the job's end")  # type: ignore[misc]
        seconds.append(time.monotonic() - began)
        ends.append(leader.end())

    assert ends == [-signal.SIGHUP, -signal.SIGHUP]
    assert seconds[1] - seconds[0] < 5.0  # on a crowded machine; without forwarding it is for ever


@pytest.mark.parametrize("hang_up", HANG_UPS.values(), ids=HANG_UPS)
def test_a_handler_hears_of_a_hang_up_once(lead: Lead, make_job: MakeJob, hang_up: Callable[[Leader], None]) -> None:
    """And of the SIGCONT that the kernel sends with it, which reaches the leader alone as well."""
    if hang_up is Leader.vhangup and os.geteuid() != 0:
        pytest.skip("needs root")
    heard, ends = [], []
    for number, prefix in enumerate(((), RUN)):
        job = make_job(number, *CATCHING)
        leader = lead(*prefix, *job.command)
        assert job.pid
        hang_up(leader)
        heard.append(job.heard(len(HEARD), leader.pid))
        ends.append(leader.end())

    assert heard == [HEARD, HEARD]
    assert ends == [7, 7]


def test_an_ignored_hang_up_stays_ignored(lead: Lead, make_job: MakeJob) -> None:
    """nohup: the job goes on without its terminal."""
    alive, ends = [], []
    for number, prefix in enumerate(((), RUN)):
        job = make_job(number, "SIGCONT")
        leader = lead("nohup", *prefix, *job.command)
        assert job.pid
        leader.hang_up()
        alive.append(job.heard(1, leader.pid))
        ends.append(leader.end())

    assert alive == [["SIGCONT"], ["SIGCONT"]]
    assert ends == [7, 7]


def test_below_an_interactive_shell_perfwatch_adds_no_copy_of_a_hang_up(
    lead: Lead, make_job: MakeJob, tmp_path: Path
) -> None:
    """The shell tells its jobs, and the kernel the foreground group after the shell's end: all that the job gets is theirs."""
    for number, prefix in enumerate(((), RUN)):
        job = make_job(number, *CATCHING)
        program = tmp_path / f"start-{number}"
        program.write_text(f"exec {' '.join(map(quoted, (*prefix, *job.command)))}\n")
        shell = lead("bash", "--norc", "-i")
        os.write(shell.terminal, f"sh {program}\n".encode())
        pid = job.pid
        top = parent_of(pid) if prefix else pid
        shell.hang_up()
        shell.end()
        heard = job.end(1, top)
        until(lambda top=top: not lives(top), "the end")  # type: ignore[misc]

        assert {name for name, _ in heard} <= set(HEARD)
        # Two that come at once are one: their number says little.
        assert {sender for _, sender in heard} <= {0, shell.pid}


def quoted(word: str) -> str:
    """A word for a shell."""
    return "'" + word.replace("'", "'\\''") + "'"


@pytest.mark.skipif(shutil.which("script") is None, reason="script(1) is not installed")
def test_a_job_below_script_ends_when_script_is_gone(make_job: MakeJob, tmp_path: Path) -> None:
    """Its shell becomes perfwatch, which leads the session then."""
    for number, prefix in enumerate(((), RUN)):
        job = make_job(number)
        command = " ".join(map(quoted, (*prefix, *job.command)))
        with subprocess.Popen(
            ["script", "-qc", f"exec {command}", os.devnull],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={**os.environ, "PERFWATCH_DIR": str(tmp_path)},
        ) as script:  # fmt: skip
            pid = job.pid
            script.kill()
        until(lambda pid=pid: not lives(pid), "the job's end")  # type: ignore[misc]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_job_ends_with_its_tmux_session(make_job: MakeJob, tmp_path: Path) -> None:
    """``tmux new-session -d 'exec perfwatch run ...'``, then ``tmux kill-session``."""
    for number, prefix in enumerate(((), RUN)):
        job = make_job(number, *CATCHING)
        tmux = ("tmux", "-S", str(tmp_path / f"tmux-{number}"), "-f", "/dev/null")
        words = " ".join(map(quoted, (*prefix, *job.command)))
        environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path)}
        subprocess.run((*tmux, "new-session", "-d", "-s", "it", f"exec {words}"), check=True, env=environment)
        pid = job.pid
        top = parent_of(pid) if prefix else pid
        subprocess.run((*tmux, "kill-session", "-t", "it"), check=True)

        assert job.heard(len(HEARD), top) == HEARD
        until(lambda top=top: not lives(top), "the end")  # type: ignore[misc]


def test_a_timer_that_was_set_before_perfwatch_ends_the_job(make_job: MakeJob, tmp_path: Path) -> None:
    """A timer stays with a process over exec: ``perl -e 'alarm 3600; exec @ARGV' COMMAND`` is an old way to bound a command."""
    bounded = (sys.executable, "-c", "import os, signal, sys; signal.alarm(2); os.execvp(sys.argv[1], sys.argv[1:])")
    for number, prefix in enumerate(((), RUN)):
        job = make_job(number)
        environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path)}
        run = subprocess.run((*bounded, *prefix, *job.command), env=environment, timeout=DEADLINE_SECONDS, check=False)
        assert run.returncode == -signal.SIGALRM
        if job.log.exists():
            pid = job.pid
            until(lambda pid=pid: not lives(pid), "the job's end")  # type: ignore[misc]
