"""``capture nsys``: what it runs, what it brings, and that nothing of it is left behind when nsys fails."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from perfwatch.captures import nsys
from perfwatch.captures.armed import read_armed
from perfwatch.captures.capture import Request, Scene, Subject
from perfwatch.captures.running import run_program
from perfwatch.errors import CaptureFailed, CaptureRefused, CaptureUnavailable, PerfwatchError
from perfwatch.lock import Place, enter
from perfwatch.nsight import nsys_session
from perfwatch.nsight.finding import Tool, find
from perfwatch.nsight.importer import advice_for_raw, find_importer
from perfwatch.probes.external import Finished
from tests.captures.windows import RecordedWindow, finished, scene

ARMED = {"nsys": {"nsys": "/opt/nsys", "version": "2025.3.1", "session": "perfwatch-7", "tmpdir": "/tmp/pw"}}
REQUEST = Request(kind="nsys", seconds=0.5)


def writes(window: Path, name: str, size: int = 100) -> None:
    """As nsys does at its stop."""
    (window / name).write_bytes(b"x" * size)


def test_ranks_over_nccl_are_traced_only_by_whoever_takes_the_risk(tmp_path: Path) -> None:
    """Neither a rule nor a plain command opens the window there; one rank alone, or gloo, is not refused."""
    for pid, thread in ((10, "python3"), (11, "pt_nccl_watchdg"), (12, "gloo_loop")):
        (tmp_path / str(pid) / "task" / str(pid)).mkdir(parents=True)
        (tmp_path / str(pid) / "task" / str(pid) / "comm").write_text(f"{thread}\n")
    ranks = {pid: Subject(pid=pid, start_ticks=1, rank=pid - 10) for pid in (10, 11, 12)}

    def of(*pids: int) -> Scene:
        return Scene(subjects=tuple(ranks[pid] for pid in pids), armed=ARMED, proc=tmp_path)

    with pytest.raises(CaptureRefused, match="NCCL"):
        nsys.available(REQUEST, of(10, 11))
    nsys.available(Request(kind="nsys", options={"over-nccl": "yes"}), of(10, 11))
    nsys.available(REQUEST, of(10, 12))
    nsys.available(REQUEST, of(11))


def test_a_window_is_start_wait_stop_of_the_armed_session(tmp_path: Path) -> None:
    """No CPU sampling, no context switches, in the temporary folder that the session was opened with."""
    environments = []

    def answer(command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        environments.append(environment.get("TMPDIR"))
        if command[1] == "stop":
            writes(tmp_path / "w", "window.qdstrm")
            writes(tmp_path / "w", "window.nsys-rep")

    window = RecordedWindow(tmp_path / "w", answer)
    brought = nsys.collect(REQUEST, scene(armed=ARMED), window)

    start, stop = window.commands[:2]
    assert start[:3] == ("/opt/nsys", "start", "--session=perfwatch-7")
    assert {"--sample=none", "--cpuctxsw=none"} <= set(start)
    assert stop == ("/opt/nsys", "stop", "--session=perfwatch-7")
    assert window.events == ["opened", "wait 0.5", "closed"]
    assert environments[:2] == ["/tmp/pw", "/tmp/pw"]
    assert [Path(file.path).name for file in brought.files] == ["window.nsys-rep"]
    assert brought.window_seconds == 0.5
    assert "environment of every process" in brought.notes[0]
    assert Path(brought.files[0].path).stat().st_mode & 0o777 == 0o600
    assert nsys.command(REQUEST, scene(armed=ARMED), tmp_path / "w") == (start, stop)


def test_a_raw_recording_is_kept_and_explained(tmp_path: Path) -> None:
    """The importer lacks a library: its package is named, the recording is there for another machine."""
    target = tmp_path / "host-linux-x64"
    target.mkdir()
    (target / "QdstrmImporter").touch()
    (tmp_path / "nsys").touch()
    armed = {"nsys": {**ARMED["nsys"], "nsys": str(tmp_path / "nsys")}}

    def answer(command: tuple[str, ...], environment: Mapping[str, str]) -> Finished | None:
        if command[0] == "ldd":
            return finished(0, "\tlibc.so.6 => /lib/libc.so.6\n\tlibdw.so.1 => not found\n")
        if command[1] == "stop":
            writes(tmp_path / "w", "window.qdstrm")
        return None

    brought = nsys.collect(REQUEST, scene(armed=armed), RecordedWindow(tmp_path / "w", answer))

    assert [Path(file.path).name for file in brought.files] == ["window.qdstrm"]
    assert "lacks libdw.so.1 (apt-get install libdw1)" in brought.notes[-1]
    assert "raw recording is kept" in brought.notes[-1]


def test_without_an_importer_that_is_said(tmp_path: Path) -> None:
    """A target-only install records and cannot read."""
    tool = Tool("nsys", str(tmp_path / "nsys"), (2022, 4))

    assert find_importer(tmp_path / "nsys") is None
    assert "has no importer" in advice_for_raw(tool, "", lambda *_: finished())


def test_a_start_that_fails_opens_nothing(tmp_path: Path) -> None:
    """The session may be gone: it says how to get a new one."""
    window = RecordedWindow(tmp_path / "w", lambda *_: finished(1, errors="No such session: perfwatch-7"))

    with pytest.raises(CaptureFailed, match="No such session") as raised:
        nsys.collect(REQUEST, scene(armed=ARMED), window)

    assert "--arm nsys" in raised.value.advice
    assert window.events == []


def test_a_stop_that_never_ends_is_given_up_and_the_collection_cancelled(tmp_path: Path) -> None:
    """It would go on writing otherwise."""
    window = RecordedWindow(tmp_path / "w", lambda command, _: finished(None) if command[1] == "stop" else None)

    with pytest.raises(CaptureFailed, match="nsys stop did not end in time"):
        nsys.collect(REQUEST, scene(armed=ARMED), window)

    assert window.commands[-1] == ("/opt/nsys", "cancel", "--session=perfwatch-7")


def test_a_job_that_ends_in_the_window_is_stopped_all_the_same(tmp_path: Path) -> None:
    """Whatever ends the wait, the recording is closed."""

    class Ending(RecordedWindow):
        def wait(self, seconds: float) -> None:
            raise CaptureFailed("every rank that was to be captured has ended")

    window = Ending(tmp_path / "w")
    with pytest.raises(CaptureFailed, match="every rank"):
        nsys.collect(REQUEST, scene(armed=ARMED), window)

    assert [command[1] for command in window.commands] == ["start", "stop"]


def test_a_report_past_the_cap_is_not_kept(tmp_path: Path) -> None:
    """And the session's folder does not hold it either."""
    request = Request(kind="nsys", seconds=0.5, most_bytes=50)
    window = RecordedWindow(
        tmp_path / "w", lambda command, _: writes(tmp_path / "w", "window.nsys-rep") if command[1] == "stop" else None
    )

    with pytest.raises(CaptureFailed, match="larger than 0 MB and was not kept"):
        nsys.collect(request, scene(armed=ARMED), window)

    assert list((tmp_path / "w").iterdir()) == []


def test_a_full_disk_leaves_no_report_and_says_so(tmp_path: Path) -> None:
    """nsys ends well and brings nothing."""
    with pytest.raises(CaptureFailed, match="left no report") as raised:
        nsys.collect(REQUEST, scene(armed=ARMED), RecordedWindow(tmp_path / "w"))

    assert "disk full" in raised.value.advice


def test_a_job_that_was_only_attached_to_gets_the_machine_and_its_right_name(tmp_path: Path) -> None:
    """System-wide, with the option that this version has; no application is started."""
    help_of_2025 = (Path(__file__).parents[1] / "nsight" / "nsys_2025.3_profile_help.txt").read_text()
    proc = tmp_path / "proc"
    (proc / "sys/kernel").mkdir(parents=True)
    (proc / "self").mkdir()
    (proc / "sys/kernel/perf_event_paranoid").write_text("3\n")
    (proc / "self/status").write_text("Uid:\t1000\t1000\t1000\t1000\n")
    program = tmp_path / "nsys"
    program.touch()

    def answer(command: tuple[str, ...], environment: Mapping[str, str]) -> Finished:
        if "--version" in command:
            return finished(0, "NVIDIA Nsight Systems version 2025.3.1.90")
        if "--help" in command:
            return finished(0, help_of_2025)
        writes(tmp_path / "w", "machine.nsys-rep")
        return finished()

    window = RecordedWindow(tmp_path / "w", answer)
    brought = nsys.collect(REQUEST, scene(proc=proc, environment={"PERFWATCH_NSYS": str(program)}), window)

    assert {"--gpu-metrics-devices=all", "--duration=1", "--sample=none", "--trace=none"} <= set(window.commands[-1])
    assert brought.notes[0].startswith("system-wide: GPU counters of everything on this machine")
    assert "perf_event_paranoid" in brought.notes[-1]


@pytest.mark.parametrize("returncode", [None, 1, 0])
def test_a_window_of_the_machine_that_does_not_end_is_shut_down(tmp_path: Path, returncode: int | None) -> None:
    """Killing nsys would leave its agent, which samples on: it is told by the name of the session."""
    help_of_2025 = (Path(__file__).parents[1] / "nsight" / "nsys_2025.3_profile_help.txt").read_text()

    def answer(command: tuple[str, ...], environment: Mapping[str, str]) -> Finished:
        if "--version" in command:
            return finished(0, "NVIDIA Nsight Systems version 2025.3.1.90")
        if "--help" in command:
            return finished(0, help_of_2025)
        if command[1] == "profile":
            writes(tmp_path / "w", "machine.nsys-rep")
            return replace(finished(), returncode=returncode)
        return finished()

    (tmp_path / "nsys").touch()
    window = RecordedWindow(tmp_path / "w", answer)
    nsys.collect(REQUEST, scene(proc=tmp_path, environment={"PERFWATCH_NSYS": str(tmp_path / "nsys")}), window)

    (profile,) = (one for one in window.commands if one[1] == "profile" and "--help" not in one)
    named = next(word for word in profile if word.startswith("--session-new=")).partition("=")[2]
    shut = [one for one in window.commands if one[1] == "shutdown"]
    assert shut == ([] if returncode == 0 else [(str(tmp_path / "nsys"), "shutdown", f"--session={named}")])


def program(path: Path, text: str) -> Path:
    """A shell script in the place of nsys."""
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("text", "environment", "says"),
    [
        ("exit 1", {}, "does not work"),
        ("case $1 in --version) echo version 2019.1.0;; *) echo '  --trace=';; esac", {}, "too old: its launch has no --session-new"),
        (
            "case $1 in --version) echo version 2025.1.0;; launch) case $2 in --help) printf '  --trace=\\n  --session-new=\\n';;"
            " *) echo cannot create a session >&2; exit 3;; esac;; esac",
            {},
            "ended with 3: cannot create a session",
        ),
        ("exit 0", {"CUDA_INJECTION64_PATH": "/opt/tool.so"}, "CUDA_INJECTION64_PATH is set"),
    ],
)  # fmt: skip
def test_what_cannot_be_armed_says_why(tmp_path: Path, text: str, environment: dict[str, str], says: str) -> None:
    """Broken, too old, refusing, or another tool is there first; the caller starts the job without it."""
    nsys_program = program(tmp_path / "nsys", text)

    with pytest.raises(CaptureUnavailable, match=says):
        nsys_session.arm(
            {"PERFWATCH_NSYS": str(nsys_program), "PATH": os.environ["PATH"], **environment}, tmp_path, run_program
        )


LAUNCHES = """case $1 in --version) echo version 2025.1.0;; launch)
case $2 in --help) printf '  --trace=\\n  --session-new=\\n';; *) shift 3; CUDA_INJECTION64_PATH=/nsys.so exec "$@";; esac;; esac
"""


def test_a_session_that_does_not_come_up_is_shut_down_and_tried_once_more(tmp_path: Path) -> None:
    """Nsys' agent fails now and then; its session may be there all the same, and would stay."""
    asked = tmp_path / "asked"
    fails_once = LAUNCHES.replace("*) shift 3;", f"*) [ -e {asked} ] || {{ echo $3 > {asked}; exit 1; }}; shift 3;")
    shut = tmp_path / "shut"
    text = fails_once.replace("launch)", f"shutdown) echo $2 >> {shut};; launch)", 1)
    stop = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    environment = {"PERFWATCH_NSYS": str(program(tmp_path / "nsys", text)), "PATH": os.environ["PATH"]}

    given = nsys_session.arm(environment, tmp_path, run_program, launcher=stop.pid)
    stop.communicate()

    assert given["CUDA_INJECTION64_PATH"] == "/nsys.so"
    (session,) = shut.read_text().splitlines()
    assert session.startswith("--session=perfwatch-nsys-")
    assert session != f"--session={read_armed(tmp_path)['nsys']['session']}"


def test_one_launcher_for_each_rank_makes_one_session_for_all(tmp_path: Path) -> None:
    """The second joins that of the first; where the first failed, the second is told at once."""
    stop = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    environment = {"PERFWATCH_NSYS": str(program(tmp_path / "nsys", LAUNCHES)), "PATH": os.environ["PATH"]}
    first = nsys_session.arm(environment, tmp_path, run_program, launcher=stop.pid)
    facts = read_armed(tmp_path)["nsys"]
    second = nsys_session.arm(environment, tmp_path, run_program)

    assert first["CUDA_INJECTION64_PATH"] == second["CUDA_INJECTION64_PATH"] == "/nsys.so"
    assert read_armed(tmp_path)["nsys"] == facts
    stop.communicate()

    failing = {"PERFWATCH_NSYS": str(program(tmp_path / "nsys", "exit 1"))}
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(CaptureUnavailable, match="does not work"):
        nsys_session.arm(failing, other, run_program)
    assert list(other.iterdir()) == []


@pytest.mark.end_to_end
def test_run_starts_the_job_although_nsys_cannot_be_had(tmp_path: Path) -> None:
    """One sentence on stderr; its exit code stays its own."""
    done = subprocess.run(
        [sys.executable, "-m", "perfwatch", "run", "--arm", "nsys", "--", "sh", "-c", "echo ran; exit 3"],
        env={**os.environ, "PERFWATCH_NSYS": str(program(tmp_path / "nsys", "exit 9")), "PERFWATCH_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stdout) == (3, "ran\n")
    assert "not armed with nsys" in done.stderr
    assert "the job runs without" in done.stderr


def real_nsys() -> Tool | None:
    """The nsys of this machine."""
    try:
        return find("nsys", os.environ, run_program)
    except PerfwatchError:
        return None


REAL = real_nsys()
needs_nsys = pytest.mark.skipif(REAL is None, reason="nsys is not installed here (.ci/install_packages tries)")


def session_of(place: Place, stop: "subprocess.Popen[bytes]") -> tuple[dict[str, str], dict[str, str]]:
    """A session that ends with ``stop``: the job's environment, and what captures are told."""
    environment = nsys_session.arm({**os.environ}, place.folder, run_program, launcher=stop.pid)
    return environment, read_armed(place.folder)["nsys"]


@pytest.fixture
def stop() -> Iterator["subprocess.Popen[bytes]"]:
    """In the place of ``perfwatch run``: a process that ends when it is told to."""
    one = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    yield one
    one.communicate()


def left(session: str) -> list[int]:
    """The processes of a session."""
    return [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and session in _command_line(entry)
    ]


@needs_nsys
@pytest.mark.end_to_end
def test_two_windows_of_the_real_nsys_on_a_job_that_is_not_in_its_hands(
    tmp_path: Path, stop: "subprocess.Popen[bytes]"
) -> None:
    """The job keeps its own streams, session and exit code; two reports come; nothing of nsys stays behind."""
    place = enter(dict(os.environ), (tmp_path,))
    environment, facts = session_of(place, stop)
    job = subprocess.Popen(
        [sys.executable, "-c", "import os, sys; print(os.getsid(0), flush=True); sys.stdin.readline(); sys.exit(7)"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    place.register(job.pid)
    assert job.stdout is not None
    assert int(job.stdout.readline()) == os.getsid(0)
    assert "CUDA_INJECTION64_PATH=" in Path(f"/proc/{job.pid}/environ").read_text()
    assert "LD_PRELOAD=" not in Path(f"/proc/{job.pid}/environ").read_text()

    for number in (1, 2):
        window = RealWindow(tmp_path / f"w{number}")
        armed = scene(armed={"nsys": facts}, environment=dict(os.environ))
        brought = nsys.collect(Request(kind="nsys", seconds=0.2), armed, window)
        assert len(brought.files) == 1
        assert brought.files[0].size_bytes > 10_000

    job.communicate("\n", timeout=30)
    assert job.returncode == 7
    stop.communicate()
    place.leave()
    ends = time.monotonic() + 40
    while (left(facts["session"]) or Path(facts["tmpdir"]).exists()) and time.monotonic() < ends:
        time.sleep(0.05)
    assert left(facts["session"]) == []
    assert not Path(facts["tmpdir"]).exists()


class RealWindow(RecordedWindow):
    """Runs what it is given, and waits."""

    def run(self, command: object, deadline_seconds: float, environment: Mapping[str, str] | None = None) -> Finished:
        """For real."""
        return run_program(command, deadline_seconds, environment)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        """For real."""
        time.sleep(seconds)


@needs_nsys
@pytest.mark.end_to_end
def test_the_job_goes_on_when_nsys_is_killed(tmp_path: Path, stop: "subprocess.Popen[bytes]") -> None:
    """All of it, at once: agent, launcher and placeholder; and what the job starts afterwards starts."""
    place = enter(dict(os.environ), (tmp_path,))
    environment, facts = session_of(place, stop)
    job = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys; sys.stdin.readline(); sys.exit(subprocess.call(['sh', '-c', 'exit 7']))",
        ],
        env=environment,
        stdin=subprocess.PIPE,
    )
    place.register(job.pid)
    assert left(facts["session"])
    for pid in left(facts["session"]):
        os.kill(pid, signal.SIGKILL)

    job.communicate(b"\n", timeout=30)
    assert job.returncode == 7
    place.leave()
    shutil.rmtree(facts["tmpdir"])  # whose keeper was killed with the rest


def _command_line(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_text(errors="replace")
    except OSError:
        return ""
