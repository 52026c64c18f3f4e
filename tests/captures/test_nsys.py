"""``capture nsys``: what it runs, what it brings, and that nothing of it is left behind when nsys fails."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from perfwatch.captures import nsys
from perfwatch.captures.capture import Request, Scene, Subject
from perfwatch.captures.nsight.finding import Tool
from perfwatch.captures.nsight.importer import advice_for_raw, find_importer
from perfwatch.errors import CaptureFailed, CaptureRefused
from perfwatch_probes.external import Finished
from tests.captures.windows import RecordedWindow, finished, scene

ARMED = {"nsys": {"nsys": "/opt/nsys", "version": "2025.3.1", "session": "perfwatch-7", "tmpdir": "/tmp/pw"}}
NAMED = {"PERFWATCH_NSYS": "/opt/nsys"}
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
    brought = nsys.collect(REQUEST, scene(environment=NAMED, armed=ARMED), window)

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
    shown = nsys.command(REQUEST, scene(armed=ARMED), tmp_path / "w")
    assert shown == (("nsys", *start[1:]), ("nsys", *stop[1:]))


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

    brought = nsys.collect(
        REQUEST,
        scene(environment={"PERFWATCH_NSYS": armed["nsys"]["nsys"]}, armed=armed),
        RecordedWindow(tmp_path / "w", answer),
    )

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
        nsys.collect(REQUEST, scene(environment=NAMED, armed=ARMED), window)

    assert "--arm nsys" in raised.value.advice
    assert window.events == []


def test_a_stop_that_never_ends_is_given_up_and_the_collection_cancelled(tmp_path: Path) -> None:
    """It would go on writing otherwise."""
    window = RecordedWindow(tmp_path / "w", lambda command, _: finished(None) if command[1] == "stop" else None)

    with pytest.raises(CaptureFailed, match="nsys stop did not end in time"):
        nsys.collect(REQUEST, scene(environment=NAMED, armed=ARMED), window)

    assert window.commands[-1] == ("/opt/nsys", "cancel", "--session=perfwatch-7")


def test_a_job_that_ends_in_the_window_is_stopped_all_the_same(tmp_path: Path) -> None:
    """Whatever ends the wait, the recording is closed."""

    class Ending(RecordedWindow):
        def wait(self, seconds: float) -> None:
            raise CaptureFailed("every rank that was to be captured has ended")

    window = Ending(tmp_path / "w")
    with pytest.raises(CaptureFailed, match="every rank"):
        nsys.collect(REQUEST, scene(environment=NAMED, armed=ARMED), window)

    assert [command[1] for command in window.commands] == ["start", "stop"]


def test_a_report_past_the_cap_is_not_kept(tmp_path: Path) -> None:
    """And the session's folder does not hold it either."""
    request = Request(kind="nsys", seconds=0.5, most_bytes=50)
    window = RecordedWindow(
        tmp_path / "w", lambda command, _: writes(tmp_path / "w", "window.nsys-rep") if command[1] == "stop" else None
    )

    with pytest.raises(CaptureFailed, match="larger than 0 MB and was not kept"):
        nsys.collect(request, scene(environment=NAMED, armed=ARMED), window)

    assert list((tmp_path / "w").iterdir()) == []


def test_a_full_disk_leaves_no_report_and_says_so(tmp_path: Path) -> None:
    """nsys ends well and brings nothing."""
    with pytest.raises(CaptureFailed, match="left no report") as raised:
        nsys.collect(REQUEST, scene(environment=NAMED, armed=ARMED), RecordedWindow(tmp_path / "w"))

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
