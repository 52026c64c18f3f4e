"""The files for systemd, Slurm and Kubernetes, each tried as far as one machine allows."""

import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfwatch.cli import app
from tests.end_to_end.conftest import PATIENCE_SECONDS, until


@pytest.fixture
def deploy(repository: Path) -> Path:
    """Where the files are."""
    return repository / "scripts" / "deploy"


@pytest.fixture
def manifest(deploy: Path) -> dict[str, Any]:
    """The DaemonSet."""
    found: dict[str, Any] = yaml.safe_load((deploy / "kubernetes.yaml").read_text())
    return found


def accepted(words: list[str]) -> None:
    """Raises unless the command line of ``perfwatch daemon`` takes these options."""
    context = app.make_context("perfwatch", ["daemon"])
    command = app.get_command(context, "daemon")
    assert command is not None
    command.make_context("daemon", list(words), parent=context)


@pytest.mark.live
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian package systemd)")
def test_systemd_finds_nothing_wrong_with_the_unit(deploy: Path, tmp_path: Path) -> None:
    """Every directive is known and the sandbox is a tight one."""
    text = (deploy / "perfwatch.service").read_text().replace("/opt/perfwatch/bin/perfwatch", sys.executable)
    unit = tmp_path / "perfwatch.service"
    unit.write_text(text)
    verified = subprocess.run(("systemd-analyze", "verify", str(unit)), capture_output=True, text=True, timeout=60)
    exposed = subprocess.run(
        ("systemd-analyze", "security", "--offline=true", "--threshold=40", "--no-pager", str(unit)),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert (verified.returncode, verified.stderr) == (0, "")
    assert exposed.returncode == 0, exposed.stdout[-300:]


@pytest.mark.live
def test_the_unit_starts_what_there_is(deploy: Path) -> None:
    """Its options are those of the command, also in the comment."""
    lines = (deploy / "perfwatch.service").read_text().splitlines()
    started = [line.partition("bin/perfwatch ")[2].split() for line in lines if "ExecStart=/opt" in line]

    assert len(started) == 2
    for words in started:
        assert words[0] == "daemon"
        accepted(words[1:])


@pytest.fixture
def unit(deploy: Path) -> dict[str, list[str]]:
    """The directives of the systemd unit, each with its values in order."""
    found: dict[str, list[str]] = {}
    for line in (deploy / "perfwatch.service").read_text().splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def test_the_unit_opens_no_device_but_those_that_it_needs(unit: dict[str, list[str]]) -> None:
    """The NVIDIA driver's, by the names of its device groups, and the kernel's log for reading."""
    assert unit["DevicePolicy"] == ["closed"]
    assert unit["DeviceAllow"] == ["char-nvidia* rw", "/dev/kmsg r"]


def test_one_watch_without_memory_does_not_end_the_others(unit: dict[str, list[str]]) -> None:
    """The kernel ends one process, and systemd leaves the unit running."""
    assert unit["OOMPolicy"] == ["continue"]


def test_the_unit_reaches_this_machine_alone(unit: dict[str, list[str]], deploy: Path) -> None:
    """Metrics are for this machine; the comment about the webhook lifts it."""
    text = (deploy / "perfwatch.service").read_text()

    assert (unit["IPAddressAllow"], unit["IPAddressDeny"]) == (["localhost"], ["any"])
    assert "#   IPAddressDeny=\n" in text


def test_what_would_blind_the_daemon_is_not_set(unit: dict[str, list[str]]) -> None:
    """It reads every process, the kernel's log, /proc/meminfo, and the places of jobs in /tmp."""
    assert unit["PrivateTmp"] == ["no"]
    assert not {"ProtectProc", "ProcSubset", "ProtectKernelLogs", "PrivateUsers", "PrivateDevices"} & unit.keys()


def members(group: str) -> set[str]:
    """The system calls of a group of systemd's, those of its groups included."""
    shown = subprocess.run(
        ("systemd-analyze", "syscall-filter", "--no-pager", group),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    words = {line.split()[0] for line in shown.splitlines()[1:] if line.strip() and not line.strip().startswith("#")}
    nested = {word for word in words if word.startswith("@")}
    return (words - nested).union(*(members(word) for word in nested))


@pytest.mark.live
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (Debian package systemd)")
def test_the_system_calls_of_the_child_that_becomes_a_user_are_admitted(unit: dict[str, list[str]]) -> None:
    """Those that drop rights and read inside a job's root; ptrace is not, and no file is given away."""
    admitted: set[str] = set()
    for value in unit["SystemCallFilter"]:
        named = set().union(*(members(w) if w.startswith("@") else {w} for w in value.removeprefix("~").split()))
        admitted = admitted - named if value.startswith("~") else admitted | named

    needed = "setresuid setresgid setgroups prctl chroot openat2 process_vm_readv perf_event_open kill prlimit64"
    assert set(needed.split()) <= admitted
    assert not {"ptrace", "fchown", "chown", "keyctl", "mount", "bpf", "init_module"} & admitted


def test_both_deployments_hold_the_same_capabilities(unit: dict[str, list[str]], manifest: dict[str, Any]) -> None:
    """What the daemon needs does not depend on how it is started."""
    added = manifest["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"]["add"]

    assert unit["CapabilityBoundingSet"] == [" ".join(f"CAP_{name}" for name in added)]
    assert set(added) >= {"SETUID", "SETGID", "SYS_CHROOT", "KILL"}


def test_the_daemon_set_serves_no_metrics_to_the_cluster(manifest: dict[str, Any], deploy: Path) -> None:
    """They name the jobs of all users; the comment that serves them asks for a token."""
    container = manifest["spec"]["template"]["spec"]["containers"][0]

    assert "ports" not in container
    assert not [word for word in container["args"] if "metrics" in word]
    assert "--metrics-token=@/etc/perfwatch/token" in (deploy / "kubernetes.yaml").read_text()


@pytest.mark.live
def test_the_daemon_set_says_what_the_daemon_needs(manifest: dict[str, Any]) -> None:
    """The host's processes, the right to read them, a disk, and no right to anything else."""
    pod = manifest["spec"]["template"]["spec"]
    container = pod["containers"][0]
    mounted = {mount["name"] for mount in container["volumeMounts"]}

    assert manifest["spec"]["selector"]["matchLabels"] == manifest["spec"]["template"]["metadata"]["labels"]
    assert pod["hostPID"] is True
    assert "SYS_PTRACE" in container["securityContext"]["capabilities"]["add"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert pod["volumes"][-1]["secret"]["defaultMode"] == 0o400
    assert container["args"][:2] == ["perfwatch", "daemon"]
    accepted(container["args"][2:])


@pytest.mark.live
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kubectl_takes_the_daemon_set(deploy: Path) -> None:
    """As the object that it says it is, without asking a cluster."""
    command = ("kubectl", "label", "--local", "-f", str(deploy / "kubernetes.yaml"), "tried=yes", "-o", "name")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "daemonset.apps/perfwatch"


def slurm(deploy: Path, which: str, state: Path, **changes: str) -> "subprocess.CompletedProcess[str]":
    """Run a prolog or an epilog as slurmd does."""
    user = pwd.getpwuid(os.getuid())
    environment = {
        "PATH": os.environ["PATH"],
        "PERFWATCH": str(Path(sys.executable).with_name("perfwatch")),
        "PERFWATCH_STATE": str(state),
        "PERFWATCH_OPTIONS": "--every 60",  # it is about coming and going: nobody's job is to be watched
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_USER": user.pw_name,
        "SLURM_JOB_UID": str(user.pw_uid),
        **changes,
    }
    return subprocess.run(
        (str(deploy / f"slurm-{which}.sh"),), env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


@pytest.mark.live
def test_the_prolog_starts_a_watch_and_the_epilog_ends_it(deploy: Path, tmp_path: Path) -> None:
    """At once, with nothing on its streams; what is left belongs to root; old folders go."""
    state = tmp_path / "state"
    (state / "17").mkdir(parents=True)
    os.utime(state / "17", (0, 0))
    (state / "notes").mkdir()
    os.utime(state / "notes", (0, 0))
    began = time.monotonic()
    prolog = slurm(deploy, "prolog", state)
    took = time.monotonic() - began
    pid = int((state / "4711" / ".pid").read_text().split()[0])
    until(lambda: "watching Slurm job 4711" in (state / "4711" / "log").read_text())
    epilog = slurm(deploy, "epilog", state)
    until(lambda: not Path(f"/proc/{pid}").exists())

    assert (prolog.returncode, prolog.stdout, prolog.stderr) == (0, "", "")
    assert took < 5.0
    assert (epilog.returncode, epilog.stdout, epilog.stderr) == (0, "", "")
    assert "recordings are complete" in (state / "4711" / "log").read_text()
    assert {path.name for path in state.iterdir()} == {"4711", "notes"}
    assert (state / "4711").stat().st_mode & 0o707 == 0o700
    assert not (state / "4711" / ".pid").exists()


@pytest.mark.live
@pytest.mark.parametrize(
    "changes", [{"PERFWATCH": "/nowhere/perfwatch"}, {"SLURM_JOB_ID": ""}, {"PERFWATCH_STATE": "/proc/nowhere"}]
)
def test_neither_ever_drains_a_node(deploy: Path, tmp_path: Path, changes: dict[str, str]) -> None:
    """Whatever is missing, the job starts and ends."""
    for which in ("prolog", "epilog"):
        assert slurm(deploy, which, tmp_path, **changes).returncode == 0


@pytest.mark.live
def test_an_epilog_ends_nobody_else(deploy: Path, tmp_path: Path) -> None:
    """The pid was used again meanwhile."""
    (tmp_path / "4711").mkdir()
    with subprocess.Popen(("sleep", "60")) as other:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        (tmp_path / "4711" / ".pid").write_text(f"{other.pid} 1 {boot}")
        done = slurm(deploy, "epilog", tmp_path)
        alive = other.poll() is None
        other.kill()

    assert done.returncode == 0
    assert alive


def test_only_the_jobs_of_one_user_can_be_asked_for() -> None:
    """By name or number; a name that is none is said to be none."""
    from perfwatch.daemon.serving import uid_of
    from perfwatch.errors import UsageError

    assert (uid_of("root"), uid_of("1234"), uid_of(None)) == (0, 1234, None)
    with pytest.raises(UsageError, match="no such user"):
        uid_of("nobody-of-that-name")
