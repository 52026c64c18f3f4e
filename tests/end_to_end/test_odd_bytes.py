"""Names that are not UTF-8: Linux allows them everywhere, and no JSON can hold them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.conftest import until

pytestmark = pytest.mark.live

PROGRAM = """
import os, sys
held = os.open(os.fsencode(sys.argv[1]), os.O_RDWR | os.O_CREAT)
os.write(held, b"x")
for _ in range(40):
    sum(range(2_000_000))
"""


@pytest.mark.end_to_end
def test_a_job_with_names_that_are_no_text_is_watched_and_recorded(tmp_path: Path) -> None:
    """In its command line, and of a file that it holds open."""
    odd = os.fsencode(tmp_path) + b"/caf\xe9.bin"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "perfwatch",
            "run",
            "--session",
            tmp_path / "s",
            "--",
            sys.executable,
            "-c",
            PROGRAM,
            odd,
        ],
        capture_output=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0
    assert b"watcher failed" not in done.stderr
    assert b"internal error" not in done.stderr
    assert json.loads((tmp_path / "s" / "session.json").read_bytes())["command"][-1].endswith("/caf?.bin")
    events = tmp_path / "s" / "events.jsonl"
    until(lambda: events.exists() and b'"outcome"' in events.read_bytes())  # nobody waits for the watcher's last words
    assert b"internal error" not in events.read_bytes()
