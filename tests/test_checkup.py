"""``perfwatch doctor``: what is denied is said with its fix, and one failing check does not end the others."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch.doctor import checkup
from perfwatch.doctor.checkup import Ability, Summary, examine_machine
from perfwatch.doctor.job import examine_job
from perfwatch.errors import NoSuchTarget
from perfwatch_probes.deadline import Inline
from perfwatch_probes.ptrace_access import Access
from tests.command_line import perfwatch
from tests.machines import FakeMachine

V2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
UNSEEN = "no cgroup file system is in sight: CPU throttling and OOM kills stay unseen"


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    """A machine with a training job, pid 100."""
    one = FakeMachine(tmp_path)
    one.process(100, 1)
    return one


def access(**changes: object) -> Access:
    """A plain user on a plain host."""
    facts: dict[str, object] = {
        "our_uid": 1000, "target_uid": None, "has_capability": False, "yama_scope": None,
        "in_container": False, **changes,
    }  # fmt: skip
    return Access(**facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "status", "fix"),
    [
        (access(), "ok", ""),
        (access(yama_scope=0), "ok", ""),
        (access(yama_scope=1), "limited", "kernel.yama.ptrace_scope=0"),
        (access(yama_scope=1, in_container=True), "limited", "--cap-add SYS_PTRACE"),
        (access(yama_scope=2), "missing", "sudo perfwatch"),
        (access(yama_scope=3, has_capability=True), "missing", "reboot"),
        (access(yama_scope=2, has_capability=True), "ok", ""),
    ],
)
def test_ptrace_depends_on_scope_capability_and_container(facts: Access, status: str, fix: str) -> None:
    """With the exact fix where there is one, and none where nothing needs to be done."""
    found = checkup.ptrace(facts)

    assert found.status == status
    assert fix in found.fix
    assert bool(fix) == bool(found.fix)


@pytest.mark.live
def test_a_missing_py_spy_is_denied_with_the_command_that_installs_it() -> None:
    """Also one that does not run."""
    found = checkup.py_spy("/nowhere/py-spy")

    assert (found.status, found.fix) == ("missing", "pip install 'py-spy>=0.4'")


@pytest.mark.live
def test_a_py_spy_that_does_not_answer_is_told_as_that(tmp_path: Path) -> None:
    """It lies on a mount that has gone, or is a script around one that waits."""
    silent = tmp_path / "py-spy"
    silent.write_text("#!/bin/sh\nexec sleep 1000\n")
    silent.chmod(0o755)

    assert "gave no answer within" in checkup.py_spy(str(silent)).finding


@pytest.mark.live
def test_a_py_spy_that_is_too_old_is_denied(tmp_path: Path) -> None:
    """Before 0.4 it did not tell the thread ids."""
    old = tmp_path / "py-spy"
    old.write_text("#!/bin/sh\necho py-spy 0.3.14\n")
    old.chmod(0o755)

    assert checkup.py_spy(str(old)).finding == "py-spy 0.3.14 is too old"


@pytest.mark.parametrize(
    ("mounts", "finding"),
    [
        (V2, "version 2 mounted"),
        ("31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "version 1 mounted"),
        (V2 + "31 24 0:27 / /b rw - cgroup cgroup rw,cpu\n", "version 2 and version 1 mounted"),
        ("22 27 0:21 / /proc rw - proc proc rw\n", UNSEEN),
        (V2 + "31 30 0:40 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", UNSEEN),
    ],
)
def test_cgroup_mounts_are_told_apart(machine: FakeMachine, mounts: str, finding: str) -> None:
    """Version 1, 2, both, none, and one that lies under another mount."""
    machine.write("self/mountinfo", mounts)

    assert checkup.cgroup(machine.filesystem).finding == finding


@pytest.mark.parametrize(
    ("options", "status"), [("rw", "ok"), ("rw,hidepid=0", "ok"), ("rw,hidepid=invisible", "limited")]
)
def test_hidepid_is_seen(machine: FakeMachine, options: str, status: str) -> None:
    """Other users' processes are then missing, not absent."""
    machine.write("self/mounts", f"proc /proc proc {options} 0 0\n")

    assert checkup.hidden_processes(machine.filesystem).status == status


def test_a_kernel_without_the_memory_of_when_a_thread_ran_is_seen(machine: FakeMachine) -> None:
    """CONFIG_SCHED_DEBUG may be off."""
    machine.write("self/sched", "nr_switches : 1\n")

    assert checkup.last_ran(machine.filesystem).status == "limited"


@pytest.mark.live
def test_what_cannot_be_checked_is_a_finding_too(machine: FakeMachine, tmp_path: Path) -> None:
    """An empty machine fails most checks, and all of them are in the table."""
    for file in ("mounts", "mountinfo", "sched"):
        (machine.proc / "self" / file).unlink()

    found = examine_machine(machine.filesystem, Inline(), {"PERFWATCH_DIR": str(tmp_path / "home")})

    assert {one.name for one in found if one.status == "limited"} >= {"other users' processes", "cgroup", "pressure"}
    assert len(found) == 11
    assert all(one.finding for one in found)


def test_looking_for_a_place_leaves_nothing_behind(tmp_path: Path) -> None:
    """The folder of a session is made to see whether it can be, and removed."""
    found = checkup.session_place({"PERFWATCH_DIR": str(tmp_path / "home")}, Inline())

    assert found.status == "ok"
    assert list((tmp_path / "home").iterdir()) == []


def of_job(machine: FakeMachine, pid: int = 100) -> dict[str, Ability]:
    """The findings about a process, by name."""
    return {one.name: one for one in examine_job(machine.filesystem, pid, Inline())}


@pytest.mark.parametrize("profiler", ["KINETO_USE_DAEMON", "PERFWATCH_PROFILER"])
def test_a_job_that_perfwatch_started_is_armed(machine: FakeMachine, profiler: str) -> None:
    """By the variable that ``run`` sets: the second one where there is a GPU."""
    machine.process(200, 1, environ=f"PERFWATCH_AGENT_DIR=/tmp/x {profiler}=1")

    assert of_job(machine, 200)["steps"].status == "ok"
    assert of_job(machine, 200)["torch.profiler"].status == "ok"


def test_a_job_that_was_not_is_told_how_next_time(machine: FakeMachine) -> None:
    """Steps are not counted there."""
    assert of_job(machine)["steps"].status == "limited"
    assert "perfwatch run" in of_job(machine)["steps"].fix


def test_a_process_that_is_not_python_is_told_so(machine: FakeMachine) -> None:
    """With the way to one that is."""
    machine.process(300, 1, "sleep 1000", name="sleep", torch=False)

    assert of_job(machine, 300)["python"].status == "missing"
    assert of_job(machine, 300)["python"].fix.startswith("perfwatch ps")


def test_a_tracer_is_named(machine: FakeMachine) -> None:
    """A debugger that somebody forgot."""
    machine.process(400, 1, tracer=77)

    assert "pid 77 traces it" in of_job(machine, 400)["tracer"].finding


def test_another_container_is_seen(machine: FakeMachine) -> None:
    """By the namespaces that differ."""
    link = machine.proc / "100" / "ns" / "net"
    link.unlink()
    link.symlink_to("net:[2]")

    assert of_job(machine)["namespaces"].finding == "another container: its net differ from ours"


@pytest.mark.parametrize("state", ["Z", None])
def test_a_process_that_is_gone_or_a_zombie_is_no_target(machine: FakeMachine, state: str | None) -> None:
    """Exit code 3."""
    if state:
        machine.process(500, 1, state=state)

    with pytest.raises(NoSuchTarget):
        of_job(machine, 500)


@pytest.mark.parametrize(
    ("statuses", "line", "code", "strict"),
    [
        (("ok", "ok"), "all 2 checks passed", 0, 0),
        (("ok", "limited", "ok"), "2 of 3 checks passed; 1 limited", 0, 1),
        (("ok", "missing"), "1 of 2 checks passed; 1 missing", 1, 1),
        (("limited", "missing", "limited"), "0 of 3 checks passed; 2 limited, 1 missing", 1, 1),
    ],
)
def test_one_line_and_the_exit_code_say_how_it_stands(statuses: list[str], line: str, code: int, strict: int) -> None:
    """For a node health check, which reads nothing else."""
    summary = Summary.of(Ability(name="x", status=status, finding="y") for status in statuses)

    assert (str(summary), summary.exit_code(strict=False), summary.exit_code(strict=True)) == (line, code, strict)


@pytest.mark.live
def test_the_last_line_sums_up_and_a_missing_py_spy_is_an_exit_code(tmp_path: Path) -> None:
    """Also in JSON; no line of a pipe ends in blanks."""
    silent = {**os.environ, "PERFWATCH_PY_SPY": "/nowhere/py-spy"}
    said, read = (perfwatch("doctor", *words, env=silent) for words in ((), ("--json",)))

    lines = said.stdout.splitlines()
    assert re.fullmatch(r"\d+ of \d+ checks passed; .*1 missing", lines[-1])
    assert [line for line in lines if line.endswith(" ")] == []
    assert (said.returncode, read.returncode) == (1, 1)
    assert json.loads(read.stdout)["summary"]["missing"] == 1


@pytest.mark.live
def test_json_is_one_object() -> None:
    """About this very machine and this very process."""
    result = subprocess.run(
        [sys.executable, "-m", "perfwatch", "doctor", "1", "--json"], capture_output=True, text=True, timeout=60
    )

    shown = json.loads(result.stdout)
    assert (shown["schema"], shown["pid"]) == ("perfwatch.doctor/2", 1)
    assert {one["status"] for one in shown["machine"] + shown["job"]} <= {"ok", "limited", "missing"}
    assert result.returncode == (shown["summary"]["missing"] > 0)
