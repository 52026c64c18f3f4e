"""Commands for many hosts: each is heard when it ends, and none holds the others up, fills the memory or is left behind."""

import os
import select
import sys
import time
from pathlib import Path

import pytest

from perfwatch.fleet import pool
from perfwatch.fleet.engine import Answer

pytestmark = pytest.mark.live

SOON_SECONDS = 20.0


def heard(commands: dict[str, list[str]], deadline_seconds: float = SOON_SECONDS) -> dict[str, Answer]:
    """All answers by host."""
    return {answer.host: answer for answer in pool.run(commands, deadline_seconds)}


def test_each_answer_has_its_lines_its_last_complaint_and_its_end() -> None:
    """A missing program is an answer too."""
    said = heard(
        {
            "good": ["sh", "-c", "echo one; echo two; echo careful >&2; echo broken >&2; exit 3"],
            "missing": ["/no/such/program"],
        }
    )

    assert (said["good"].lines, said["good"].said, said["good"].exit_code) == (("one", "two"), "broken", 3)
    assert said["missing"].not_installed


def test_a_host_that_hangs_has_a_deadline_and_the_others_are_heard_before_it() -> None:
    """It counts as no answer, and what it started is ended with it."""
    began = time.monotonic()
    answers = list(pool.run({"hangs": ["sh", "-c", "sleep 600 & wait"], "good": ["echo", "here"]}, 1.0))

    assert [answer.host for answer in answers] == ["good", "hangs"]
    assert answers[1].timed_out
    assert time.monotonic() - began < SOON_SECONDS


def test_what_a_late_command_started_is_ended_too(tmp_path: Path) -> None:
    """The child of the child writes its pid, and is gone afterwards."""
    note = tmp_path / "pid"
    list(pool.run({"hangs": ["sh", "-c", f"sleep 600 & echo $! > {note}; wait"]}, 1.0))
    try:
        handle = os.pidfd_open(int(note.read_text()))
    except ProcessLookupError:
        return  # gone already

    assert select.select([handle], [], [], SOON_SECONDS)[0]


def test_100_mb_are_not_taken() -> None:
    """The answer ends at the limit, and so does the one that gives it."""
    said = heard({"floods": [sys.executable, "-c", "import os\nwhile True: os.write(1, b'x' * 65536)"]})

    assert said["floods"].too_long


def test_more_hosts_than_run_at_once_are_all_heard() -> None:
    """In turns."""
    said = heard({f"host-{number}": ["echo", str(number)] for number in range(9)})

    assert sorted(answer.lines for answer in said.values()) == [(str(number),) for number in range(9)]


def test_each_host_has_its_deadline_from_when_it_is_asked() -> None:
    """Three turns take longer than one deadline, and nobody is late."""
    commands = {f"host-{number}": ["sh", "-c", "sleep 1.2; echo here"] for number in range(6)}
    answers = list(pool.run(commands, 3.0, at_once=2))

    assert [answer.lines for answer in answers] == [("here",)] * 6


def test_a_host_whose_turn_never_comes_was_not_asked_and_is_not_silent() -> None:
    """All before it hang."""
    hangs = {f"host-{number}": ["sleep", "600"] for number in range(pool.MOST_TURNS + 1)}
    first, *_, last = pool.run(hangs, 0.5, at_once=1)

    assert (first.timed_out, first.unasked) == (True, "")
    assert (last.timed_out, last.unasked) == (False, "failed")


def test_whoever_leaves_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    """Ctrl-C while one still runs."""
    note = tmp_path / "pid"
    answers = pool.run(
        {"good": ["true"], "hangs": ["sh", "-c", f"echo $$ > {note}; echo > {note}.there; sleep 600"]}, 60.0
    )
    next(answers)
    while not Path(f"{note}.there").exists():
        os.sched_yield()
    answers.close()  # type: ignore[attr-defined]

    assert not Path(f"/proc/{int(note.read_text())}").exists()
