"""Short records by py-spy: the events of its trace become stacks with a place in time."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Frame, Stack
from perfwatch_probes.stack_record import Recorded, parse_chrometrace, start_record
from perfwatch_probes.stacks import Stacks, left_traced


def event(phase: str, at_us: int, name: str, line: int = 0, thread: int = 1) -> dict[str, Any]:
    """An event as py-spy 0.4.3 writes it."""
    args = {"filename": f"/{name}.py" if line else "", "line": line}
    return {"ph": phase, "ts": at_us, "name": name, "args": args, "tid": thread, "pid": 5, "cat": "py-spy"}


TRACE = [
    event("B", 100_000, "thread (5): MainThread"),
    event("B", 100_000, "train", 9),
    event("B", 100_000, "load", 3),
    event("B", 100_500, "thread (0x7F8A00): beat", thread=2),
    event("B", 100_500, "hold", 2, thread=2),
    event("E", 600_000, "load", 3),
    event("B", 600_000, "step", 4),
    event("E", 1_100_000, "step", 4),
    event("E", 1_100_000, "train", 9),
    event("E", 1_100_000, "thread (5): MainThread"),
    event("E", 1_100_000, "hold", 2, thread=2),
    event("E", 1_100_000, "thread (0x7F8A00): beat", thread=2),
]


def test_what_stands_between_two_changes_is_one_stack() -> None:
    """Innermost frame first, with its span, its samples at the rate, and when it ended."""
    found = list(parse_chrometrace(TRACE, pid=5, rate_hz=20))

    first = Stack(
        pid=5,
        tid=5,
        thread="MainThread",
        frames=(Frame("load", "/load.py", 3), Frame("train", "/train.py", 9)),
        samples=10,
        span_seconds=0.5,
    )
    assert found[0] == (0.5, first)
    assert found[1][0] == 0.0
    assert found[1][1].frames[0] == Frame("step", "/step.py", 4)
    assert len(found) == 3


def test_a_thread_without_an_id_keeps_its_handle() -> None:
    """Python before 3.11: the handle is translated later."""
    beat = next(stack for _, stack in parse_chrometrace(TRACE, 5, 20) if stack.thread == "beat")

    assert beat.tid == 0x7F8A00
    assert beat.samples == 20


def test_a_change_of_line_alone_is_a_change_of_stack() -> None:
    """py-spy closes and opens the frame at its new line; both lines are seen, none of them with an empty span."""
    events = [
        event("B", 0, "thread (5)"),
        event("B", 0, "train", 9),
        event("E", 50_000, "train", 9),
        event("B", 50_000, "train", 10),
        event("E", 60_000, "train", 10),
        event("E", 60_000, "thread (5)"),
    ]

    found = [(stack.frames[0].line, stack.samples) for _, stack in parse_chrometrace(events, 5, 20)]

    assert found == [(9, 1), (10, 1)]


def test_an_empty_trace_has_no_stacks() -> None:
    """A record that was interrupted at once is not an error."""
    assert list(parse_chrometrace([], 5, 20)) == []


def test_without_py_spy_there_is_no_record() -> None:
    """The advice is the command that installs it."""
    stacks = Stacks("x")
    stacks.command = None

    with pytest.raises(Unavailable) as caught:
        start_record(5, 1.0, 20, stacks)
    assert "pip install" in caught.value.advice


@pytest.mark.live
def test_a_living_process_is_recorded_and_left_as_it_was(start: Callable[[str], int]) -> None:
    """The real py-spy: where it waits, for how long, until now; nothing is traced and nothing is left behind."""
    pid = start("print('ready', flush=True)\ninput()")
    before = set(os.listdir("/proc/self/fd"))
    record = start_record(pid, 1.0, 20)

    found = _finish(record)

    (ago_seconds, stack) = found[-1]
    assert stack.tid == pid
    assert stack.frames == (Frame("<module>", "<string>", 2),)
    assert stack.samples > 1
    assert stack.span_seconds > 0.2
    assert 0.0 <= ago_seconds < 10.0
    assert left_traced(pid) == []
    assert (record.cpu_seconds or 0.0) > 0.0
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.live
def test_a_record_of_a_dead_process_says_so() -> None:
    """The failure of py-spy is translated as for a dump."""
    with pytest.raises(Unavailable, match="is no more"):
        _finish(start_record(2**22 - 1, 1.0, 20))


@pytest.mark.live
def test_a_record_that_is_late_is_interrupted_and_then_killed(tmp_path: Path) -> None:
    """A py-spy that hangs and ignores the interrupt does not hold us: it is killed and reported."""
    stubborn = tmp_path / "py-spy"
    deaf = tmp_path / "deaf"
    os.mkfifo(deaf)
    stubborn.write_text(f"#!/bin/sh\ntrap '' INT\necho > {deaf}\nwhile :; do read -t 60 nothing <> /dev/zero; done\n")
    stubborn.chmod(0o755)
    now = [0.0]
    record = Recorded(5, 1.0, 20, Stacks(str(stubborn)), clock=lambda: now[0])
    deaf.read_text()  # it ignores the interrupt from now on

    assert record.poll() is None
    now[0] = 2.0
    assert record.poll() is None
    now[0] = 5.0
    with pytest.raises(Unavailable, match="was killed"):
        record.poll()


def _finish(record: Recorded) -> list[tuple[float, Stack]]:
    ends = time.monotonic() + 20.0
    while (found := record.poll()) is None:
        assert time.monotonic() < ends
        time.sleep(0.01)
    return found
