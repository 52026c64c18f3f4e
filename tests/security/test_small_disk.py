"""A disk of 64 KiB: the recording loses readings and nothing else."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from perfwatch.recording.recording import load
from tests.security.conftest import Popen, User

pytestmark = pytest.mark.live


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 pages."""
    disk = tmp_path / "disk"
    disk.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("this container may not mount")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_session_on_a_disk_of_64_kib_is_complete_and_replays(
    victim: User,
    start_job: Callable[..., Popen],
    root_types: Callable[..., subprocess.CompletedProcess[str]],
    small_disk: Path,
) -> None:
    """The description and the verdict are stored, and ``replay`` gives the state that ``attach`` gave."""
    job = start_job(victim, "threading = __import__('threading'); ready(); threading.Event().wait()")

    seen = root_types("attach", str(job.pid), "--json", "--patience", "1", "--session", str(small_disk))
    again = root_types("replay", str(small_disk), "--json")

    verdict = msgspec.json.decode(seen.stdout)
    assert msgspec.json.decode(again.stdout)["state"] == verdict["state"] == "hung"
    assert [path.name for path in small_disk.iterdir() if path.name.startswith(".")] == []
    assert load(small_disk).session.root_pids == (job.pid,)
