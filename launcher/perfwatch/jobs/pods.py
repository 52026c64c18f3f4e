"""The names of a process' pod, as the kubelet of this node knows them.

The kubelet keeps a link ``POD_NAMESPACE_CONTAINER-ID.log`` for each container in /var/log/containers, a folder of root's. So the names
belong to the id in the control group, and the job has no say in either. Source: pkg/kubelet/kuberuntime/legacy.go of Kubernetes.
"""

import os
import re

from perfwatch.ownership import POD_CONDITIONS, containers_of
from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable

CONTAINER_LINKS = "/var/log/containers"
DEADLINE_SECONDS = 0.5
MOST_LINKS = 4096  # a node runs 110 pods by default
_LINK = re.compile(r"([a-z0-9.-]{1,253})_([a-z0-9-]{1,63})_([a-z0-9-]{1,63})-([0-9a-f]{64})\.log")


def pod_names(filesystem: Filesystem, child: Caller, pid: int, links: str = CONTAINER_LINKS) -> dict[str, str]:
    """Namespace, pod and container of a process, by name; empty outside Kubernetes and where the kubelet's links are not seen."""
    try:
        ids = containers_of(filesystem.read_text(filesystem.proc / str(pid) / "cgroup"))
        return child.call(_named, links, frozenset(ids), deadline_seconds=DEADLINE_SECONDS) if ids else {}
    except (Unavailable, OSError):
        return {}


def _named(links: str, ids: frozenset[str]) -> dict[str, str]:
    with os.scandir(links) as entries:
        for _, entry in zip(range(MOST_LINKS), entries, strict=False):
            link = _LINK.fullmatch(entry.name)
            if link is not None and link[4] in ids:
                return dict(zip(POD_CONDITIONS, (link[2], link[1], link[3]), strict=True))
    return {}
