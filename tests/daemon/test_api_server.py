"""The kustomize base and the actions for Kubernetes against a real kube-apiserver with etcd. No kubelet: nothing is started."""

import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.test_deploying import COMPONENTS, act, built, free_ports, verdict_for

PROGRAMS = ("kube-apiserver", "etcd", "kubectl", "openssl")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)}"),
]
START_SECONDS = 120.0
TOKEN = "of-the-administrator"
# The Prometheus Operator brings this one; here it takes whatever a PodMonitor says.
POD_MONITORS = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com", "scope": "Namespaced", "names": {"kind": "PodMonitor", "plural": "podmonitors"},
        "versions": [{
            "name": "v1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }],
    },
}  # fmt: skip


class Cluster:
    """An API server. ``names``: the environment in which kubectl finds it."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def kubectl(self, *words: str, content: object = None, code: int = 0) -> str:
        """What kubectl prints."""
        text = None if content is None else json.dumps(content)
        done = subprocess.run(
            ("kubectl", *words), input=text, env=self.names, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def get(self, *words: str) -> dict[str, Any]:
        """An object."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "--output=json"))
        return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With the role-based rights and the admission of pods that a cluster has."""
    folder = tmp_path_factory.mktemp("cluster")
    store, peers, port = free_ports(3)
    subprocess.run(("openssl", "genrsa", "-out", folder / "key", "2048"), check=True, capture_output=True)
    (folder / "tokens").write_text(f'{TOKEN},admin,1,"system:masters"\n')
    url = f"http://127.0.0.1:{store}"
    commands: tuple[tuple[str, ...], ...] = (
        (
            "etcd", f"--data-dir={folder}/etcd", f"--listen-client-urls={url}", f"--advertise-client-urls={url}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
        ),
        (
            "kube-apiserver", f"--etcd-servers={url}", "--bind-address=127.0.0.1", f"--secure-port={port}", f"--cert-dir={folder}/certs",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={folder}/key",
            f"--service-account-signing-key-file={folder}/key", f"--token-auth-file={folder}/tokens", "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.0.0.0/24",
        ),
    )  # fmt: skip
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here", "users": [{"name": "admin", "user": {"token": TOKEN}}],
        "clusters": [{"name": "here", "cluster": {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "admin"}}],
    }  # fmt: skip
    (folder / "config").write_text(json.dumps(config))
    with ExitStack() as ends:
        for command in commands:
            log = ends.enter_context((folder / f"{command[0]}.log").open("w"))
            process = ends.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            ends.callback(process.kill)
        until = time.monotonic() + START_SECONDS
        while not _is_ready(port):
            assert time.monotonic() < until, (folder / "kube-apiserver.log").read_text()[-2000:]
            time.sleep(0.5)
        made = Cluster({**os.environ, "KUBECONFIG": str(folder / "config"), "HOME": str(folder)})
        made.kubectl("apply", "-f", "-", content=POD_MONITORS)
        runtime = {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        }
        made.kubectl("apply", "-f", "-", content=runtime)  # the GPU operator's
        made.kubectl("wait", "--for=condition=Established", "crd/podmonitors.monitoring.coreos.com")
        yield made


def _is_ready(port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    asked = urllib.request.Request(f"https://127.0.0.1:{port}/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
    try:
        with urllib.request.urlopen(asked, timeout=5, context=context) as answer:
            return bool(answer.read() == b"ok")
    except OSError:
        return False


@pytest.fixture(scope="module")
def applied(cluster: Cluster, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A cluster in which the base with every component was applied."""
    overlay = tmp_path_factory.mktemp("applied") / "overlay"
    built(repository / "scripts" / "deploy", overlay, COMPONENTS)
    cluster.kubectl("apply", "-k", str(overlay))
    return cluster


def pod_of_the_daemon(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """As the controller of the DaemonSet makes it."""
    template = cluster.get("-n", "perfwatch", "daemonset", "perfwatch")["spec"]["template"]
    names = {"name": "perfwatch-abcde", "namespace": namespace, "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": names, "spec": template["spec"]}


def test_the_base_with_every_component_is_applied_twice(applied: Cluster, repository: Path, tmp_path: Path) -> None:
    """The server takes every object and field (strict validation), and the second time nothing changes."""
    overlay = tmp_path / "overlay"
    built(repository / "scripts" / "deploy", overlay, COMPONENTS)
    again = applied.kubectl("apply", "-k", str(overlay), "--validate=strict")

    assert {one["metadata"]["namespace"] for one in _namespaced(again, applied)} == {"perfwatch"}
    assert {line.rpartition(" ")[2] for line in again.splitlines() if "/" in line} == {"unchanged"}, again


def _namespaced(said: str, applied: Cluster) -> list[dict[str, Any]]:
    """The objects that an apply names, and that are in a namespace."""
    names = [line.split()[0] for line in said.splitlines() if "/" in line]
    cluster_wide = ("namespace/", "clusterrole")
    return [applied.get("-n", "perfwatch", one) for one in names if not one.startswith(cluster_wide)]


def test_the_namespace_admits_the_daemons_pod_and_a_baseline_one_says_why_not(applied: Cluster) -> None:
    """Pod Security Admission names host namespaces, host paths and capabilities."""
    admitted = applied.kubectl("create", "-f", "-", content=pod_of_the_daemon(applied, "perfwatch"))
    applied.kubectl("create", "namespace", "strict")
    applied.kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/enforce=baseline")
    refused = applied.kubectl("create", "-f", "-", content=pod_of_the_daemon(applied, "strict"), code=1)

    assert "created" in admitted
    assert 'violates PodSecurity "baseline' in refused
    assert all(what in refused for what in ("hostPID=true", "SYS_PTRACE", "hostPath"))


@pytest.mark.parametrize(
    ("verb", "what", "may"),
    [("delete", "pods", "yes"), ("list", "pods", "yes"), ("get", "secrets", "no"), ("patch", "nodes", "no")],
)
def test_the_action_has_the_rights_that_it_needs_and_no_others(
    applied: Cluster, verb: str, what: str, may: str
) -> None:
    """By the server's own authorizer."""
    who = "--as=system:serviceaccount:perfwatch:perfwatch"
    said = applied.kubectl("auth", "can-i", verb, what, who, "-n", "ml", code=int(may == "no"))

    assert said.split()[0] == may


def test_a_pod_is_deleted_a_node_cordoned_and_a_container_added_there(applied: Cluster, repository: Path) -> None:
    """The two actions, and the line for ``kubectl debug``."""
    deploy = repository / "scripts" / "deploy"
    applied.kubectl("create", "namespace", "ml")
    pod = {"containers": [{"name": "trainer", "image": "train"}]}
    train = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train-0", "namespace": "ml"}, "spec": pod}
    applied.kubectl("create", "-f", "-", content=train)
    applied.kubectl("create", "-f", "-", content={"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}})
    (line,) = [one for one in (deploy / "README.md").read_text().splitlines() if one.startswith("kubectl debug ")]
    words = line.replace("-it ", "-n ml ").replace("POD", "train-0").replace("CONTAINER", "trainer").split()
    debugged = subprocess.run(words, cwd=repository, env=applied.names, capture_output=True, text=True, timeout=120)
    (added,) = applied.get("-n", "ml", "pod", "train-0")["spec"]["ephemeralContainers"]
    uid = applied.get("-n", "ml", "pod", "train-0")["metadata"]["uid"]
    deleted = act(deploy, "delete-pod --really", verdict_for("restart", pod_uid=uid), applied.names)
    cordoned = act(deploy, "drain-node --kubernetes --really --node node-a", verdict_for("replace_node"), applied.names)

    assert debugged.returncode == 0, debugged.stderr
    assert (added["targetContainerName"], added["securityContext"]["runAsUser"]) == ("trainer", 0)
    assert deleted == (0, f"deleted pod ml/train-0 (uid {uid})")
    assert "NotFound" in applied.kubectl("-n", "ml", "get", "pod", "train-0", code=1)
    assert cordoned[0] == 0
    assert applied.get("node", "node-a")["spec"]["unschedulable"] is True


def test_what_the_page_says_about_the_secret_is_taken(applied: Cluster, repository: Path) -> None:
    """The command of the page, and the one of the metrics' token."""
    page = (repository / "scripts/deploy/README.md").read_text()
    (line,) = [one for one in page.splitlines() if one.startswith("kubectl -n perfwatch create secret")]
    applied.kubectl(*line.partition("  #")[0].split()[1:])

    assert applied.get("-n", "perfwatch", "secret", "perfwatch")["data"].keys() == {"notify", "heartbeat"}
    assert applied.get("-n", "perfwatch", "podmonitor", "perfwatch")["spec"]["podMetricsEndpoints"]
