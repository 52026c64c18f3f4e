"""Jobs that a real Slurm starts: one launcher for each rank, nodes named by a group of ClusterShell's, prolog and epilog."""

import json
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfwatch.recording.recording import load
from perfwatch_probes.group_variables import free_port
from tests.end_to_end.conftest import PATIENCE_SECONDS, until
from tests.fleet.slurm import cluster, submit, why_not

pytestmark = pytest.mark.live

RANK = Path(__file__).parent / "slurm_rank.py"
FAKE = Path(__file__).parent / "fake_host.py"
PERFWATCH = f"{sys.executable} -m perfwatch"


@contextmanager
def slurm(*configured: str) -> Iterator[dict[str, str]]:
    """A cluster of two nodes."""
    if reason := why_not():
        pytest.skip(reason)
    with cluster(*configured) as names:
        if names is None:
            pytest.skip("Slurm's daemons do not come up on this machine")
        yield names


def told(folder: Path) -> list[str]:
    """The causes that every recording below a folder holds, in order."""
    sessions = sorted(path.parent for path in folder.rglob("session.json"))
    return [one.verdict.cause or "" for session in sessions for one in load(session).events if one.verdict is not None]


def test_one_launcher_for_each_rank_names_the_rank_that_does_not_come(tmp_path: Path) -> None:
    """``srun perfwatch run -- python train.py``: two launchers, one watch, and the ranks' numbers are Slurm's."""
    with slurm() as names:
        job = submit(
            {**names, "PERFWATCH_DIR": str(tmp_path / "sessions")},
            "--nodes=2",
            "--ntasks=2",
            f"--wrap=srun {PERFWATCH} run -- {sys.executable} {RANK} {free_port()}",
        )
        until(lambda: "stalled_collective" in told(tmp_path / "sessions"))
        subprocess.run(["scancel", job], env=names, check=False)
    sessions = {path.parent for path in (tmp_path / "sessions").rglob("session.json")}
    hung = [one.verdict for one in load(sessions.pop()).events if one.verdict and one.verdict.state == "hung"]

    assert sessions == set()
    assert [culprit.rank for culprit in hung[-1].culprits] == [1]
    assert "wait_for_the_tokenizer" in (hung[-1].culprits[0].frame or "")


def test_the_nodes_of_a_job_are_named_by_clustershells_group_source(tmp_path: Path) -> None:
    """``--hosts @slurmjob:JOB``, with the bindings that ClusterShell brings as an example."""
    brought = Path(sys.prefix) / "etc" / "clustershell"
    shutil.copytree(brought, tmp_path / "clustershell")
    groups = tmp_path / "clustershell" / "groups.conf.d"
    (groups / "slurm.conf.example").rename(groups / "slurm.conf")
    (tmp_path / "does").write_text(json.dumps({"node-a": "0", "node-b": "1"}))
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        '#!/bin/sh\nfor word; do case $word in node-?) export SLURMD_NODENAME=$word;; esac; done\nexec sh -c "$word"\n'
    )
    ssh.chmod(0o755)
    command = f"{sys.executable} {FAKE} {tmp_path}/does"
    with slurm() as names:
        job = submit(names, "--nodes=2", "--wrap=srun sleep 600")
        squeue = ["squeue", "-h", "-j", job, "-o", "%N"]
        until(lambda: bool(subprocess.run(squeue, env=names, capture_output=True, check=True).stdout.strip()))
        done = subprocess.run(
            [*PERFWATCH.split(), "fleet", "--json", "--hosts", f"@slurmjob:{job}", "--command", command],
            env={
                **names,
                "CLUSTERSHELL_CFGDIR": str(tmp_path / "clustershell"),
                "PERFWATCH_DIR": str(tmp_path / "sessions"),
                "PATH": f"{ssh.parent}:{names['PATH']}",
            },
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        subprocess.run(["scancel", job], env=names, check=False)

    assert done.stdout, done.stderr
    assert [one["host"] for one in json.loads(done.stdout)["hosts"]] == ["node-a", "node-b"]


class Prologs:
    """Prolog and epilog as slurmd runs them, with their state where every user can reach it."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self.state = folder / "state"
        self.lines = ["PrologFlags=Alloc"]
        perfwatch = folder / "perfwatch"
        perfwatch.write_text(f'#!/bin/sh\nexec {PERFWATCH} "$@"\n')
        perfwatch.chmod(0o755)
        for name in ("prolog", "epilog"):
            script = folder / f"{name}.sh"
            script.write_text(
                f"#!/bin/sh\nexport PERFWATCH={perfwatch} PERFWATCH_STATE={self.state}\n"
                f"exec {repository}/scripts/deploy/slurm-{name}.sh\n"
            )
            script.chmod(0o755)
            self.lines.append(f"{name.capitalize()}={script}")


@pytest.fixture
def prologs(repository: Path) -> Iterator[Prologs]:
    """The two scripts, below a folder that is not root's alone."""
    with tempfile.TemporaryDirectory(prefix="perfwatch-prologs-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Prologs(Path(folder), repository)


def wait_until_idle(names: dict[str, str]) -> None:
    """Both nodes are free: every epilog is over."""
    free = ["sinfo", "-h", "-o", "%T %D"]
    until(lambda: subprocess.run(free, env=names, capture_output=True, text=True).stdout.split() == ["idle", "2"])


def test_prolog_and_epilog_watch_a_job_from_its_start_to_its_end(prologs: Prologs) -> None:
    """Run by slurmd itself: the job hangs, its recording says why, and the node is free when it is over."""
    with slurm(*prologs.lines) as names:
        job = submit(
            names, "--nodes=1", "--ntasks=2", "--overcommit", f"--wrap=srun {sys.executable} {RANK} {free_port()}"
        )
        until(lambda: "stalled_collective" in told(prologs.state / job))
        subprocess.run(["scancel", job], env=names, check=True)
        wait_until_idle(names)

    assert not (prologs.state / job / ".pid").exists()


def requeue(names: dict[str, str], job: str) -> None:
    """Have a job start again soon; Slurm would wait for two minutes, and refuses it within the second of its end."""
    subprocess.run(["scontrol", "requeue", job], env=names, check=True)
    wait_until_idle(names)
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now+5"], env=names, check=True)


# A rank that any Python runs: it maps a file of torch's name, and stops.
STOPPED_RANK = """
import mmap, os, signal, sys
with open(sys.argv[1], "rb") as file:
    library = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_user_reads_the_verdict_of_each_start_of_a_job_while_it_hangs(prologs: Prologs) -> None:
    """The job runs as another user than root's slurmstepd, is requeued, and is watched and readable both times."""
    user = pwd.getpwnam("nobody")
    shell = ("setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups", "sh", "-c")
    usable = [
        one for one in (sys.executable, "/usr/bin/python3") if subprocess.run([*shell, f"{one} -c ''"]).returncode == 0
    ]
    if not usable:
        pytest.skip("no Python here can be run by another user than root")
    library = prologs.state.with_name("libtorch_cpu.so")
    library.write_text("not a library")
    program = prologs.state.with_name("rank.py")
    program.write_text(STOPPED_RANK)

    def read(folder: Path) -> str:
        return subprocess.run([*shell, f"cat {folder}/log"], capture_output=True, text=True, check=False).stdout

    with slurm(*prologs.lines) as names:
        job = submit(
            names, "--uid=nobody", "--gid=" + str(user.pw_gid), "--chdir=/tmp", "--requeue", "--nodes=1",
            f"--wrap=srun {usable[0]} {program} {library}",
        )  # fmt: skip
        until(lambda: "verdict: hung" in read(prologs.state / job))
        requeue(names, job)
        until(lambda: "verdict: hung" in read(prologs.state / f"{job}.1"))
        subprocess.run(["scancel", job], env=names, check=True)
        wait_until_idle(names)

    assert "slurmstepd" in read(prologs.state / job)
