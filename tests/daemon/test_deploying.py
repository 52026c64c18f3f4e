"""The files for systemd, Slurm and Kubernetes, each tried as far as one machine allows."""

import json
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
import pytest
import yaml

from perfwatch import __version__
from perfwatch.cli import app
from perfwatch.exporters.announcer import Change
from perfwatch.exporters.metrics import MetricsServer
from perfwatch.exporters.notification import notification
from perfwatch.exporters.notifier import send
from perfwatch.exporters.on_verdict import content_of
from perfwatch.exporters.snapshot import Snapshot
from perfwatch.exporters.wanted import MetricsWanted
from perfwatch.jobs.pods import pod_names
from perfwatch.verdict import JobLabels
from perfwatch_probes.deadline import Inline
from perfwatch_probes.filesystem import Filesystem
from tests.end_to_end.conftest import NOBODY, PATIENCE_SECONDS, until
from tests.fleet.slurm import cluster, submit
from tests.fleet.slurm import why_not as why_no_slurm
from tests.sessions import session, verdict


@pytest.fixture
def deploy(repository: Path) -> Path:
    """Where the files are."""
    return repository / "scripts" / "deploy"


@pytest.fixture
def manifest(deploy: Path) -> dict[str, Any]:
    """The DaemonSet."""
    found: dict[str, Any] = yaml.safe_load((deploy / "kubernetes" / "daemonset.yaml").read_text())
    return found


def accepted(words: list[str], name: str = "daemon") -> None:
    """Raises unless the command line of this command of perfwatch takes these options."""
    context = app.make_context("perfwatch", [name])
    command = app.get_command(context, name)
    assert command is not None
    command.make_context(name, list(words), parent=context)


# How each command of the page is tried, by what it begins with.
NEEDS_A_CLUSTER = ("docker build ", "cd scripts/deploy/kubernetes && kustomize ")
ELSEWHERE = {
    "python3 -m venv /opt/perfwatch": "tests/test_packaging.py",
    "cat /var/lib/perfwatch/slurm": "tests/security/test_slurm.py",
    "kubectl debug ": "test_the_recipe_for_kubectl_debug_asks_for_what_an_attach_needs",
}
STEPS = "export PERFWATCH_STEPS="


def commands_of(deploy: Path) -> list[str]:
    """The lines in the blocks of code of the page, comments left out."""
    lines, inside = [], False
    for line in (deploy / "README.md").read_text().splitlines():
        inside ^= line.startswith("```")
        if (inside and not line.startswith("```")) or line.startswith("    "):
            lines.append(re.sub(r"\s{2,}#.*|\s+#\s.*", "", line.strip()))
    return [line for line in lines if line]


@pytest.mark.live
def test_each_command_of_the_page_is_run_or_named_here(deploy: Path, repository: Path, tmp_path: Path) -> None:
    """But for those that need a cluster or a registry. perfwatch's own are held against its options, those of pytest find tests."""
    tried = dict.fromkeys(("perfwatch", "pytest", "promtool", "kubectl", "shell", "elsewhere", "cluster"), 0)
    for line in commands_of(deploy):
        code, kind = "true", "elsewhere"
        if line.startswith("perfwatch "):
            kind, (name, *words) = "perfwatch", shlex.split(line)[1:]
            words = [
                str(deploy / word.removeprefix("/etc/perfwatch/")) if word.startswith("/etc/") else word
                for word in words
            ]
            accepted(words, name)
        elif line.startswith("pytest "):
            kind, code = "pytest", f"{shlex.quote(sys.executable)} -m {line} --collect-only"
        elif "promtool" in line:
            kind, code = "promtool", line if shutil.which("promtool") else "true"
        elif line.startswith("kubectl -n perfwatch create secret"):
            kind, code = "kubectl", f"{line} --dry-run=client" if shutil.which("kubectl") else "true"
        elif line.startswith(STEPS):
            kind, code = "shell", f'RESUMED_STEP=400; {line}; [ "$PERFWATCH_STEPS" -eq 99600 ]'
        elif line.startswith(NEEDS_A_CLUSTER):
            kind = "cluster"
        else:
            assert line.startswith(tuple(ELSEWHERE)), f"nothing tries this command: {line}"
        done = subprocess.run(("bash", "-c", code), cwd=repository, capture_output=True, text=True, timeout=120)
        tried[kind] += 1

        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    assert all(tried.values()), tried


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
    assert (
        "--metrics-token=@/etc/perfwatch/token" in (deploy / "kubernetes/with-metrics/kustomization.yaml").read_text()
    )


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
    assert container["command"] == ["perfwatch", "daemon"]
    accepted(container["args"])


COMPONENTS = ("with-metrics", "with-runtime-class", "with-delete-pod")


def built(deploy: Path, folder: Path, components: Sequence[str]) -> list[dict[str, Any]]:
    """The objects that ``kubectl apply -k`` would send, from the base and some components."""
    folder.mkdir()
    base = os.path.relpath(deploy / "kubernetes", folder)
    kustomization = {"resources": [base], "components": [f"{base}/{name}" for name in components]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    done = subprocess.run(("kubectl", "kustomize", str(folder)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.live
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize("components", [(), *((name,) for name in COMPONENTS), COMPONENTS])
def test_kustomize_builds_the_base_with_each_component(deploy: Path, tmp_path: Path, components: Sequence[str]) -> None:
    """Objects of the schemas of Kubernetes, a namespace that admits the pods, and options that the daemon takes."""
    objects = built(deploy, tmp_path / "overlay", components)
    by_kind = {one["kind"]: one for one in objects}
    pod = by_kind["DaemonSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    secrets = [
        one["valueFrom"]["secretKeyRef"] for one in container["env"] if "secretKeyRef" in one.get("valueFrom", {})
    ]
    needs = {"with-metrics": "PodMonitor", "with-delete-pod": "ClusterRole"}

    accepted([word for word in container["args"] if not word.startswith(("--metrics-token", "--on-verdict="))])
    assert container["image"] == f"perfwatch:{__version__}"
    assert by_kind["Namespace"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert {one["name"] for one in container["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    assert secrets
    assert all(one["optional"] for one in secrets)
    assert {kind for name, kind in needs.items() if name in components} == set(needs.values()) & by_kind.keys()
    assert bool(by_kind["NetworkPolicy"]["spec"]["ingress"]) == ("with-metrics" in components)


@pytest.mark.live
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_what_kustomize_builds_is_of_the_schemas_of_kubernetes(deploy: Path, tmp_path: Path) -> None:
    """Those of the project itself, without a field that they do not know. The PodMonitor belongs to another project."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="needs the package kubernetes-validate")
    objects = [one for one in built(deploy, tmp_path / "overlay", COMPONENTS) if one["kind"] != "PodMonitor"]
    for one in objects:
        kubernetes_validate.validate(one, "1.32", strict=True)
    wrong = next(one for one in objects if one["kind"] == "DaemonSet")
    wrong["spec"]["template"]["spec"]["hostPid"] = True

    assert len(objects) == 6
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.32", strict=True)


def test_the_kubelets_links_name_the_pod_of_a_container(tmp_path: Path) -> None:
    """By the id in the control group; another container of the node, and a name that is no such link, are passed over."""
    container, other = "ab" * 32, "cd" * 32
    proc, links = tmp_path / "proc", tmp_path / "links"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text(f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{container}.scope\n")
    links.mkdir()
    for name in (f"web-0_shop_web-{other}.log", f"train-0_ml_trainer-{container}.log", "notes"):
        (links / name).touch()
    filesystem = Filesystem(proc=proc)

    assert pod_names(filesystem, Inline(), 7, str(links)) == {
        "namespace": "ml",
        "pod": "train-0",
        "container": "trainer",
    }
    assert pod_names(filesystem, Inline(), 7, str(tmp_path / "nowhere")) == {}


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
    from perfwatch.errors import UsageError
    from perfwatch.exporters.options import uid_of

    assert (uid_of("root"), uid_of("1234"), uid_of(None)) == (0, 1234, None)
    with pytest.raises(UsageError, match="no such user"):
        uid_of("nobody-of-that-name")


def verdict_for(action: str | None, **job: object) -> bytes:
    """What ``--on-verdict`` gives to an action."""
    return json.dumps(content_of(verdict(action=action, cause="gpu_fault", job=JobLabels(**job)))).encode()  # type: ignore[arg-type]


def act(deploy: Path, words: str, verdict: bytes, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit code and output of a shipped action."""
    name, *options = words.split()
    done = subprocess.run(
        (str(deploy / "actions" / name), *options), input=verdict, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    return done.returncode, done.stdout.decode().strip()


POD_UID = "12345678-1234-1234-1234-123456789abc"
ACTIONS = ("cancel-slurm-job", "delete-pod", "drain-node --slurm", "drain-node --kubernetes")


@pytest.mark.live
@pytest.mark.parametrize("words", ACTIONS)
@pytest.mark.parametrize("action", ["wait", "fix_code", "none", None])
def test_an_action_is_for_jobs_that_must_be_restarted_or_moved(deploy: Path, words: str, action: str | None) -> None:
    """All else is left as it is, also with --really."""
    code, said = act(deploy, f"{words} --really", verdict_for(action, slurm_job_id="4711", pod_uid=POD_UID))

    assert (code, said) == (0, f"nothing to do: hung, action {action}")


# Of NVSentinel's health_event.proto, by number: the name, and U for uint32, S for string, B for bool, E for enum, M for a message.
HEALTH_EVENT = {
    1: "U version", 2: "S agent", 3: "S componentClass", 4: "S checkName", 5: "B isFatal", 6: "B isHealthy", 7: "S message",
    8: "E recommendedAction", 9: "S errorCode", 10: "M entitiesImpacted", 11: "M metadata", 12: "M generatedTimestamp",
    13: "S nodeName", 14: "M quarantineOverrides", 15: "M drainOverrides", 16: "E processingStrategy",
}  # fmt: skip


def fields(message: bytes) -> list[tuple[int, Any]]:
    """The fields of a protobuf message, as protobuf's own parser finds them."""
    unknown = pytest.importorskip("google.protobuf.unknown_fields", reason="needs the package protobuf")
    empty = pytest.importorskip("google.protobuf.empty_pb2").Empty.FromString(message)
    return [(one.field_number, one.data) for one in unknown.UnknownFieldSet(empty)]


@pytest.mark.live
def test_nvsentinel_is_told_in_its_own_schema(deploy: Path) -> None:
    """The event names the node, the card, the owner and what to do; it is stored only, unless quarantine is asked for."""
    told = verdict_for("replace_node", slurm_job_id="4711", user="ann", host="elsewhere")
    code, said = act(deploy, "nvsentinel-event --node node-a", told)
    event = json.loads(said.removeprefix("would send: "))
    source = (deploy / "actions" / "nvsentinel-event").read_text().replace("sys.exit(main())", "")
    action: dict[str, Any] = {}
    exec(compile(source, "nvsentinel-event", "exec"), action)
    event["entitiesImpacted"] = [{"entityType": "GPU", "entityValue": "3"}]
    ((version, one), (tag, inside)) = fields(action["packed"](event))
    packed = {HEALTH_EVENT[number].split()[1]: value for number, value in fields(inside)}

    assert code == 0
    assert event.keys() <= {name.split()[1] for name in HEALTH_EVENT.values()}
    assert (version, one, tag) == (1, 1, 2)
    assert (packed["agent"], packed["nodeName"], packed["checkName"]) == (b"perfwatch", b"node-a", b"PerfwatchGpuFault")
    assert (packed["isFatal"], packed["recommendedAction"], packed["processingStrategy"]) == (1, 5, 2)
    assert fields(packed["entitiesImpacted"]) == [(1, b"GPU"), (2, b"3")]
    assert fields(packed["metadata"]) == [(1, b"slurm_job_id"), (2, b"4711")]
    assert act(deploy, "nvsentinel-event --really", verdict_for("restart"))[1] == "nothing to do: hung, action restart"


@pytest.mark.live
def test_a_verdict_is_one_line_of_a_log_for_others_to_read(deploy: Path, tmp_path: Path) -> None:
    """One form, quoted, appended; a link is not followed, and no word of the job leads elsewhere."""
    told = verdict_for("restart", slurm_job_id="4711", host="node-a")
    for _ in range(2):
        assert act(deploy, f"log-verdict --file {tmp_path}/%j.log", told) == (0, f"wrote to {tmp_path}/4711.log")
    lines = (tmp_path / "4711.log").read_text().splitlines()
    (tmp_path / "9.log").symlink_to(tmp_path / "victim")
    followed, _ = act(deploy, f"log-verdict --file {tmp_path}/%j.log", verdict_for("restart", slurm_job_id="9"))
    elsewhere = act(deploy, f"log-verdict --file {tmp_path}/%j.log", verdict_for("restart", slurm_job_id="../x"))

    assert len(lines) == 2
    assert lines[0].startswith('perfwatch signal state="hung" cause="gpu_fault" action="restart" confidence="certain"')
    assert 'slurm_job_id="4711" host="node-a"' in lines[0]
    assert (followed, (tmp_path / "victim").exists()) == (1, False)
    assert elsewhere == (0, "nothing to do: the job has no number of Slurm's")


@pytest.mark.live
def test_an_action_changes_nothing_unless_it_is_told_to(deploy: Path) -> None:
    """It says what it would do, for the Slurm job of the verdict and for the node where it runs."""
    told = verdict_for("replace_node", slurm_job_id="4711", pid=77, host="elsewhere", uid=os.geteuid())

    assert act(deploy, "cancel-slurm-job --keep /k", told) == (
        0, "would run: perfwatch attach 77 --fresh --session /k/4711-77\nwould run: scancel 4711",
    )  # fmt: skip
    assert act(deploy, "cancel-slurm-job --requeue", told) == (0, "would run: scontrol requeue 4711")
    assert act(deploy, "drain-node --slurm --node node-a.site", told) == (
        0, "would run: scontrol update nodename=node-a state=drain reason=perfwatch: gpu_fault",
    )  # fmt: skip
    assert act(deploy, "drain-node --kubernetes --node node-a", told) == (0, "would run: kubectl cordon node-a")


@pytest.mark.live
@pytest.mark.parametrize("number", ["", "1 2", "--user=root", "4711;reboot", "\u0661"])
def test_no_word_of_a_job_becomes_an_option(deploy: Path, number: str) -> None:
    """Its environment may say anything."""
    for name in ("cancel-slurm-job", "comment-slurm-job"):
        assert act(deploy, name, verdict_for("restart", slurm_job_id=number)) == (
            0, "nothing to do: the job is no Slurm job",
        )  # fmt: skip


@pytest.mark.live
@pytest.mark.parametrize("name", ["cancel-slurm-job", "comment-slurm-job"])
@pytest.mark.parametrize("uid", [os.geteuid() + 1, None])
def test_a_job_cannot_have_another_users_job_ended_in_its_name(deploy: Path, name: str, uid: int | None) -> None:
    """Its environment may hold any number: as another user, root above all, nothing is done. A job of several users has no uid."""
    code, said = act(deploy, f"{name} --really", verdict_for("restart", slurm_job_id="4711", uid=uid))

    assert (code, said.partition(" (")[0]) == (0, "nothing to do: only the job's user")


class ApiServer:
    """What kubectl needs for pods and a node; ``asked`` holds the requests that change something."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(server.known(self.path.partition("?")[0]))

            def do_DELETE(self) -> None:
                server.asked.append(("DELETE", self.path, self._body()))
                self._answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

            def do_PATCH(self) -> None:
                server.asked.append(("PATCH", self.path, self._body()))
                self._answer(server.known(self.path.partition("?")[0].removesuffix("/ephemeralcontainers")))

            def _body(self) -> dict[str, Any]:
                body, size = b"", int(self.headers.get("Content-Length", "0"))
                while self.headers.get("Transfer-Encoding") == "chunked" and (
                    size := int(self.rfile.readline() or b"0", 16)
                ):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                found: dict[str, Any] = json.loads(body or self.rfile.read(size))
                return found

            def _answer(self, content: dict[str, Any] | None) -> None:
                body = json.dumps(content or {"kind": "Status", "status": "Failure", "code": 404}).encode()
                self.send_response(200 if content else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @staticmethod
    def known(path: str) -> dict[str, Any] | None:
        """What is there."""
        names = {"name": "train-0", "namespace": "ml", "uid": POD_UID}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": names,
            "spec": {"containers": [{"name": "trainer", "image": "train"}]},
        }
        resources = [
            {"name": name, "kind": kind, "namespaced": name != "nodes", "verbs": ["get", "list", "delete", "patch"]}
            for name, kind in (("pods", "Pod"), ("nodes", "Node"), ("pods/ephemeralcontainers", "Pod"))
        ]
        answers: dict[str, dict[str, Any]] = {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": resources},
            "/api/v1/namespaces/ml": {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}},
            "/api/v1/namespaces/ml/pods/train-0": pod,
            "/api/v1/pods": {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod]},
            "/api/v1/nodes/node-a": {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}, "spec": {}},
        }
        return answers.get(path)

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def cluster_of_pods(tmp_path: Path) -> Iterator[tuple[ApiServer, dict[str, str]]]:
    """The server, and the environment in which a real kubectl finds it."""
    server = ApiServer()
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here", "users": [],
        "clusters": [{"name": "here", "cluster": {"server": server.url}}],
        "contexts": [{"name": "here", "context": {"cluster": "here"}}],
    }  # fmt: skip
    (tmp_path / "config").write_text(json.dumps(config))
    yield server, {**os.environ, "KUBECONFIG": str(tmp_path / "config"), "HOME": str(tmp_path)}
    server.close()


@pytest.mark.live
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_a_pod_is_deleted_by_its_uid_through_a_real_kubectl(
    deploy: Path, cluster_of_pods: tuple[ApiServer, dict[str, str]]
) -> None:
    """Another pod of the name that a job claims is safe."""
    server, names = cluster_of_pods
    claimed = verdict_for("restart", pod_uid=POD_UID.replace("1", "2"), namespace="ml", pod="train-0")
    ours = verdict_for("restart", pod_uid=POD_UID, namespace="kube-system", pod="coredns")

    assert act(deploy, "delete-pod --really", claimed, names)[1].startswith("nothing to do: no pod has the uid")
    assert act(deploy, "delete-pod", ours, names) == (0, f"would delete pod ml/train-0 (uid {POD_UID})")
    assert server.asked == []
    assert act(deploy, "delete-pod --really", ours, names) == (0, f"deleted pod ml/train-0 (uid {POD_UID})")
    assert [(verb, path) for verb, path, _ in server.asked] == [("DELETE", "/api/v1/namespaces/ml/pods/train-0")]
    assert server.asked[0][2]["preconditions"] == {"uid": POD_UID}


@pytest.mark.live
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_a_node_is_cordoned_through_a_real_kubectl(
    deploy: Path, cluster_of_pods: tuple[ApiServer, dict[str, str]]
) -> None:
    """The one where the action runs."""
    server, names = cluster_of_pods
    told = verdict_for("replace_node", host="node-b")

    assert act(deploy, "drain-node --kubernetes --really", told, {**names, "NODE_NAME": "node-a"})[0] == 0
    assert [(verb, path.partition("?")[0], body) for verb, path, body in server.asked] == [
        ("PATCH", "/api/v1/nodes/node-a", {"spec": {"unschedulable": True}})
    ]


@pytest.mark.live
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_the_recipe_for_kubectl_debug_asks_for_what_an_attach_needs(
    deploy: Path, repository: Path, cluster_of_pods: tuple[ApiServer, dict[str, str]]
) -> None:
    """The line of the README, with a real kubectl: the processes of the container, root, and the right to read their memory."""
    server, names = cluster_of_pods
    (line,) = re.findall(r"^kubectl debug .*$", (deploy / "README.md").read_text(), re.MULTILINE)
    words = line.replace("-it ", "-n ml ").replace("POD", "train-0").replace("CONTAINER", "trainer").split()
    done = subprocess.run(words, cwd=repository, env=names, capture_output=True, text=True, timeout=60)
    ((verb, path, body),) = server.asked
    (container,) = body["spec"]["ephemeralContainers"]

    assert done.returncode == 0, done.stderr
    assert (verb, path.partition("?")[0]) == ("PATCH", "/api/v1/namespaces/ml/pods/train-0/ephemeralcontainers")
    assert (container["targetContainerName"], container["command"]) == ("trainer", ["perfwatch", "attach"])
    assert container["securityContext"]["runAsUser"] == 0
    assert "SYS_PTRACE" in container["securityContext"]["capabilities"]["add"]


@pytest.fixture
def node_problem(deploy: Path) -> Iterator[Callable[[Snapshot | None], tuple[int, str]]]:
    """Runs the plugin of node-problem-detector beside a metrics server with this job; None: nothing answers."""
    servers: list[MetricsServer] = []

    def ask(snapshot: Snapshot | None) -> tuple[int, str]:
        servers.append(MetricsServer(MetricsWanted()))
        until(lambda: bool(servers[-1].news()))
        address = servers[-1].address.removeprefix("http://").partition("/")[0]
        if snapshot is None:
            servers[-1].close()
        else:
            servers[-1].put(snapshot)
            until(lambda: b"perfwatch_job_info{" in urllib.request.urlopen(servers[-1].address, timeout=30).read())
        return act(deploy, "node-problem", b"", {**os.environ, "PERFWATCH_METRICS": address})

    yield ask
    for server in servers:
        server.close()


@pytest.mark.live
def test_node_problem_detector_is_told_of_a_node_at_fault(
    node_problem: Callable[[Snapshot | None], tuple[int, str]],
) -> None:
    """Its three exit codes: no fault, a fault, not known."""
    calm = Snapshot(
        session="s", mode="daemon", root_pid=1, command="x", looked=time.time(), state="hung", cause="stuck_worker",
        action="restart", confidence=0.95,
    )  # fmt: skip
    faulty = msgspec.structs.replace(calm, cause="gpu_fault", action="replace_node")

    assert node_problem(calm) == (0, "perfwatch sees no fault of this node")
    assert node_problem(faulty) == (1, "perfwatch: gpu_fault, replace this node")
    assert node_problem(msgspec.structs.replace(calm, looked=1.0)) == (2, "perfwatch has not looked for 120 s")
    code, said = node_problem(None)
    assert (code, "does not answer" in said) == (2, True)


@pytest.mark.live
@pytest.mark.skipif(shutil.which("node-problem-detector") is None, reason="needs node-problem-detector")
def test_a_real_node_problem_detector_has_the_condition(deploy: Path, tmp_path: Path) -> None:
    """With the shipped configuration, but for the paths and the pause; it serves the condition as a metric of its own."""
    metrics, [port] = MetricsServer(MetricsWanted()), free_ports(1)
    until(lambda: bool(metrics.news()))
    metrics.put(
        Snapshot(
            session="s", mode="daemon", root_pid=1, command="x", looked=time.time(), state="gone", cause="gpu_fault",
            action="replace_node", confidence=0.95,
        )
    )  # fmt: skip
    until(lambda: b"perfwatch_job_info{" in urllib.request.urlopen(metrics.address, timeout=30).read())
    config = json.loads((deploy / "actions" / "node-problem.json").read_text())
    config["pluginConfig"]["invoke_interval"] = "1s"
    config["rules"][0]["path"] = str(deploy / "actions" / "node-problem")
    (tmp_path / "node-problem.json").write_text(json.dumps(config))
    words = (
        "node-problem-detector", f"--config.custom-plugin-monitor={tmp_path}/node-problem.json", "--enable-k8s-exporter=false",
        f"--prometheus-port={port}", "--prometheus-address=127.0.0.1", "--port=0", "--hostname-override=node-a",
    )  # fmt: skip
    names = {**os.environ, "PERFWATCH_METRICS": urlsplit(metrics.address).netloc}

    def served() -> str:
        try:
            return str(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode())
        except OSError:
            return ""

    wanted = 'problem_gauge{reason="HardwareOrDriverFault",type="PerfwatchNodeSuspect"} 1'
    with (tmp_path / "log").open("w") as log, subprocess.Popen(words, env=names, stdout=log, stderr=log) as detector:
        try:
            until(lambda: wanted in served())
        finally:
            detector.kill()
            metrics.close()


@pytest.mark.live
def test_slurms_health_check_drains_a_node_at_fault_in_a_real_cluster(deploy: Path, tmp_path: Path) -> None:
    """Once, with perfwatch's word as the reason; not while all is well."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    metrics = MetricsServer(MetricsWanted())
    until(lambda: bool(metrics.news()))
    calm = Snapshot(
        session="s", mode="daemon", root_pid=1, command="x", looked=time.time(), state="hung", cause="stuck_worker",
        action="restart", confidence=0.95,
    )  # fmt: skip
    ran, program = tmp_path / "ran", tmp_path / "check"
    address = urlsplit(metrics.address).netloc
    program.write_text(
        f"#!/bin/sh\nexport PERFWATCH_METRICS={address} SLURM_CONF=$(cat {tmp_path}/conf)\n"
        f"{deploy}/slurm-health-check.sh\necho $? >>{ran}\n"
    )
    program.chmod(0o755)
    metrics.put(calm)
    try:
        with cluster(f"HealthCheckProgram={program}", "HealthCheckInterval=1") as names:
            if names is None:
                pytest.skip("Slurm's daemons do not come up on this machine")
            (tmp_path / "conf").write_text(names["SLURM_CONF"])

            def nodes() -> str:
                shown = subprocess.run(
                    ("scontrol", "show", "node"), env=names, capture_output=True, text=True, timeout=60
                )
                return shown.stdout

            until(lambda: ran.exists() and len(ran.read_text().split()) > 2)
            well = nodes()
            metrics.put(msgspec.structs.replace(calm, cause="driver_unresponsive", action="replace_node"))
            until(lambda: "Reason=perfwatch: driver_unresponsive, replace this node" in nodes())
            ill = nodes()
    finally:
        metrics.close()

    assert "DRAIN" not in well
    assert "DRAIN" in ill
    assert set(ran.read_text().split()) == {"0"}


@pytest.mark.live
def test_a_slurm_job_is_cancelled_and_a_node_drained_in_a_real_cluster(deploy: Path) -> None:
    """By a real slurmctld; another user's job is refused by Slurm itself."""
    if reason := why_no_slurm():
        pytest.skip(reason)
    with cluster() as names:
        if names is None:
            pytest.skip("Slurm's daemons do not come up on this machine")

        def shown(*command: str) -> str:
            return subprocess.run(command, env=names, capture_output=True, text=True, timeout=60).stdout

        job = submit(names, "--wrap=sleep 600")
        until(lambda: "RUNNING" in shown("squeue", "--noheader", "--format=%T", f"--jobs={job}"))
        told = verdict_for("replace_node", slurm_job_id=job, uid=os.geteuid())
        nobody = subprocess.run(
            (*NOBODY, str(deploy / "actions" / "cancel-slurm-job"), "--really"),
            input=verdict_for("replace_node", slurm_job_id=job, uid=65534), env=names, capture_output=True, timeout=60,
        )  # fmt: skip
        running = shown("squeue", "--noheader", "--format=%T", f"--jobs={job}")
        commented = act(deploy, "comment-slurm-job --really", told, names)
        shown_comment = shown("squeue", "--noheader", "--format=%k", f"--jobs={job}").strip()
        drained = act(deploy, "drain-node --slurm --really --node node-b", told, names)
        cancelled = act(deploy, "cancel-slurm-job --really", told, names)
        until(lambda: "CANCELLED" in shown("scontrol", "show", "job", job))
        node = shown("scontrol", "show", "node", "node-b")

    assert (nobody.returncode, running.strip()) == (1, "RUNNING")
    assert drained[0] == cancelled[0] == commented[0] == 0
    assert shown_comment == "perfwatch: hung gpu_fault since 2026-11-20T11:51:24Z"
    assert "DRAIN" in node
    assert "perfwatch: gpu_fault" in node


def expressions(deploy: Path) -> list[str]:
    """All PromQL of the dashboard, with its variables filled in as Grafana does for "All"."""
    board = json.loads((deploy / "prometheus" / "grafana-dashboard.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    found += [one["expr"] for one in board["annotations"]["list"]]
    return [one.replace("$instance", ".*").replace("$session", ".*") for one in found]


needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool (Debian package prometheus)"
)


@pytest.mark.live
@needs_promtool
@pytest.mark.parametrize("words", ["check rules rules.yaml", "test rules rules-test.yaml"])
def test_the_alerts_do_what_their_tests_say(deploy: Path, words: str) -> None:
    """By promtool itself."""
    done = subprocess.run(
        ("promtool", *words.split()), cwd=deploy / "prometheus", capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@pytest.mark.live
@needs_promtool
def test_the_dashboard_asks_what_prometheus_understands(deploy: Path, tmp_path: Path) -> None:
    """Each expression as a rule, which promtool parses."""
    rules = [{"record": f"panel_{number}", "expr": one} for number, one in enumerate(expressions(deploy))]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        ("promtool", "check", "rules", str(tmp_path / "rules.yaml")), capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_alerts_and_dashboard_name_no_metric_and_no_label_that_is_not_served(deploy: Path, repository: Path) -> None:
    """The list of metrics is the one in the README of the exporters."""
    text = (repository / "launcher/perfwatch/exporters/README.md").read_text()
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `perfwatch_")]
    served = {row[0].strip(" `") for row in rows}
    rules = yaml.safe_load((deploy / "prometheus" / "rules.yaml").read_text())["groups"][0]["rules"]
    asked = set(re.findall(r"perfwatch_\w+", " ".join([*(rule["expr"] for rule in rules), *expressions(deploy)])))

    assert {re.sub("_(bucket|count|sum)$", "", name) if name not in served else name for name in asked} <= served


@pytest.mark.live
@pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("prometheus-alertmanager") is None,
    reason="needs Debian packages prometheus and prometheus-alertmanager",
)
def test_a_hang_becomes_an_alert_with_its_owner_in_a_real_alertmanager(deploy: Path, tmp_path: Path) -> None:
    """A real Prometheus scrapes the server of the metrics, and every panel of the dashboard has an answer."""
    metrics, [prometheus, alertmanager, cluster_port] = MetricsServer(MetricsWanted()), free_ports(3)
    until(lambda: bool(metrics.news()))
    hung = Snapshot(
        session="s1", mode="daemon", root_pid=1, command="", looked=time.time(), state="hung", cause="stuck_worker",
        owner="data", action="restart", confidence=0.95, judged=time.time(), job={"user": "ann", "slurm_job_id": "4711"},
    )  # fmt: skip
    metrics.put(hung)
    target = urlsplit(metrics.address).netloc
    rules = (deploy / "prometheus" / "rules.yaml").read_text().replace("for: 30s", "for: 1s")
    (tmp_path / "rules.yaml").write_text(rules)
    (tmp_path / "prometheus.yml").write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": ["rules.yaml"],
                "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{alertmanager}"]}]}]},
                "scrape_configs": [{"job_name": "perfwatch", "static_configs": [{"targets": [target]}]}],
            }
        )
    )
    (tmp_path / "alertmanager.yml").write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    commands = (
        ("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address=127.0.0.1:{prometheus}"),
        (
            "prometheus-alertmanager", "--config.file=alertmanager.yml", "--storage.path=am",
            f"--web.listen-address=127.0.0.1:{alertmanager}", f"--cluster.listen-address=127.0.0.1:{cluster_port}",
        ),
    )  # fmt: skip

    def ask(port: int, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return json.loads(answer.read())
        except OSError:
            return []

    with ExitStack() as ends:
        ends.callback(metrics.close)
        for command in commands:
            log = ends.enter_context((tmp_path / f"{command[0]}.log").open("w"))
            process = ends.enter_context(subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log))
            ends.callback(process.kill)
        until(lambda: bool(ask(alertmanager, "/api/v2/alerts")))  # by Prometheus; then those of perfwatch itself
        (alert,) = ask(alertmanager, "/api/v2/alerts")
        posted = [
            _post_to_alertmanager(ask, alertmanager, *told) for told in (("hung", "stopped"), ("gone", "finished"))
        ]
        panels = [ask(prometheus, f"/api/v1/query?{urlencode({'query': one})}") for one in expressions(deploy)]

    assert posted == [["stopped"], []]
    assert (alert["labels"]["alertname"], alert["labels"]["user"], alert["labels"]["slurm_job_id"]) == (
        "TrainingHung", "ann", "4711",
    )  # fmt: skip
    assert alert["annotations"]["summary"] == "A training run of ann hangs: stuck_worker"
    assert {panel["status"] for panel in panels} == {"success"}
    table = next(
        panel for panel in panels if panel["data"]["result"] and "slurm_job_id" in panel["data"]["result"][0]["metric"]
    )
    assert table["data"]["result"][0]["metric"]["action"] == "restart"


def _post_to_alertmanager(ask: Callable[[int, str], Any], port: int, state: str, cause: str) -> list[str]:
    """The causes of the alerts of perfwatch's own that are active after this news."""
    told = verdict(state=state, cause=cause, at=datetime.now(timezone.utc).isoformat(timespec="seconds"))
    status, _ = send(f"alertmanager+http://127.0.0.1:{port}", notification(Change(told, None), session(), ""), 30.0)
    assert status == 200
    expected = 1 if state == "hung" else 0

    def active() -> list[str]:
        return [one["annotations"]["cause"] for one in ask(port, "/api/v2/alerts?filter=alertname%3DPerfwatch")]

    until(lambda: len(active()) == expected)
    return active()


def free_ports(count: int) -> list[int]:
    """Ports of this machine on which nothing listens."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(listener.getsockname()[1]) for listener in listeners]
