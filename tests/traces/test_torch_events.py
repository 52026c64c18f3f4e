"""A trace is the job's file: cut, endless, hostile or of another kind, it ends in a sentence, soon."""

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfwatch.errors import TraceUnreadable
from perfwatch.traces.torch_events import events
from tests.traces.kineto_text import span, text, window, write

GOOD = [window(0, 100), span("cpu_op", "aten::mm {lambda()#1} \n  }", 1, 5), span("cpu_op", 'a "quoted" name', 6, 7)]


def test_events_come_in_order_with_odd_names_whole(tmp_path: Path) -> None:
    """A kernel's name may hold braces, quotes and escapes."""
    names = [one.name for one in events(write(tmp_path / "t.gz", GOOD))]

    assert names == ["PyTorch Profiler (0)", "aten::mm {lambda()#1} \n  }", 'a "quoted" name']


def test_plain_file_is_read_as_well(tmp_path: Path) -> None:
    """As torch.profiler writes it before it is packed."""
    path = tmp_path / "t.json"
    path.write_bytes(text(GOOD))

    assert len(list(events(path))) == 3


def test_truncated_trace_is_said_to_be_cut_off(tmp_path: Path) -> None:
    """Plain or packed, wherever it is cut."""
    plain, packed = text(GOOD), gzip.compress(text(GOOD))
    for name, content in (("t.json", plain[: len(plain) // 2]), ("t.gz", packed[: len(packed) // 2])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TraceUnreadable, match=r"cut off|no traceEvents"):
            list(events(tmp_path / name))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a trace",
        b'{"traceEvents": 5}',
        b'{"traceEvents": [\n  {\n "ph": 5\n  }\n]}',
        b'{"traceEvents": [' + b"[" * 100_000,
        b'{"traceEvents": [\n  {' + b'"a":' * 50_000 + b"\n  }]}",
        b'{"traceEvents": [{"ph": "X", "name": "' + b"x" * (3 * 2**20) + b'"}]}',
        b"\x1f\x8b garbage",
    ],
    ids=["empty", "text", "number", "wrong type", "deep", "torn", "endless event", "no gzip"],
)
def test_hostile_content_is_refused(tmp_path: Path, content: bytes) -> None:
    """With a sentence that names the file."""
    path = tmp_path / "t.json"
    path.write_bytes(content)

    with pytest.raises(TraceUnreadable, match=r"t\.json"):
        list(events(path))


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever follows the beginning of a good file, there are events or a sentence."""
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    path.write_bytes(text(GOOD)[:200] + content)
    try:
        list(events(path))
    except TraceUnreadable:
        pass


def test_bomb_is_stopped(tmp_path: Path) -> None:
    """A small file that unpacks to a gigabyte of nothing ends after a megabyte of it."""
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(text(GOOD)[:-60] + b" " * 2**26))

    with pytest.raises(TraceUnreadable, match="an event of more than"):
        list(events(path))


def test_reading_has_a_deadline(tmp_path: Path) -> None:
    """However large the file is."""
    now = iter(range(100))

    with pytest.raises(TraceUnreadable, match="longer than 0 s"):
        list(events(write(tmp_path / "t.gz", GOOD), 0.0, lambda: float(next(now))))


def test_too_many_events_are_refused(tmp_path: Path) -> None:
    """They would not fit into memory."""
    with pytest.raises(TraceUnreadable, match="more than 2 events"):
        list(events(write(tmp_path / "t.gz", GOOD), most_events=2))


def test_pipe_or_link_is_not_opened(tmp_path: Path) -> None:
    """A FIFO would hold us; a link may lead anywhere."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(write(tmp_path / "t.gz", GOOD))

    for name in ("fifo", "link", "absent"):
        with pytest.raises(TraceUnreadable):
            list(events(tmp_path / name))


def test_numbers_that_json_allows_are_read(tmp_path: Path) -> None:
    """Kineto writes times as decimal fractions; other fields may hold anything."""
    event = span("kernel", "k", 1.25, 2.5) | {"args": {"correlation": "7", "other": [{"deep": None}]}}
    (path := tmp_path / "t.json").write_bytes(text([json.loads(json.dumps(event))]))
    (read,) = events(path)

    assert (read.ts, read.dur) == (1.25, 1.25)


@pytest.mark.parametrize("indent", [None, 1, 2, 4, "\t"])
def test_a_trace_that_was_written_anew_is_read(tmp_path: Path, indent: int | str | None) -> None:
    """By Python's json: on one line or indented, with other keys first and events cut by chunks anywhere."""
    many = [*GOOD, *(span("cpu_op", f"op {number} é", number, number + 1) for number in range(8000))]
    path = tmp_path / "t.json"
    whole = {"metadata": {"list": ["["]}, "schemaVersion": 1, "traceEvents": many, "traceName": "x"}
    path.write_text(json.dumps(whole, indent=indent))

    assert [one.name for one in events(path)] == [one["name"] for one in many]


def test_a_trace_that_was_written_anew_and_cut_is_refused(tmp_path: Path) -> None:
    """After the events that were whole."""
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": GOOD})[:-60])

    with pytest.raises(TraceUnreadable, match="cut off"):
        list(events(path))


def test_an_execution_trace_is_refused_by_its_name(tmp_path: Path) -> None:
    """It tells which operators ran, and not when."""
    path = tmp_path / "et.json"
    path.write_text(
        json.dumps({"schema": "1.0.1", "pid": 7, "time": "2026-11-29", "start_ts": 1, "nodes": [{"id": 1}]})
    )

    with pytest.raises(TraceUnreadable, match="execution trace"):
        list(events(path))
