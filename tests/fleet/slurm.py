"""A Slurm cluster of two nodes on one machine: munge, a controller and two slurmds, all in a folder of their own."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.end_to_end.conftest import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "scontrol", "sinfo")
SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin"
START_SECONDS = 30.0

CONFIGURATION = """
ClusterName=perfwatchtest
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName=node-a NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
NodeName=node-b NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=node-a,node-b Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no cluster here; empty when there can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SBIN) is None]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install slurmctld slurmd slurm-client munge"
    return "" if os.getuid() == 0 else "only root may run a cluster"


@contextlib.contextmanager
def cluster(*configured: str) -> Iterator[dict[str, str] | None]:
    """The environment in which Slurm's programs find it; None where its daemons do not come up on this machine.

    ``configured`` are further lines of slurm.conf. It lives in a pid namespace of its own: with the first process of that,
    every daemon, step and task ends.
    """
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        folder.chmod(0o755)  # jobs of any user read their script from here
        names = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": SBIN}
        _prepare(folder, configured)
        munge = f"munged --force --key-file={folder}/munge.key --socket={folder}/munge.socket " + " ".join(
            f"--{what}-file={folder}/munge.{what}" for what in ("pid", "log", "seed")
        )
        daemons = f"{munge} && slurmctld -c && slurmd -N node-a -c && slurmd -N node-b -c && exec sleep infinity"
        running = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", daemons],
            env=names,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield names if _idle(names, running) else None
        finally:
            running.kill()
            running.wait()


def _prepare(folder: Path, configured: tuple[str, ...]) -> None:
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(1024))
    (folder / "state").mkdir()
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [listener.getsockname()[1] for listener in listeners]
    text = CONFIGURATION.format(host=socket.gethostname(), folder=folder, ports=ports)
    (folder / "slurm.conf").write_text("\n".join((text, *configured, "")))


def submit(names: dict[str, str], *options: str) -> str:
    """Hand a job in; its number."""
    command = ["sbatch", "--parsable", "--output=/dev/null", *options]
    return subprocess.run(command, env=names, check=True, capture_output=True, text=True).stdout.strip()


def _idle(names: dict[str, str], running: "subprocess.Popen[bytes]") -> bool:
    """Whether both nodes came up."""

    def settled() -> bool:
        shown = subprocess.run(["sinfo", "-h", "-o", "%T %D"], env=names, capture_output=True, text=True, check=False)
        return shown.stdout.split() == ["idle", "2"] or running.poll() is not None

    with contextlib.suppress(AssertionError):
        until(settled, START_SECONDS)
    return running.poll() is None
