"""The files of a session stay within their budget, and what matters most stays longest."""

from pathlib import Path

import msgspec

from perfwatch.probes.readings import Gpu, GpuEvent, GpuSample, Process, Reading, Thread
from perfwatch.recording import Record
from perfwatch.segments import EVENTS, READINGS, STACKS, Segments

BUDGET = 64 * 1024


def thread_line(at: float, tid: int = 7) -> bytes:
    """A reading of one thread, padded by its name to about a hundred bytes."""
    return msgspec.json.encode(Record(at, at, Thread(pid=7, tid=tid, name="t" * 20, state="S", cpu_seconds=at))) + b"\n"


def process_line(at: float, pid: int) -> bytes:
    """Who a process is."""
    process = Process(pid=pid, start_ticks=1, parent_pid=1, name="python", command=("python",))
    return msgspec.json.encode(Record(at, at, process)) + b"\n"


def size_of(folder: Path) -> int:
    """Bytes of everything in a folder."""
    return sum(path.stat().st_size for path in folder.iterdir())


def times_in(folder: Path) -> list[float]:
    """When the thread readings that are left were made."""
    lines = b"".join(path.read_bytes() for path in sorted(folder.glob("readings-*"))).splitlines()
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
    assert (tmp_path / "stacks-0001.jsonl").read_bytes() == b'{"at":1}\n'


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
    filled(tmp_path, 120, said)

    times = times_in(tmp_path)

    assert times[-50:] == [tenth / 10 for tenth in range(1150, 1200)]
    assert 0 < len([time for time in times if time < 30]) <= 10
    assert said
    assert "thinned" in said[0]


def test_who_was_who_outlives_the_detail(tmp_path: Path) -> None:
    """Without the first line nobody would know which process the rest is about."""
    filled(tmp_path, 600)

    assert b'"type":"Process"' in b"".join(path.read_bytes() for path in tmp_path.glob("readings-*"))


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

    lines = b"".join(path.read_bytes() for path in sorted(tmp_path.glob("readings-*"))).splitlines()
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


def test_events_beyond_their_share_are_refused(tmp_path: Path) -> None:
    """A verdict that flaps for weeks must not push out the readings; the refusal is counted by the writer."""
    segments = Segments(tmp_path, BUDGET, lambda text: None)
    refused = 0
    for _ in range(1000):
        try:
            segments.append(EVENTS, b'{"at":1,"text":"' + b"x" * 80 + b'"}\n')
        except OSError:
            refused += 1

    assert refused > 0
    assert (tmp_path / "events.jsonl").stat().st_size <= BUDGET // 8


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
