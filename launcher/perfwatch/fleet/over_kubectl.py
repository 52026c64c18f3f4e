"""Pods of a job: ``kubectl exec`` in each pod that a label selector names. perfwatch must be in the image."""

import shlex
import subprocess
import time
from collections.abc import Sequence
from functools import partial

import msgspec

from perfwatch.errors import NoSuchTarget, UsageError
from perfwatch.fleet import pool
from perfwatch.fleet.engine import Answer, Heard, found
from perfwatch.recording.damage import DAMAGED

SERVER_SECONDS = 20.0
ENDED = ("Failed", "Succeeded")  # phases in which no container runs any more, as of a try that was given up
RESTARTS = "CrashLoopBackOff"  # of a container that has ended, and will be begun again
CLOSING = "command terminated with "  # kubectl's own last line, after all that the program has said
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


class _Container(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct):
    containers: list[_Container]


class _Why(msgspec.Struct, rename="camel"):
    reason: str = ""
    message: str = ""
    exit_code: int | None = None

    @property
    def shown(self) -> str:
        """``OOMKilled, exit code 137``."""
        code = "" if self.exit_code is None else f"exit code {self.exit_code}"
        return ", ".join(part for part in (self.reason, code) if part)


class _State(msgspec.Struct):
    waiting: _Why | None = None
    terminated: _Why | None = None


class _ContainerStatus(msgspec.Struct):
    name: str
    state: _State = msgspec.field(default_factory=_State)


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    container_statuses: list[_ContainerStatus] = []


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

    @property
    def unasked(self) -> tuple[str, str] | None:
        """The state of the host and why, of one that cannot be asked; None where the container runs."""
        status = self.status
        if status.phase != "Running":
            why = ": ".join(part for part in (status.reason, status.message) if part)
            said = f"the pod is {status.phase or 'in no known phase'}" + (f" ({why})" if why else "")
            return "no_job" if status.phase in ENDED else "silent", said
        state = next((one.state for one in status.container_statuses if one.name == self.container), _State())
        ended = state.terminated or (state.waiting if state.waiting and state.waiting.reason == RESTARTS else None)
        if ended is not None:
            return "no_job", f"container {self.container} of the pod has ended ({ended.shown})"
        if state.waiting is not None:
            return "silent", f"container {self.container} of the pod has not begun ({state.waiting.shown})"
        return None


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
        listing = ["kubectl", *self._options, "get", "pods"]
        self._pods = _pods([*listing, f"--selector={selector}", "--output=json"])
        if not self._pods:
            raise NoSuchTarget(f"no pod has the labels {selector}", shlex.join([*listing, "--show-labels"]))
        self.hosts: tuple[str, ...] = tuple(pod.metadata.name for pod in self._pods)

    def by_hand(self, host: str) -> str:
        """See ``Engine.by_hand``."""
        return shlex.join(["kubectl", *self._options, "exec", host, "--", "true"])

    def argv(self, pod: str, container: str, arguments: Sequence[str]) -> list[str]:
        """The command for one pod, exactly."""
        return ["kubectl", *self._options, "exec", pod, f"--container={container}", "--", *self._command, *arguments]

    def ask(self, arguments: Sequence[str], deadline_seconds: float, heard: Heard) -> None:
        """See ``Engine.ask``. One that does not run is not asked, and told at once."""
        commands = {}
        for pod in self._pods:
            name = pod.metadata.name
            if pod.unasked is None:
                commands[name] = self.argv(name, pod.container, arguments)
            else:
                unasked, said = pod.unasked
                heard(Answer(name, said=said, unasked=unasked, received=time.time()))
        for answer in pool.run(commands, deadline_seconds, complaint=partial(pool.last_line, but=CLOSING)):
            heard(answer)


def _pods(command: list[str]) -> list[_Pod]:
    by_hand = f"try it by hand: {shlex.join(command)}"
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=SERVER_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"kubectl does not answer: {error}", by_hand) from None
    if done.returncode:
        raise UsageError(f"kubectl failed: {pool.last_line(done.stderr.decode(errors='replace'))}", by_hand)
    try:
        return msgspec.json.decode(done.stdout, type=_Pods).items
    except DAMAGED as error:
        raise UsageError(f"kubectl answered what cannot be read: {error}", by_hand) from None
