"""srun and kubectl are called exactly as written here, and what they answer finds its host."""

import json

import pytest

from perfwatch.errors import NoSuchTarget, UsageError
from perfwatch.fleet.engine import Answer, Engine, for_a_shell
from perfwatch.fleet.over_kubectl import OverKubectl
from perfwatch.fleet.over_srun import OverSrun
from perfwatch.fleet.wire import DATA_CHARACTERS, LONGEST_ANSWER_BYTES, MARK
from tests.fleet.stubs import Stubs, stubs

pytestmark = pytest.mark.live

__all__ = ["stubs"]

SOON_SECONDS = 30.0
ASKED = ["snapshot", "--nonce=00112233"]


def pod(name: str, phase: str = "Running", container: str = "") -> dict[str, object]:
    """As the API server describes one."""
    containers = [{"name": "train", "image": "x"}, {"name": "sidecar"}]
    chosen = {"annotations": {"kubectl.kubernetes.io/default-container": container}} if container else {}
    return {"metadata": {"name": name, **chosen}, "spec": {"containers": containers}, "status": {"phase": phase}}


def asked(engine: Engine) -> dict[str, Answer]:
    """All answers by host."""
    found: list[Answer] = []
    engine.ask(ASKED, SOON_SECONDS, found.append)
    return {answer.host: answer for answer in found}


def test_kubectl_is_called_for_each_running_pod(stubs: Stubs) -> None:
    """In the container that kubectl itself would take; others are told without being asked: one that is pending is late, one
    that failed (an earlier try) has no ranks any more."""
    pods = [pod("train-0"), pod("train-1", container="sidecar"), pod("train-2", phase="Pending")]
    pods.append(pod("train-old", phase="Failed"))
    stubs.add("kubectl", f"print(json.dumps({{'items': {pods!r}}}) if 'get' in sys.argv else 'said by ' + sys.argv[4])")
    engine = OverKubectl("job-name=train", options=["--namespace", "ml"])
    said = asked(engine)
    calls = stubs.calls()

    assert calls[0] == ["kubectl", "--namespace", "ml", "get", "pods", "--selector=job-name=train", "--output=json"]
    assert sorted(calls[1:]) == [
        ["kubectl", "--namespace", "ml", "exec", "train-0", "--container=train", "--", "perfwatch", *ASKED],
        ["kubectl", "--namespace", "ml", "exec", "train-1", "--container=sidecar", "--", "perfwatch", *ASKED],
    ]
    assert said["train-0"].lines == ("said by train-0",)
    assert (said["train-2"].unasked, said["train-2"].said) == ("silent", "the pod is Pending")
    assert (said["train-old"].unasked, said["train-old"].said) == ("no_job", "the pod is Failed")


def test_a_pod_whose_container_does_not_run_is_told_with_the_reason(stubs: Stubs) -> None:
    """The pod itself is called running as long as another container of it is. One that has ended has no ranks any more."""
    states: dict[str, dict[str, object]] = {
        "killed": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "containerID": "x"}},
        "crashes": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
        "comes": {"waiting": {"reason": "ContainerCreating"}},
        "works": {"running": {"startedAt": "2026-11-26T00:00:00Z"}},
    }
    pods = [pod(name) for name in states]
    for one, state in zip(pods, states.values(), strict=True):
        seen = [{"name": "sidecar", "state": {"running": {}}}, {"name": "train", "state": state, "ready": False}]
        one["status"] = {"phase": "Running", "containerStatuses": seen}
    stubs.add("kubectl", f"print(json.dumps({{'items': {pods!r}}}) if 'get' in sys.argv else 'here')")
    said = asked(OverKubectl("job-name=train"))

    assert {name: (one.unasked, one.said) for name, one in said.items()} == {
        "killed": ("no_job", "container train of the pod has ended (OOMKilled, exit code 137)"),
        "crashes": ("no_job", "container train of the pod has ended (CrashLoopBackOff)"),
        "comes": ("silent", "container train of the pod has not begun (ContainerCreating)"),
        "works": ("", ""),
    }


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ('error: unable to upgrade connection: container not found ("train")', False),
        ('Error from server (NotFound): pods "train-3" not found', False),
        ('exec: "perfwatch": executable file not found in $PATH: unknown', True),
        ("sh: 1: perfwatch: not found", True),
        ("zsh:1: command not found: perfwatch", True),
    ],
)
def test_what_kubectl_does_not_find_is_not_always_perfwatch(said: str, missing: bool) -> None:
    """To install it helps only where it is missing. In the words of kubectl 1.32 and of shells."""
    assert Answer("a", said=said, exit_code=1).not_installed is missing


def test_a_selector_without_pods_and_a_kubectl_that_fails_say_so(stubs: Stubs) -> None:
    """With the command to try by hand."""
    stubs.add("kubectl", "print('{\"items\": []}')")
    with pytest.raises(NoSuchTarget, match="no pod has the labels app=x"):
        OverKubectl("app=x")
    stubs.add("kubectl", "sys.exit('error: You must be logged in to the server')")
    with pytest.raises(UsageError, match="logged in") as failed:
        OverKubectl("app=x")
    assert "kubectl get pods --selector=app=x" in failed.value.advice
    stubs.add("kubectl", "print('<html>')")
    with pytest.raises(UsageError, match="cannot be read"):
        OverKubectl("app=x")


def test_srun_is_called_once_for_all_nodes_of_the_job(stubs: Stubs) -> None:
    """A step that overlaps, one task a node; lines are told apart by their labels, a node that says nothing is late."""
    stubs.add("squeue", "print('node-[a-c]')")
    stubs.add("scontrol", "print('node-a\\nnode-b\\nnode-c')")
    stubs.add(
        "srun", "print('0: first'); print('2: third'); print('0: again'); print('1: node-b is sick', file=sys.stderr)"
    )
    said = asked(OverSrun("4242", ["perfwatch"]))

    assert stubs.calls() == [
        ["squeue", "--noheader", "--jobs", "4242", "--states", "RUNNING", "--format", "%N"],
        ["scontrol", "show", "hostnames", "node-[a-c]"],
        [
            *["srun", "--overlap", "--jobid=4242", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--label"],
            *["--input=none", "--kill-on-bad-exit=0", "--mpi=none", "--cpu-bind=none", "perfwatch", *ASKED],
        ],
    ]
    assert (said["node-a"].lines, said["node-c"].lines) == (("first", "again"), ("third",))
    assert (said["node-b"].lines, said["node-b"].said) == ((), "node-b is sick")


def test_what_one_node_prints_through_srun_takes_nothing_from_the_others(stubs: Stubs) -> None:
    """The first floods the stream, the second answers more than one host may; the third is heard, and 2,000 ranks as well."""
    stubs.add("squeue", "print('node-[a-c]')")
    stubs.add("scontrol", "print('node-a\\nnode-b\\nnode-c')")
    part = f"{MARK} 00112233 0 1 00000000 {'A' * DATA_CHARACTERS}"
    many = LONGEST_ANSWER_BYTES // len(part) + 1
    flood = f"print(('0: ' + 'x' * 700 + chr(10)) * {many}, end='')"
    stubs.add("srun", f"{flood}; print(('1: {part}' + chr(10)) * {many}, end=''); {flood}; print('2: {part}')")
    said = asked(OverSrun("4242", ["perfwatch"]))

    assert {host: one.too_long for host, one in said.items()} == {"node-a": False, "node-b": True, "node-c": False}
    assert len(said["node-a"].lines) < 100
    assert said["node-c"].lines == (part,)


def test_when_each_node_has_answered_through_srun_is_known(stubs: Stubs) -> None:
    """Though all that is said comes out of one step, which ends with the last."""
    stubs.add("squeue", "print('node-[a-b]')")
    stubs.add("scontrol", "print('node-a\\nnode-b')")
    part = f"{MARK} 00112233 0 1 00000000 AAAA"
    stubs.add("srun", f"print('0: {part}', flush=True); import time; time.sleep(0.5); print('1: {part}')")
    said = asked(OverSrun("4242", ["perfwatch"]))

    assert said["node-b"].received - said["node-a"].received > 0.3


def test_what_one_task_of_srun_complains_of_is_no_other_nodes_reason(stubs: Stubs) -> None:
    """Where perfwatch is missing on one node, the answer of another is as whole as before, and the third has printed nothing."""
    stubs.add("squeue", "print('node-[a-c]')")
    stubs.add("scontrol", "print('node-a\\nnode-b\\nnode-c')")
    stubs.add("srun", "print('0: first'); print('1: perfwatch: not found', file=sys.stderr); sys.exit(127)")
    said = asked(OverSrun("4242", ["perfwatch"]))

    assert (said["node-a"].not_installed, said["node-b"].not_installed) == (False, True)
    assert (said["node-b"].said, said["node-c"].said) == ("perfwatch: not found", "")


def test_a_slurm_job_that_does_not_run_is_no_target(stubs: Stubs) -> None:
    """Nor is what is no number of a job: it would become an option of squeue."""
    stubs.add("squeue")
    stubs.add("scontrol")
    stubs.add("srun")

    with pytest.raises(NoSuchTarget, match="job 7 does not run"):
        OverSrun("7")
    with pytest.raises(UsageError, match="number of a job"):
        OverSrun("--help")


def test_without_the_program_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty PATH has neither."""
    monkeypatch.setenv("PATH", "/nowhere")

    with pytest.raises(UsageError, match="srun, squeue, scontrol"):
        OverSrun("1")
    with pytest.raises(UsageError, match="kubectl"):
        OverKubectl("app=x")


def test_words_for_a_login_shell_are_quoted() -> None:
    """What a user types as the job cannot become a command on a hundred hosts."""
    text = for_a_shell(["perfwatch"], ["snapshot", "--job=x; rm -rf ~"])

    assert text == "perfwatch snapshot '--job=x; rm -rf ~'"
    assert json.dumps(for_a_shell(None, ["--job='"])).count("exec") == 3
