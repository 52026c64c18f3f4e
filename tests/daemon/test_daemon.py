"""``perfwatch daemon`` on a machine of its own (a PID namespace): jobs come, hang and go, and it is asked to leave."""

import json
import os
import select
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfwatch.recording.recording import load
from tests.end_to_end.conftest import FAKE_TORCH, PATIENCE_SECONDS, PERFWATCH, TRAINER, needs_root

pytestmark = [pytest.mark.live, pytest.mark.end_to_end, needs_root()]


class Machine:
    """Everything that is started here runs in one PID namespace, whose init is a shell that does what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "sessions"
        for path, text in FAKE_TORCH.items():
            file = folder / "lib" / "torch" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (folder / "lib" / "libtorch_cpu.so").write_bytes(bytes(4096))
        command = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh")
        self.shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._rest = ""
        self._lines: list[str] = []

    def do(self, command: str) -> None:
        """Have the shell run this."""
        assert self.shell.stdin is not None
        self.shell.stdin.write(command.encode() + b"\n")
        self.shell.stdin.flush()

    def job(self, name: str, before: str = "") -> None:
        """Start a trainer that obeys the words that are written into the FIFO of its name."""
        fifo = self.folder / name
        os.mkfifo(fifo)
        self.do(f"{before} {sys.executable} {TRAINER} {self.folder}/lib 0 <>{fifo} >/dev/null 2>&1 & echo $! >&2")

    def say(self, name: str, letter: bytes) -> None:
        """Tell a trainer something."""
        descriptor = os.open(self.folder / name, os.O_RDWR)
        os.write(descriptor, letter)
        os.close(descriptor)

    def daemon(self, *options: str) -> None:
        """Start it; its log is what ``heard`` reads."""
        words = " ".join((*PERFWATCH, "daemon", "--directory", str(self.home), "--every", "0.2", *options))
        self.do(f"({words} & echo $! > {self.folder}/pid; wait $!; echo ended with $? >&2) &")

    def heard(self, what: str) -> str:
        """The first line of the log that holds this and was not taken before; fails when none comes."""
        assert self.shell.stderr is not None
        stderr = self.shell.stderr.fileno()
        while True:
            for line in self._lines:
                if what in line:
                    self._lines.remove(line)
                    return line
            assert select.select([stderr], [], [], PATIENCE_SECONDS)[0], f"never heard {what!r}, but {self._lines}"
            data = os.read(stderr, 65536)
            assert data, f"it ended without {what!r}: {self._lines}"
            *whole, self._rest = (self._rest + data.decode()).split("\n")
            self._lines += whole

    def leave(self) -> None:
        """Ask the daemon to."""
        self.do(f"kill -TERM $(cat {self.folder}/pid)")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine; whatever runs on it ends with the test."""
    if subprocess.run(("unshare", "--pid", "--fork", "--mount-proc", "true"), capture_output=True).returncode:
        pytest.skip("no PID namespace can be made here")
    one = Machine(tmp_path)
    yield one
    one.shell.send_signal(signal.SIGKILL)
    one.shell.wait()
    for stream in (one.shell.stdin, one.shell.stdout, one.shell.stderr):
        assert stream is not None
        stream.close()


def test_jobs_are_adopted_as_they_appear_and_each_has_a_session_of_its_own(machine: Machine) -> None:
    """One hangs and is named, one ends; the metrics tell of both; SIGTERM completes the recordings and ends it well."""
    machine.job("stuck")
    verdict = machine.folder / "verdict"
    machine.daemon("--metrics-port", "0", "--patience", "1", "--on-verdict", f"'tee {verdict}'")
    served = machine.heard("metrics are served on ")
    machine.heard("adopted")
    stuck = Path(machine.heard("recorded in ").rpartition(" ")[2])
    machine.job("short")
    machine.heard("adopted")
    short = Path(machine.heard("recorded in ").rpartition(" ")[2])
    machine.say("stuck", b"h")
    machine.heard("verdict: hung: ")
    machine.heard("--on-verdict tee (hung, action fix_code): exit code 0")
    told = json.loads(verdict.read_text())
    with urllib.request.urlopen(served.rpartition(" ")[2], timeout=PATIENCE_SECONDS) as answer:
        metrics = answer.read().decode()
    machine.say("short", b"x")
    machine.heard("no longer watched, gone")
    machine.leave()
    machine.heard("recordings are complete")
    ended = machine.heard("ended with")

    assert ended == "ended with 0"
    assert stuck.parent == short.parent == machine.home
    assert (told["state"], told["cause"], told["job"]["uid"]) == ("hung", "endless_python", 0)
    assert "perfwatch_watched_jobs 2.0" in metrics
    assert f'session="{stuck.name}"' in metrics
    assert {event.verdict.state for event in load(stuck).events if event.verdict is not None} >= {"hung"}
    assert load(short).session.mode == "daemon"


def test_the_log_in_json_has_fields_to_filter_by(machine: Machine) -> None:
    """Each line is an object with time and event; those about a job have its pid, a verdict has state and cause."""
    machine.job("stuck")
    machine.daemon("--patience", "1", "--log-format", "json")
    machine.heard('"event":"adopted"')
    recording = json.loads(machine.heard('"event":"recording"'))
    machine.say("stuck", b"h")
    told = json.loads(machine.heard('"event":"verdict"'))
    machine.leave()
    last = json.loads(machine.heard("recordings are complete"))

    assert told["schema"] == "perfwatch.log/1"
    assert (told["state"], told["cause"]) == ("hung", "endless_python")
    assert "confidence" in told
    assert (told["pid"], told["session"]) == (recording["pid"], recording["session"])
    assert told["job"]["uid"] == told["uid"] == 0
    assert last.keys() == {"schema", "time", "event", "message"}


def test_a_job_that_a_run_watches_is_left_to_it(machine: Machine) -> None:
    """And adopted when that one's watcher is gone: kill -9 of the launcher takes it away, the job goes on."""
    run = f"PERFWATCH_DIR={machine.folder}/own {' '.join(PERFWATCH)} run --quiet --"
    machine.job("watched", before=run)
    machine.job("alone")
    launcher, alone = int(machine.heard("")), int(machine.heard(""))
    machine.daemon()

    assert f"pid {alone}: adopted" in machine.heard("adopted")

    machine.do(f"kill -KILL {launcher}")

    assert f"pid {alone}" not in machine.heard("adopted")


def test_a_full_disk_costs_the_recording_and_not_the_verdict(machine: Machine) -> None:
    """The hang is named all the same, and it is said that nothing is stored."""
    machine.home.mkdir()
    machine.do(f"mount -t tmpfs -o size=16k tmpfs {machine.home}")
    machine.job("stuck")
    machine.daemon("--patience", "1")
    machine.heard("adopted")
    machine.heard("recorded in ")
    machine.say("stuck", b"h")
    machine.heard("verdict: hung: ")
    machine.leave()
    lost = machine.heard("lines of the recording were lost")

    assert "No space left on device" in lost


def watches_of(shell: int) -> list[int]:
    """The processes below this one in which jobs are watched."""
    children = [int(child) for child in Path(f"/proc/{shell}/task/{shell}/children").read_text().split()]
    mine = [child for child in children if Path(f"/proc/{child}/comm").read_text() == "perfwatch-watch\n"]
    return mine + [one for child in children for one in watches_of(child)]


def test_a_watch_that_is_killed_harms_no_other_and_is_started_anew(machine: Machine) -> None:
    """The OOM killer takes one: the daemon says so, goes on, and tries again a little later."""
    machine.job("one")
    machine.daemon()
    machine.heard("recorded in ")
    os.kill(watches_of(machine.shell.pid)[0], signal.SIGKILL)
    early = machine.heard("its watch ended early")
    machine.job("two")

    assert "started again in 10 s" in early
    assert machine.heard("adopted")  # the first one, before
    assert machine.heard("adopted")


def test_a_second_daemon_on_the_same_folder_is_refused(machine: Machine) -> None:
    """They would watch everything twice."""
    machine.daemon()
    machine.heard("watching this machine")
    second = subprocess.run(
        (*PERFWATCH, "daemon", "--directory", str(machine.home)),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )

    assert second.returncode == 2
    assert "another perfwatch daemon records in" in second.stderr
