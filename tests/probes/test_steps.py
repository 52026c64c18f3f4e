"""Steps and last tracebacks that the agent leaves."""

import os
import struct
import time
from pathlib import Path

import pytest

from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Reading, Steps, ThreadError, Traceback
from perfwatch_probes.steps import MOST_OVER, StepCounter, count_steps, parse_crash, parse_page

SLOTS = 168
SECOND = 10**9


def page(times_ns: dict[int, int], pid: int = 41, start_ticks: int = 7, thread: int = 44) -> bytes:
    """A page of the agent in which step ``number`` ended at ``times_ns[number]``."""
    content = bytearray(4096)
    struct.pack_into("<8sIIQQ", content, 0, b"PWSTEPS2", pid, SLOTS, start_ticks, 0)
    for number, when in times_ns.items():
        struct.pack_into("<QQQ", content, 64 + 24 * (number % SLOTS), when, thread, number)
    return bytes(content)


def even(last: int, every_ns: int = SECOND) -> dict[int, int]:
    """Steps 1 to ``last``, one a second."""
    return {number: number * every_ns for number in range(1, last + 1)}


def armed(tmp_path: Path, started: int = 7) -> StepCounter:
    """A counter on ``tmp_path``, at 100 s, on a machine where process 41 started at tick ``started``."""
    (tmp_path / "41").mkdir(exist_ok=True)
    (tmp_path / "41/stat").write_text(f"41 (python) S {' '.join(['0'] * 18)} {started} 0\n")
    return StepCounter(AgentFolder(tmp_path), str.upper, lambda: 100 * SECOND, tmp_path)


def steps_of(readings: list[Reading]) -> list[Steps]:
    """The Steps among readings."""
    return [one for one in readings if isinstance(one, Steps)]


def test_count_thread_age_and_intervals_come_from_the_ring() -> None:
    """The newest number is the count; intervals are between successive steps."""
    steps = count_steps(parse_page(page({1: 2 * SECOND, 2: 5 * SECOND, 3: 6 * SECOND})), 8 * SECOND)

    assert steps == Steps(
        pid=41, tid=44, count=3, step_ago_seconds=2.0, interval_seconds=(3.0, 1.0), longest_seconds=3.0
    )


def test_only_intervals_since_the_last_reading_are_told() -> None:
    """The interval from the step that was told last counts as new; the ones before it do not."""
    steps = count_steps(parse_page(page({1: 0, 2: 9 * SECOND, 3: 10 * SECOND, 4: 12 * SECOND})), 12 * SECOND, 2)

    assert steps.interval_seconds == (1.0, 2.0)


def test_a_slot_that_is_being_overwritten_does_not_count() -> None:
    """A full ring: the oldest number can already carry the time of the next step."""
    times = even(500)
    times[500 - SLOTS + 1] = 501 * SECOND

    steps = count_steps(parse_page(page(times)), 501 * SECOND)

    assert steps.count == 500
    assert set(steps.interval_seconds) == {1.0}
    assert len(steps.interval_seconds) == 64
    assert steps.longest_seconds == 1.0


def test_before_the_first_step_its_age_is_not_known() -> None:
    """None, never zero."""
    assert count_steps(parse_page(page({})), SECOND).step_ago_seconds is None


@pytest.mark.parametrize("content", [b"", bytes(4096), page({1: 1})[:100]])
def test_a_page_that_is_not_ready_is_refused(content: bytes) -> None:
    """The agent writes the magic last."""
    with pytest.raises(ValueError, match="not a page"):
        parse_page(content)


def test_a_living_rank_is_told_every_time(tmp_path: Path) -> None:
    """A count that stands still is the point."""
    counter = armed(tmp_path)
    (tmp_path / "steps-41").write_bytes(page(even(3)))

    assert [steps_of(counter.look())[0].step_ago_seconds for _ in range(2)] == [97.0, 97.0]


def test_the_page_of_a_dead_process_is_told_once(tmp_path: Path) -> None:
    """Its pid belongs to another process now; its last steps are still news, once."""
    counter = armed(tmp_path, started=8)
    (tmp_path / "steps-41").write_bytes(page(even(3)))

    assert [len(steps_of(counter.look())) for _ in range(2)] == [1, 0]


def test_of_many_pages_of_ended_processes_few_are_read_at_a_look(tmp_path: Path) -> None:
    """Each is told once; a process that our /proc does not show looks as ended as they do, and its next step is told in turn."""
    many = 3 * MOST_OVER
    counter = armed(tmp_path, started=8)
    for pid in range(100, 100 + many):
        (tmp_path / f"steps-{pid}").write_bytes(page(even(3), pid))
    told, again = len(counter.look()), len(counter.look())
    for pid in range(100, 100 + many):
        (tmp_path / f"steps-{pid}").write_bytes(page(even(4), pid))

    assert (told, again) == (many, 0)
    assert [len(counter.look()) for _ in range(3)] == [MOST_OVER] * 3


def test_a_living_rank_is_told_at_each_look_among_many_that_have_ended(tmp_path: Path) -> None:
    """The turns are those of the dead."""
    counter = armed(tmp_path)
    for pid in range(41, 41 + 3 * MOST_OVER):
        (tmp_path / f"steps-{pid}").write_bytes(page(even(3), pid))
    counter.look()
    counter.look()

    assert [[one.pid for one in steps_of(counter.look())] for _ in range(4)] == [[41]] * 4


def test_a_crash_is_told_once_and_redacted(tmp_path: Path) -> None:
    """With the name of the exception that ended the rank."""
    counter = armed(tmp_path)
    (tmp_path / "crash-41.txt").write_text("Traceback (most recent call last):\n  File\nValueError: no\n")

    (told,) = counter.look()

    assert isinstance(told, Traceback)
    assert (told.pid, told.exception) == (41, "ValueError")
    assert told.text == "TRACEBACK (MOST RECENT CALL LAST):\n  FILE\nVALUEERROR: NO\n"
    assert counter.look() == []


def test_when_an_error_was_raised_is_told(tmp_path: Path) -> None:
    """Of several ranks that end, the first to raise is to blame, and one look finds them all."""
    counter = armed(tmp_path)
    file = tmp_path / "crash-41.txt"
    file.write_text("ValueError: no\n")
    earlier = time.time() - 100.0
    os.utime(file, (earlier, earlier))

    (told,) = counter.look()

    assert isinstance(told, Traceback)
    assert told.ago_seconds is not None
    assert 100.0 <= told.ago_seconds < 160.0


def test_the_error_of_a_thread_is_told_with_its_thread(tmp_path: Path) -> None:
    """It is no crash: its process goes on."""
    (tmp_path / "thread-41-43.txt").write_text("Traceback (most recent call last):\n  File\nValueError: no\n")
    text = "TRACEBACK (MOST RECENT CALL LAST):\n  FILE\nVALUEERROR: NO\n"

    assert armed(tmp_path).look() == [ThreadError(pid=41, tid=43, exception="ValueError", text=text)]


def test_of_chained_exceptions_the_last_one_counts() -> None:
    """Lines of a message that look like a name do not."""
    text = (
        b"Traceback (most recent call last):\n  File\nKeyError: 1\n\nDuring handling of the above exception:\n\n"
        b"Traceback (most recent call last):\n  File\ntorch.OutOfMemoryError: CUDA out of memory\nTip: less\n"
    )

    assert parse_crash("crash-41.txt", text, str).exception == "torch.OutOfMemoryError"


@pytest.mark.parametrize("name", ["steps-41", "crash-41.txt"])
def test_what_else_the_job_puts_into_the_agents_folder_holds_nobody(tmp_path: Path, name: str) -> None:
    """A named pipe in place of a page or a traceback is passed over, and not waited for; so is a link to a file of others."""
    (tmp_path / "steps-40").write_bytes(page({1: 0, 2: SECOND}, pid=40))
    os.mkfifo(tmp_path / name)
    (tmp_path / "steps-42").symlink_to(tmp_path / "steps-40")

    assert [one.pid for one in steps_of(armed(tmp_path).look())] == [40]


def test_nothing_armed_is_unavailable(tmp_path: Path) -> None:
    """An empty or missing folder is not "no steps"."""
    with pytest.raises(Unavailable):
        StepCounter(AgentFolder(tmp_path), str).look()
    with pytest.raises(Unavailable) as caught:
        StepCounter(AgentFolder(tmp_path / "none"), str).look()
    assert "perfwatch run" in caught.value.advice
