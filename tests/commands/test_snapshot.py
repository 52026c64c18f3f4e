"""``perfwatch snapshot``: one JSON object, or marked lines for the one that asks."""

import json
import os
import subprocess
import sys
from pathlib import Path

from perfwatch.fleet import wire

NONCE = "0011223344556677"


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
