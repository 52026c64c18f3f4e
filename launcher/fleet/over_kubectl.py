"""Pods of a job: ``kubectl exec`` in each pod that a label selector names. perfwatch must be in the image."""

import subprocess
import time
from collections.abc import Sequence

import msgspec

from perfwatch.errors import NoSuchTarget, UsageError
from perfwatch.fleet import pool
from perfwatch.fleet.engine import Answer, Heard, found

SERVER_SECONDS = 20.0
ENDED = ("Failed", "Succeeded")  # phases in which no container runs any more, as of a try that was given up
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


class _Container(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct):
    containers: list[_Container]


class _Status(msgspec.Struct):
    phase: str = ""
    reason: str = ""
    message: str = ""


class _Metadata(msgspec.Struct):
    name: str
    annotations: dict[str, str] = {}


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    status: _Status

    @property
    def container(self) -> str:
        """The one that kubectl itself would take."""
        return self.metadata.annotations.get(DEFAULT_CONTAINER) or self.spec.containers[0].name


class _Pods(msgspec.Struct):
    items: list[_Pod]


class OverKubectl:
    """The pods of one job.

    Args:
        selector: labels, as for ``kubectl get --selector``.
        command: what perfwatch is called in the container.
        options: further options of kubectl (``--namespace``, ``--context``), each a word of its own.

    Raises UsageError: kubectl is not there or fails. NoSuchTarget: no pod has these labels.
    """

    complete = True
    job = ""

    def __init__(self, selector: str, command: Sequence[str] | None = None, options: Sequence[str] = ()) -> None:
        if not found("kubectl"):
            raise UsageError(
                "--kubernetes needs kubectl, which is not on PATH", "https://kubernetes.io/docs/tasks/tools/"
            )
        self._command = list(command) if command is not None else ["perfwatch"]
        self._options = list(options)
        self._pods = _pods(["kubectl", *self._options, "get", "pods", f"--selector={selector}", "--output=json"])
        if not self._pods:
            raise NoSuchTarget(f"no pod has the labels {selector}", f"kubectl get pods --selector={selector}")
        self.hosts: tuple[str, ...] = tuple(pod.metadata.name for pod in self._pods)

    def argv(self, pod: str, container: str, arguments: Sequence[str]) -> list[str]:
        """The command for one pod, exactly."""
        return ["kubectl", *self._options, "exec", pod, f"--container={container}", "--", *self._command, *arguments]

    def ask(self, arguments: Sequence[str], deadline_seconds: float, heard: Heard) -> None:
        """See ``Engine.ask``. A pod that does not run is not asked, and told at once."""
        commands = {}
        for pod in self._pods:
            name = pod.metadata.name
            if pod.status.phase == "Running":
                commands[name] = self.argv(name, pod.container, arguments)
            else:
                why = ": ".join(part for part in (pod.status.reason, pod.status.message) if part)
                said = f"the pod is {pod.status.phase or 'in no known phase'}" + (f" ({why})" if why else "")
                unasked = "no_job" if pod.status.phase in ENDED else "silent"
                heard(Answer(name, said=said, unasked=unasked, received=time.time()))
        for answer in pool.run(commands, deadline_seconds):
            heard(answer)


def _pods(command: list[str]) -> list[_Pod]:
    by_hand = f"try it by hand: {' '.join(command)}"
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=SERVER_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"kubectl does not answer: {error}", by_hand) from None
    if done.returncode:
        raise UsageError(f"kubectl failed: {pool.last_line(done.stderr)}", by_hand)
    try:
        return msgspec.json.decode(done.stdout, type=_Pods).items
    except msgspec.DecodeError as error:
        raise UsageError(f"kubectl answered what cannot be read: {error}", by_hand) from None
