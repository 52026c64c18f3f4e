"""Pods made of one machine: an API server that speaks Kubernetes to a real kubectl, and runs what it asks for in pid namespaces.

The server knows what ``kubectl get pods`` and ``kubectl exec`` ask: discovery, pods by label, and the streams of a command over
WebSocket (subprotocol v5.channel.k8s.io: each message begins with the number of its stream). The source is what kubectl 1.32
sends, and the API reference of Kubernetes.
"""

import contextlib
import http
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

from tests.fleet.machines import why_not_apart

CHANNELS = Subprotocol("v5.channel.k8s.io")
OUTPUT, ERRORS, OUTCOME = b"\x01", b"\x02", b"\x03"
PODS = "/api/v1/namespaces/ml/pods"
LABELS = "job-name=train"
CONTAINER = "train"
KNOWN: Mapping[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {"name": "pods", "kind": "Pod", "namespaced": True, "verbs": ["get", "list"], "shortNames": ["po"]}
        ],
    },
    "/api/v1/namespaces/ml": {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}},
}


def why_not() -> str:
    """Why there can be no pods here; empty when there can."""
    if not shutil.which("kubectl"):
        return "kubectl is not installed: https://kubernetes.io/docs/tasks/tools/"
    return why_not_apart()


@dataclass
class Pods:
    """Running pods, by name; ``config`` is a kubeconfig with which kubectl finds them."""

    config: Path
    sandboxes: Mapping[str, "subprocess.Popen[bytes]"]
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)  # status and words, of pods in which none may run
    _started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(
        self, pod: str, command: Sequence[str], names: Mapping[str, str], log: Path | int
    ) -> "subprocess.Popen[bytes]":
        """Run a program in a pod; its output goes to a file, or to a pipe that the caller reads."""
        inside = _inside(self.sandboxes[pod].pid)
        words = ["nsenter", "--target", str(inside), "--pid", "--mount", "--", *command]
        with contextlib.ExitStack() as files:
            output = files.enter_context(log.open("wb")) if isinstance(log, Path) else log
            errors = subprocess.STDOUT if isinstance(log, Path) else log
            process = subprocess.Popen(
                words,
                env={**os.environ, **names, "HOSTNAME": pod},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def close(self) -> None:
        """End what was started; what runs in a pod ends with it."""
        for process in (*self.sandboxes.values(), *self._started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def pods(*names: str, gone: str = "") -> Iterator[Pods]:
    """As many pods as names, all with ``LABELS``; ``gone`` is listed, and not there any more when asked for."""
    with tempfile.TemporaryDirectory(prefix="pods-") as place, contextlib.ExitStack() as ends:
        sandbox = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sleep", "infinity"]
        sandboxes = {name: subprocess.Popen(sandbox, start_new_session=True) for name in names}
        made = Pods(Path(place) / "config", sandboxes)
        server = ends.enter_context(
            serve(
                lambda asked: _exec(made, asked),
                "127.0.0.1",
                0,
                subprotocols=[CHANNELS],
                process_request=lambda asked, request: _answer(asked, request, [*names, *filter(None, [gone])], made),
                compression=None,
            )
        )
        ends.callback(server.shutdown)
        ends.callback(made.close)  # first, for the server waits for all whose output it hands on
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.config.write_text(_kubeconfig(server.socket.getsockname()[1]))
        yield made


def _kubeconfig(port: int) -> str:
    names = {"cluster": "here", "user": "me", "namespace": "ml"}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "here", "context": names}],
        }
    )


def _pod(name: str) -> dict[str, Any]:
    key, _, value = LABELS.partition("=")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "labels": {key: value}},
        "spec": {"containers": [{"name": CONTAINER, "image": "train"}]},
        "status": {"phase": "Running", "containerStatuses": [{"name": CONTAINER, "state": {"running": {}}}]},
    }


def _answer(asked: ServerConnection, request: Request, listed: Sequence[str], made: Pods) -> Response | None:
    """To all that is no stream; None lets kubectl's WebSocket begin."""
    place = urlsplit(request.path)
    if found := KNOWN.get(place.path):
        return _said(asked, http.HTTPStatus.OK, found)
    if place.path.endswith("/pods"):
        here = place.path == PODS and parse_qs(place.query)["labelSelector"] == [LABELS]
        items = [_pod(name) for name in listed] if here else []
        return _said(asked, http.HTTPStatus.OK, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
    name, _, verb = place.path.removeprefix(f"{PODS}/").partition("/")
    if name not in made.sandboxes:
        return _failed(asked, 404, f'pods "{name}" not found')
    if verb != "exec":
        return _said(asked, http.HTTPStatus.OK, _pod(name))
    return _failed(asked, *made.refused[name]) if name in made.refused else None


def _failed(asked: ServerConnection, status: int, words: str) -> Response:
    reason = {403: "Forbidden", 404: "NotFound"}.get(status, "InternalError")
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status}
    return _said(asked, http.HTTPStatus(status), {**body, "reason": reason, "message": words})


def _said(asked: ServerConnection, status: http.HTTPStatus, body: Mapping[str, Any]) -> Response:
    answer = asked.respond(status, json.dumps(body))
    del answer.headers["Content-Type"]
    answer.headers["Content-Type"] = "application/json"
    return answer


def _exec(made: Pods, asked: ServerConnection) -> None:
    """Run the command, hand on its output, then say how it ended. The one who asks may leave before."""
    assert asked.request is not None
    place = urlsplit(asked.request.path)
    name = place.path.removeprefix(f"{PODS}/").partition("/")[0]
    process = made.start(name, parse_qs(place.query)["command"], {}, subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    errors = threading.Thread(target=_hand_on, args=(asked, process.stderr.fileno(), ERRORS))
    errors.start()
    _hand_on(asked, process.stdout.fileno(), OUTPUT)
    errors.join()
    code = process.wait()
    outcome: dict[str, Any] = {"metadata": {}, "status": "Success"}
    if code:
        why = f"command terminated with non-zero exit code: exit status {code}"
        causes = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
        outcome = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": why, "details": causes}
    with contextlib.suppress(ConnectionClosed):
        asked.send(OUTCOME + json.dumps(outcome).encode())


def _hand_on(asked: ServerConnection, output: int, stream: bytes) -> None:
    """Until the output ends, or nobody listens any more: then the program meets a full pipe, as in a real cluster."""
    with contextlib.suppress(ConnectionClosed):
        while chunk := os.read(output, 1 << 15):
            asked.send(stream + chunk)


def _inside(unshared: int) -> int:
    """The first process of the pod, of which ``unshare`` is the parent; it is there at once or soon."""
    children = Path(f"/proc/{unshared}/task/{unshared}/children")
    while not (found := children.read_text().split()):
        assert Path(f"/proc/{unshared}").exists()
        os.sched_yield()
    return int(found[0])
