"""Whose job it is, from what a recording holds: control groups, users, and the allow-listed variables of its ranks.

A control group is made by root, so what it says is a fact. A variable says what the job's user wrote there: it can route an
alert, and no action may rest on it.
"""

import re
from collections.abc import Iterable

from perfwatch.recording.session import Session
from perfwatch.text import clean
from perfwatch.verdict import JobLabels
from perfwatch_probes.readings import Process

LONGEST = 120  # of a label: a Slurm job may be named with a thousand letters
NO_RUN_IDS = ("", "none")  # torchrun's default --rdzv-id is the word "none"
POD_CONDITIONS = ("namespace", "pod", "container")  # of a session: as the kubelet names them
# Version 2 below the scope of slurmstepd, version 1 below a folder of slurmd; the node's name is in both where one machine
# runs several slurmd. A user may be given a subtree of control groups by systemd, but only below a .service of theirs.
_SLURM = re.compile(r"(?:(?:/[^/]+\.slice)+/(?:[^/]+_)?slurmstepd\.scope|/slurm(?:_[^/]+)?/uid_\d+)/job_(\d+)(?:/.*)?")
_KUBERNETES = re.compile(r"[/-]kubepods")
# The outermost one of a path: below it a container may name its own groups, and below a .service a user may.
_POD_UID = re.compile(
    r"(?:/(?![^/]*\.service(?:/|$))[^/]*)*?/(?:kube[^/]*-)?pod([0-9a-f]{8}[-_][0-9a-f_-]{27})(?:\.slice)?(?:/.*)?"
)
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def slurm_job_of(memberships: str) -> int | None:
    """The Slurm job that the text of /proc/PID/cgroup, or one path of it, names; None if slurmd made none of its groups."""
    for line in memberships.splitlines():
        match = _SLURM.fullmatch(line.split(":", 2)[-1])
        if match is not None:
            return int(match[1])
    return None


def in_kubernetes(memberships: str) -> bool:
    """True if the kubelet made one of the control groups."""
    return _KUBERNETES.search(memberships) is not None


def pods_of(memberships: str) -> set[str]:
    """The uids of pods in the names of control groups that the kubelet made."""
    paths = (line.split(":", 2)[-1] for line in memberships.splitlines())
    return {match[1].replace("_", "-") for path in paths if (match := _POD_UID.fullmatch(path)) and in_kubernetes(path)}


def containers_of(memberships: str) -> list[str]:
    """The ids of containers in the names of control groups, 64 digits each, the outermost first."""
    return _CONTAINER.findall(memberships)


def labels(
    session: Session, processes: Iterable[Process], memberships: str, ranks: str, world_size: int | None
) -> JobLabels:
    """Whose job a session is about.

    Args:
        session: of the job.
        processes: its ranks, the first one first; what it says counts before what the others say.
        memberships: control groups of the job, as /proc/PID/cgroup has them; empty where they are not known.
        ranks: that were seen, folded.
        world_size: how many there are.
    """
    said: dict[str, str] = {}
    uids = set()
    for process in processes:
        said = {**process.environment, **said}
        uids.add(process.uid)
    kubernetes, pods = in_kubernetes(memberships), pods_of(memberships)
    several_hosts = "apart_seconds" in session.conditions  # a fleet's: which host it is stands with each culprit
    job_id = slurm_job_of(memberships)
    known = {name: str(session.conditions.get(name) or "") for name in (*POD_CONDITIONS, "user")}
    run_id = said.get("TORCHELASTIC_RUN_ID", "")
    wandb = [said.get(f"WANDB_{name}", "") for name in ("ENTITY", "PROJECT", "RUN_ID")]
    return JobLabels(
        user=_label(known["user"]),
        uid=uids.pop() if len(uids) == 1 and not several_hosts else None,
        host=None if several_hosts else _label(session.machine.name),
        pid=None if several_hosts or not session.root_pids else session.root_pids[0],
        ranks=ranks or None,
        world_size=world_size,
        slurm_job_id=_label(said.get("SLURM_JOB_ID", "") if job_id is None else str(job_id)),
        slurm_job_name=_label(said.get("SLURM_JOB_NAME", "")),
        namespace=_label(known["namespace"] or (said.get("POD_NAMESPACE", "") if kubernetes else "")),
        pod=_label(known["pod"] or ((said.get("POD_NAME") or said.get("HOSTNAME", "")) if kubernetes else "")),
        pod_uid=pods.pop() if len(pods) == 1 else None,
        container=_label(known["container"]),
        container_id=next(iter(containers_of(memberships)[-1:]), None),
        run_id=_label("" if run_id in NO_RUN_IDS else run_id),
        wandb_run=_label("/".join(one for one in wandb if one)) if wandb[-1] or wandb[1] else None,
    )


def _label(text: str) -> str | None:
    return clean(text)[:LONGEST] or None
