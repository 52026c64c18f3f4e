"""``perfwatch snapshot``: one JSON object, or marked lines for the one that asks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch.fleet import wire
from perfwatch.fleet.clearing import MOST_SESSIONS
from perfwatch.recording.recording import load_session
from tests.fleet.test_clearing import made

pytestmark = pytest.mark.live
NONCE = "0011223344556677"
RANK = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    library = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC)
print("up", flush=True)
sys.stdin.read()
"""


def snapshot(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Of this machine, whatever runs on it; nothing is looked at for longer than a moment."""
    command = [sys.executable, "-m", "perfwatch", "snapshot", "--seconds", "0", "--job", "no job says this", *words]
    names = {**os.environ, "PERFWATCH_DIR": str(folder)}
    return subprocess.run(command, env=names, capture_output=True, text=True, timeout=60, check=False)


def test_it_prints_one_object(tmp_path: Path) -> None:
    """With the machine's name and no job that was not asked for."""
    done = snapshot(tmp_path)
    said = json.loads(done.stdout)

    assert (done.returncode, said["schema"], said["jobs"]) == (0, "perfwatch.snapshot/1", [])


def test_with_a_nonce_it_prints_lines_that_can_be_read(tmp_path: Path) -> None:
    """The same, in the form in which it travels."""
    done = snapshot(tmp_path, "--nonce", NONCE)

    assert wire.read(done.stdout.splitlines(), NONCE).host


def test_a_nonce_that_is_none_is_refused(tmp_path: Path) -> None:
    """It would be printed as it is."""
    done = snapshot(tmp_path, "--nonce", "\x1b[2J")

    assert (done.returncode, done.stdout) == (2, "")


def test_its_recording_is_of_a_kind_of_its_own_and_old_ones_go(tmp_path: Path) -> None:
    """Whoever asks every few minutes fills no disk of this machine."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for number in range(MOST_SESSIONS):
        made(home, f"look-{number}", 1000.0 + number)
    address = f"host-of-{os.getpid()}"
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": address, "MASTER_PORT": "29500"}
    library = tmp_path / "libtorch_cpu.so"  # mapped by a process, it makes a trainer of it
    library.write_bytes(bytes(4096))
    rank = [sys.executable, "-c", RANK, str(library)]
    with subprocess.Popen(rank, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"up\n"
        done = snapshot(home, "--job", address, "--seconds", "2")
        job.kill()
    views = json.loads(done.stdout)["jobs"]

    assert [load_session(Path(view["folder"])).mode for view in views] == ["snapshot"]
    assert "look-0" not in os.listdir(home)
    assert len(os.listdir(home)) == MOST_SESSIONS
