"""Jobs named by their container, their pod or their Slurm job: real control groups, namespaces and slurmds."""

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import PATIENCE_SECONDS, PERFWATCH, StartJob, born, needs_root, until
from tests.fleet.slurm import cluster, submit, why_not

pytestmark = [pytest.mark.live, pytest.mark.end_to_end]

POD = "1e6dd6c2-2a46-4c9b-9d0d-3f1a2b5c7d8e"
NAMESPACES = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts", "--ipc", "--net")
Typed = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def typed(tmp_path: Path) -> Typed:
    """Types a command of perfwatch outside of all containers."""

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path / "sessions"), "PERFWATCH_CONFIG": ""}
        return subprocess.run(
            (*PERFWATCH, *words), env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )

    return run


@pytest.fixture
def group() -> Iterator[tuple[Path, str]]:
    """A control group as the kubelet and its runtime make one, and the id of the container in its name."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    tops = [
        Path(mount[1]) for mount in mounts if mount[2] == "cgroup2" or (mount[2] == "cgroup" and "pids" in mount[3])
    ]
    container = secrets.token_hex(32)
    path = next((top / f"kubepods/burstable/pod{POD}/{container}" for top in tops if os.access(top, os.W_OK)), None)
    try:
        if path is None:
            raise OSError
        path.mkdir(parents=True)
    except OSError:
        pytest.skip("control groups cannot be made here")
    yield path, container
    for folder in (path, *list(path.parents)[:3]):
        until(lambda folder=folder: not (folder / "cgroup.procs").read_text())  # type: ignore[misc]
        folder.rmdir()


@needs_root()
def test_a_job_in_a_container_is_found_by_pod_and_container(
    group: tuple[Path, str], job: StartJob, typed: Typed
) -> None:
    """By the uid and the name of the pod, and by the id that docker ps shows: one job for all commands that take one."""
    folder, container = group
    inside = ("sh", "-c", f'echo $$ > {folder}/cgroup.procs; hostname trainer-0; exec "$@"', "sh")
    trainer = job(*NAMESPACES, *inside, env={**os.environ, "HOSTNAME": "trainer-0"}, workers=1)
    trainer.say("h")
    (pid,) = (one for one in born(trainer.pid) if str(one) in (folder / "cgroup.procs").read_text().split()[:1])

    for name in (("--pod", POD), ("--pod", "trainer-0"), ("--container", container[:12])):
        judged = typed("attach", *name, "--hang-timeout", "5")
        assert judged.returncode == 30, judged.stderr
        assert f"pid {pid}" in judged.stdout
    stacks = typed("capture", "stacks", "--pod", "trainer-0")
    top = typed("top", "--once", "--container", container[:12])
    checked = typed("doctor", "--pod", POD)

    assert ("hang (trainer.py" in stacks.stdout, stacks.returncode) == (True, 0), stacks.stderr
    assert str(pid) in top.stdout, top.stderr
    assert f"process {pid}" in checked.stdout, checked.stderr


def test_a_job_of_slurm_is_found_by_its_number(library: Path, typed: Typed, tmp_path: Path) -> None:
    """As sbatch prints it; the batch script, its step and the training are of one job."""
    if reason := why_not():
        pytest.skip(reason)
    with cluster() as names:
        if names is None:
            pytest.skip("Slurm's daemons do not come up on this machine")
        (tmp_path / "in").touch()
        os.mkfifo(tmp_path / "letters")
        training = f"{sys.executable} {library}/trainer.py {library} 1"
        number = submit(names, f"--wrap=srun --overlap {training} <> {tmp_path}/letters")
        until(lambda: typed("doctor", "--slurm", number).returncode != 3)
        stacks = typed("capture", "stacks", "--slurm", number)
        judged = typed("attach", "--slurm", number)
        subprocess.run(["scancel", number], env=names, check=True)

    assert (stacks.returncode, "main (trainer.py" in stacks.stdout) == (0, True), stacks.stderr
    assert f"Slurm job {number} is pid" in judged.stderr
    assert judged.returncode in (0, 10, 20, 50), judged.stdout
