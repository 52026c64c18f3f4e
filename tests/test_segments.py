"""The files of a session stay within their budget, and what matters most stays longest."""

import base64
import errno
import os
import random
from pathlib import Path

import msgspec
import pytest

from perfwatch.recording import segments as segments_module
from perfwatch.recording.compression import GZIP
from perfwatch.recording.recording import Event, Record
from perfwatch.recording.segments import EVENTS, READINGS, STACKS, Segments
from perfwatch_probes.readings import Gpu, GpuEvent, GpuSample, Process, Reading, Thread
from tests.sessions import content_of, verdict

BUDGET = 64 * 1024


def thread_line(at: float, tid: int = 7) -> bytes:
    """A reading of one thread, of which compression leaves about a hundred bytes: its name is noise."""
    name = base64.b85encode(random.Random(f"{at} {tid}").randbytes(40)).decode()
    return msgspec.json.encode(Record(at, Thread(pid=7, tid=tid, name=name, state="S", cpu_seconds=at))) + b"\n"


def process_line(at: float, pid: int) -> bytes:
    """Who a process is."""
    process = Process(pid=pid, start_ticks=1, parent_pid=1, name="python", command=("python",))
    return msgspec.json.encode(Record(at, process)) + b"\n"


def size_of(folder: Path) -> int:
    """Bytes of everything in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def times_in(folder: Path) -> list[float]:
    """When the thread readings that are left were made."""
    lines = b"".join(map(content_of, sorted(folder.glob("readings-*")))).splitlines()
    records = [msgspec.json.decode(line, type=Record) for line in lines]
    return [record.at for record in records if isinstance(record.reading, Thread)]


def filled(folder: Path, seconds: int, said: list[str] | None = None) -> Segments:
    """Segments after so many seconds of ten readings a second, with one process at the start."""
    segments = Segments(folder, BUDGET, (said if said is not None else []).append)
    segments.append(READINGS, process_line(0.0, pid=7))
    for tenth in range(seconds * 10):
        segments.append(READINGS, thread_line(tenth / 10))
    return segments


def test_lines_go_to_the_file_of_their_stream(tmp_path: Path) -> None:
    """Private files, readable while they are written."""
    segments = Segments(tmp_path, BUDGET, lambda text: None)
    segments.append(READINGS, thread_line(1.0))
    segments.append(STACKS, b'{"at":1}\n')
    segments.append(EVENTS, b'{"at":2}\n')

    segments.close()

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "events.jsonl", "readings-0001.jsonl", "stacks-0001.jsonl",
    ]  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert content_of(tmp_path / "stacks-0001.jsonl") == b'{"at":1}\n'


def test_the_budget_holds_however_long_the_job_runs(tmp_path: Path) -> None:
    """An hour of readings in a budget for seconds; never a byte more than it between two lines."""
    segments = Segments(tmp_path, BUDGET, lambda text: None)
    largest = 0
    for second in range(3600):
        segments.append(READINGS, thread_line(float(second)))
        largest = max(largest, segments.total_bytes())

    assert largest <= BUDGET
    assert size_of(tmp_path) == segments.total_bytes()


def test_the_oldest_detail_is_thinned_first_and_the_newest_is_whole(tmp_path: Path) -> None:
    """Of each old segment one reading of a thread is left, where there were thirty; the end is as it was."""
    said: list[str] = []
    filled(tmp_path, 240, said)

    times = times_in(tmp_path)

    assert times[-50:] == [tenth / 10 for tenth in range(2350, 2400)]
    assert 0 < len([time for time in times if time < 30]) <= 15
    assert said
    assert "thinned" in said[0]


def test_who_was_who_outlives_the_detail(tmp_path: Path) -> None:
    """Without the first line nobody would know which process the rest is about."""
    filled(tmp_path, 600)

    assert b'"type":"Process"' in b"".join(map(content_of, tmp_path.glob("readings-*")))


def test_each_card_keeps_a_sample_and_its_name_when_detail_is_thinned(tmp_path: Path) -> None:
    """Eight cards are eight entities; what a card is, and an Xid, outlive everything."""
    segments = Segments(tmp_path, BUDGET, lambda text: None)
    cards = [f"GPU-{index}" for index in range(8)]

    def put(at: float, reading: Reading) -> None:
        segments.append(READINGS, msgspec.json.encode({"at": at, "wall": at, "reading": reading}) + b"\n")

    for index, uuid in enumerate(cards):
        put(0.0, Gpu(uuid=uuid, index=index, name="NVIDIA H200"))
    put(0.5, GpuEvent(uuid=cards[3], xid=31))
    for tenth in range(900):
        for uuid in cards:
            put(1.0 + tenth / 10, GpuSample(uuid=uuid, power_watts=float(tenth)))

    lines = b"".join(map(content_of, sorted(tmp_path.glob("readings-*")))).splitlines()
    kept = [msgspec.json.decode(line, type=Record).reading for line in lines]
    assert {one.uuid for one in kept if isinstance(one, Gpu)} == set(cards)
    assert [one.xid for one in kept if isinstance(one, GpuEvent)] == [31]
    old = [one.uuid for one in kept if isinstance(one, GpuSample) and (one.power_watts or 0.0) < 800]
    assert set(old) == set(cards)


def test_what_a_verdict_pinned_is_not_touched(tmp_path: Path) -> None:
    """Its detail is whole after an hour of pressure."""
    segments = filled(tmp_path, 10)
    segments.pin(4.0, 6.0)
    for tenth in range(100, 6000):
        segments.append(READINGS, thread_line(tenth / 10))

    pinned = [time for time in times_in(tmp_path) if 4.0 <= time <= 6.0]

    assert pinned == [tenth / 10 for tenth in range(40, 61)]


def test_pins_take_half_the_budget_at_most(tmp_path: Path) -> None:
    """The oldest pin gives way, and that is said: the recording of now is worth more."""
    said: list[str] = []
    segments = Segments(tmp_path, BUDGET, said.append)
    for tenth in range(3000):
        segments.append(READINGS, thread_line(tenth / 10))
        if tenth % 20 == 0:
            segments.pin(tenth / 10 - 2, tenth / 10)

    assert segments.total_bytes() <= BUDGET
    assert any("may be thinned now" in text for text in said)
    assert times_in(tmp_path)[-1] == 299.9


def event_line(at: float, kind: str = "verdict") -> bytes:
    """Something that was said, with the verdict that goes with it."""
    return msgspec.json.encode(Event(at, kind, f"said at {at}", verdict())) + b"\n"


def test_a_verdict_that_flaps_for_weeks_leaves_room_for_the_newest(tmp_path: Path) -> None:
    """The events stay within their eighth; the older ones keep what was said and lose the verdict, then go themselves."""
    said: list[str] = []
    segments = Segments(tmp_path, BUDGET, said.append)
    for number in range(1000):
        segments.append(EVENTS, event_line(float(number)))
    events = [msgspec.json.decode(line, type=Event) for line in (tmp_path / "events.jsonl").read_bytes().splitlines()]

    assert (tmp_path / "events.jsonl").stat().st_size <= BUDGET // 8
    assert events[-1] == Event(999.0, "verdict", "said at 999.0", verdict())
    assert events[0].verdict is None
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert any("keep no verdicts" in text for text in said)


def test_an_event_larger_than_all_room_for_events_is_refused(tmp_path: Path) -> None:
    """The refusal is counted by the writer; the next one fits."""
    segments = Segments(tmp_path, BUDGET, lambda text: None)
    with pytest.raises(OSError, match="eighth"):
        segments.append(EVENTS, b'{"at":1,"text":"' + b"x" * (BUDGET // 8) + b'"}\n')
    segments.append(EVENTS, event_line(2.0))

    assert (tmp_path / "events.jsonl").read_bytes() == event_line(2.0)


def seconds_left(folder: Path, first: float, last: float) -> list[float]:
    """Of the thread readings that are left, those made in this time."""
    return [at for at in times_in(folder) if first <= at <= last]


def test_the_last_half_hour_is_whole_however_long_the_job_runs(tmp_path: Path) -> None:
    """The black box: after five hours, every second of the last thirty minutes, and of the first hour an outline."""
    segments = Segments(tmp_path, 6 * BUDGET, lambda text: None)
    for second in range(5 * 3600):
        segments.append(READINGS, thread_line(float(second)))

    assert seconds_left(tmp_path, 5 * 3600 - 1800, 5 * 3600) == [float(second) for second in range(16200, 18000)]
    assert segments.total_bytes() <= 6 * BUDGET


def test_the_half_hour_before_an_incident_is_whole_days_after_it(tmp_path: Path) -> None:
    """A hang on Friday evening is looked at on Monday."""
    segments = Segments(tmp_path, 12 * BUDGET, lambda text: None)
    for second in range(4 * 3600):
        segments.append(READINGS, thread_line(float(second)))
        if second == 5400:
            segments.pin(5370.0, 5400.0, True)

    assert seconds_left(tmp_path, 3600.0, 5400.0) == [float(second) for second in range(3600, 5401)]


def test_a_rate_too_high_for_half_an_hour_leaves_the_newest_half_whole(tmp_path: Path) -> None:
    """Rather than an outline of everything and the detail of nothing."""
    segments = Segments(tmp_path, BUDGET, lambda text: None)
    for tenth in range(12000):
        segments.append(READINGS, thread_line(tenth / 10))
    times = times_in(tmp_path)
    whole = next(
        n for n, (last, before) in enumerate(zip(times[::-1], times[-2::-1], strict=False)) if last - before > 0.15
    )

    assert whole * len(thread_line(1000.0)) > 0.4 * BUDGET


def test_what_a_verdict_rests_on_outlives_the_half_hours_before_incidents(tmp_path: Path) -> None:
    """A job that is slow again and again: each time the evidence stays, the older half hours give way."""
    said: list[str] = []
    segments = Segments(tmp_path, 4 * BUDGET, said.append)
    for second in range(5 * 3600):
        segments.append(READINGS, thread_line(float(second)))
        if second % 3600 == 1800:
            segments.pin(second - 30.0, float(second), True)

    assert seconds_left(tmp_path, 1770.0, 1800.0) == [float(second) for second in range(1770, 1801)]
    assert segments.total_bytes() <= 4 * BUDGET
    assert any("may be thinned now" in text for text in said)


def test_a_writer_after_a_killed_one_knows_what_is_old(tmp_path: Path) -> None:
    """Thinning writes the oldest segment last: its age on disk tells nothing."""
    filled(tmp_path, 120).close()
    oldest = min(tmp_path.glob("readings-*"))
    os.utime(oldest)
    segments = Segments(tmp_path, BUDGET, lambda text: None)
    for tenth in range(1200, 2400):
        segments.append(READINGS, thread_line(tenth / 10))

    assert len(seconds_left(tmp_path, 100.0, 120.0)) >= len(seconds_left(tmp_path, 0.0, 20.0))


def test_a_writer_after_a_killed_one_goes_on_in_a_new_segment(tmp_path: Path) -> None:
    """What the first one wrote is kept and counts against the budget."""
    filled(tmp_path, 2).close()
    before = size_of(tmp_path)

    segments = Segments(tmp_path, BUDGET, lambda text: None)
    segments.append(READINGS, thread_line(9.0))

    assert segments.total_bytes() == before + len(thread_line(9.0))
    assert times_in(tmp_path)[-1] == 9.0


def test_the_description_is_replaced_in_one_step(tmp_path: Path) -> None:
    """No half of a session.json is ever seen, and nothing is left beside it."""
    segments = Segments(tmp_path, BUDGET, lambda text: None)
    segments.describe(b'{"old": 1}')
    segments.describe(b'{"new": 1}')
    segments.close()

    assert (tmp_path / "session.json").read_bytes() == b'{"new": 1}'
    assert [path.name for path in tmp_path.iterdir()] == ["session.json"]


def compressed(folder: Path) -> dict[str, bool]:
    """Which segments of readings are compressed."""
    return {path.name: path.read_bytes().startswith(GZIP) for path in sorted(folder.glob("readings-*"))}


def test_a_segment_is_compressed_when_it_is_full(tmp_path: Path) -> None:
    """The one that is written is lines, so that each is on the disk at once; at the end it is compressed too."""
    segments = filled(tmp_path, 10)
    *full, last = compressed(tmp_path).values()

    assert len(full) > 2
    assert all(full)
    assert not last
    assert times_in(tmp_path) == [tenth / 10 for tenth in range(100)]

    segments.close()

    assert all(compressed(tmp_path).values())
    assert times_in(tmp_path) == [tenth / 10 for tenth in range(100)]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_the_same_lines_make_the_same_files(tmp_path: Path) -> None:
    """No name and no time of day goes into them."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        filled(tmp_path / name, 10).close()
    one, other = ([path.read_bytes() for path in sorted((tmp_path / name).iterdir())] for name in ("one", "other"))

    assert one == other


def test_the_budget_is_about_what_is_on_the_disk(tmp_path: Path) -> None:
    """Of what compresses well it holds many times its size."""
    segments = Segments(tmp_path, BUDGET, lambda text: None)
    line = msgspec.json.encode(Record(1.0, Thread(pid=7, tid=7, name="python", state="S", cpu_seconds=1.0))) + b"\n"
    for _ in range(4 * BUDGET // len(line)):
        segments.append(READINGS, line)

    assert sum(len(content_of(path)) for path in tmp_path.iterdir()) > 3 * BUDGET
    assert size_of(tmp_path) < BUDGET


def test_a_session_has_no_more_lines_than_a_reader_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are loaded as a whole: that a disk has room for ten times as many does not help."""
    monkeypatch.setattr(segments_module, "MOST_LINES_BYTES", BUDGET)
    segments = Segments(tmp_path, BUDGET, lambda text: None)
    for second in range(5000):
        reading = Thread(pid=7, tid=7, name="python", state="S", cpu_seconds=1.0)
        segments.append(READINGS, msgspec.json.encode(Record(float(second), reading)) + b"\n")

    assert BUDGET // 2 < sum(len(content_of(path)) for path in tmp_path.iterdir()) <= BUDGET
    assert times_in(tmp_path)[-1] == 4999.0


def test_a_session_has_no_more_files_than_a_reader_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of those of which least is left go first."""
    monkeypatch.setattr(segments_module, "MOST_SEGMENTS", 12)
    filled(tmp_path, 300)

    assert len(list(tmp_path.iterdir())) <= 12
    assert times_in(tmp_path)[-50:] == [tenth / 10 for tenth in range(2950, 3000)]


def test_a_segment_of_which_nothing_is_left_is_removed(tmp_path: Path) -> None:
    """A thread's readings do not outlive the detail; an empty file would."""
    filled(tmp_path, 600)

    assert all(map(content_of, tmp_path.glob("readings-*")))


def test_where_the_disk_has_no_room_to_compress_the_lines_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost and nothing is left beside them; they are compressed when there is room again."""

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    segments = Segments(tmp_path, 4 * BUDGET, lambda text: None)
    with monkeypatch.context() as full:
        full.setattr(os, "link", refuse)
        for tenth in range(400):
            segments.append(READINGS, thread_line(tenth / 10))
        assert not any(compressed(tmp_path).values())
        assert len(compressed(tmp_path)) > 2
        assert size_of(tmp_path) == segments.total_bytes()
    for tenth in range(400, 600):
        segments.append(READINGS, thread_line(tenth / 10))

    assert list(compressed(tmp_path).values())[:-1] == [True] * (len(compressed(tmp_path)) - 1)
    assert times_in(tmp_path) == [tenth / 10 for tenth in range(600)]
    assert size_of(tmp_path) == segments.total_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_writer_after_a_killed_one_compresses_what_that_left(tmp_path: Path) -> None:
    """A killed writer leaves its open segment as lines, and compressed ones from before; both are known by their size."""
    filled(tmp_path, 10)
    before = times_in(tmp_path)

    segments = Segments(tmp_path, BUDGET, lambda text: None)
    assert segments.total_bytes() == size_of(tmp_path)
    segments.append(READINGS, thread_line(99.0))
    segments.close()

    assert all(compressed(tmp_path).values())
    assert times_in(tmp_path) == [*before, 99.0]


@pytest.mark.parametrize("damage", [b"", b"\x1f\x8b", b"\x1f\x8b\x08\x00" + b"\xff" * 20])
def test_a_writer_after_a_killed_one_is_not_kept_by_a_damaged_segment(tmp_path: Path, damage: bytes) -> None:
    """The budget holds: it counts as the oldest, and it cannot be thinned, so it is removed."""
    (tmp_path / "readings-0001.jsonl").write_bytes(damage)
    filled(tmp_path, 300).close()

    assert size_of(tmp_path) <= BUDGET
    assert times_in(tmp_path)[-1] == 299.9
    assert not (tmp_path / "readings-0001.jsonl").exists()
