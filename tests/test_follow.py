"""A recording followed while it is written: nothing twice, nothing lost, whatever the writer does to its files."""

import os
from pathlib import Path

import msgspec
import pytest

from perfwatch.errors import SessionUnreadable
from perfwatch.recording.compression import compress
from perfwatch.recording.recording import Event, Recorder
from perfwatch.recording.segments import EVENTS, Segments
from perfwatch.recording.unnamed import replacement
from perfwatch.top import follow
from perfwatch.top.follow import STALE_SECONDS, Follower
from perfwatch_probes import bounds
from perfwatch_probes.readings import Steps
from tests.sessions import CREATED, PATIENCE_SECONDS, readings, session, verdict

pytestmark = pytest.mark.live


def line(at: float, count: int) -> bytes:
    """One reading, as a writer has it."""
    reading = Steps(pid=700, tid=700, count=count)
    return msgspec.json.encode({"at": at, "wall": CREATED + at, "reading": reading}) + b"\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A session that has just begun."""
    place = tmp_path / "session"
    place.mkdir(mode=0o700)
    recorder = Recorder(place, session())
    recorder.append(0.0, readings())
    assert recorder.close(PATIENCE_SECONDS) == ""
    return place


def counts(follower: Follower) -> list[int]:
    """Steps that were read so far."""
    return [one.reading.count for one in follower.history.every(Steps)]


def test_only_what_is_new_is_read(folder: Path) -> None:
    """A second look at the same files brings nothing."""
    follower = Follower(folder)

    assert follower.read()
    assert not follower.read()
    with (folder / "readings-0002.jsonl").open("ab") as file:
        file.write(line(1.0, 1))
    assert follower.read()
    assert counts(follower) == [1]


def test_half_a_line_waits_for_its_other_half(folder: Path) -> None:
    """A writer is caught in the middle of a line, wherever it is cut."""
    follower = Follower(folder)
    whole = line(1.0, 1)
    for end in range(len(whole)):
        (folder / "readings-0002.jsonl").write_bytes(whole[:end])
        follower.read()
        assert counts(follower) == []
    (folder / "readings-0002.jsonl").write_bytes(whole)
    follower.read()

    assert counts(follower) == [1]
    assert follower.skipped == 0


def test_a_segment_that_was_thinned_is_not_read_again(folder: Path) -> None:
    """The budget is kept by writing a smaller file over an older one; its lines have been seen."""
    segment = folder / "readings-0002.jsonl"
    segment.write_bytes(b"".join(line(float(second), second) for second in range(5)))
    follower = Follower(folder)
    follower.read()
    thinner = folder / "thinner"
    thinner.write_bytes(line(4.0, 4))
    thinner.rename(segment)
    follower.read()
    with segment.open("ab") as file:
        file.write(line(5.0, 5))
    follower.read()

    assert counts(follower) == [0, 1, 2, 3, 4, 5]


def compress_in_place(segment: Path, lines: bytes) -> None:
    """Replace a segment as its writer does."""
    with replacement(segment) as descriptor:
        compress([lines], descriptor)


def test_a_segment_that_is_compressed_goes_on_where_it_was(folder: Path) -> None:
    """Wherever the last look was, and with lines that came between it and the end of the segment."""
    segment = folder / "readings-0002.jsonl"
    lines = b"".join(line(float(second), second) for second in range(4))
    for cut in range(0, len(lines), 7):
        segment.unlink(missing_ok=True)
        segment.write_bytes(lines[:cut])
        follower = Follower(folder)
        follower.read()
        compress_in_place(segment, lines)
        follower.read()

        assert counts(follower) == [0, 1, 2, 3]
        assert follower.skipped == 0
        assert not follower.read()


def test_a_compressed_segment_that_was_thinned_is_not_read_again(folder: Path) -> None:
    """Also by a follower that had not seen the end of it, or slept when it was compressed."""
    segment = folder / "readings-0002.jsonl"
    lines = [line(float(second), second) for second in range(5)]
    for seen in (b"".join(lines[:3]), b"".join(lines)):
        segment.write_bytes(seen)
        slept, awake = Follower(folder), Follower(folder)
        slept.read(), awake.read()
        compress_in_place(segment, b"".join(lines))
        awake.read()
        compress_in_place(segment, lines[-1])
        slept.read(), awake.read()

        assert counts(slept) == list(range(seen.count(b"\n")))
        assert counts(awake) == [0, 1, 2, 3, 4]
        assert (slept.skipped, awake.skipped) == (0, 0)
        segment.unlink()


def test_a_compressed_segment_that_is_damaged_gives_what_is_before_the_damage(folder: Path) -> None:
    """And the damage is counted, once."""
    segment = folder / "readings-0002.jsonl"
    compress_in_place(segment, b"".join(line(float(second), second * 7919) for second in range(20000)))
    segment.write_bytes(segment.read_bytes()[:-5000])
    follower = Follower(folder)
    follower.read()
    follower.read()

    assert 0 < len(counts(follower)) < 20000
    assert follower.skipped == 1


def test_a_compressed_segment_longer_than_any_is_read_in_part(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read as a whole, so its length is bounded; what is beyond counts as damage."""
    monkeypatch.setattr(follow, "MOST_EXPANDED_BYTES", 2**20)
    compress_in_place(folder / "readings-0002.jsonl", line(1.0, 1) * 2**15)
    follower = Follower(folder)
    follower.read()

    assert 2**20 <= len(counts(follower)) * len(line(1.0, 1)) < 2**21
    assert follower.skipped == 1


def test_a_follower_of_a_bomb_gives_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a few KiB that expands to more than a session has."""
    monkeypatch.setattr(bounds, "SESSION_BYTES", 2**22)
    compress_in_place(folder / "readings-0002.jsonl", bytes(2**23))

    with pytest.raises(SessionUnreadable, match="which no session has"):
        Follower(folder).read()


def test_the_event_for_which_older_ones_were_thinned_is_read_once(folder: Path) -> None:
    """It stands in the new file already, behind those that have been given and have lost their verdicts by now."""
    thinned: list[str] = []
    segments = Segments(folder, 8 * 40_000, thinned.append)
    follower = Follower(folder)
    told = [f"stuck for the time {number}" for number in range(60)]
    for number, text in enumerate(told):
        event = Event(float(number // 2), "verdict", text, verdict(summary="x" * 2000))
        segments.append(EVENTS, msgspec.json.encode(event) + b"\n")
        follower.read()
    segments.close()

    assert any("older ones keep no verdicts" in sentence for sentence in thinned)
    assert [event.text for event in follower.events] == told
    assert not follower.read()


def test_a_file_that_is_gone_and_one_that_is_none_are_passed_over(folder: Path, tmp_path: Path) -> None:
    """A link or a FIFO in the folder is not followed and does not block."""
    follower = Follower(folder)
    os.mkfifo(folder / "readings-0003.jsonl")
    (tmp_path / "elsewhere").write_bytes(line(1.0, 1))
    (folder / "readings-0004.jsonl").symlink_to(tmp_path / "elsewhere")
    (folder / "readings-0005.jsonl").write_bytes(line(2.0, 2))
    follower.read()
    (folder / "readings-0005.jsonl").unlink()
    follower.read()

    assert counts(follower) == [2]


def test_rubbish_and_kinds_of_a_newer_version_are_counted(folder: Path) -> None:
    """And everything else is there."""
    newer = b'{"at":1.0,"wall":1.0,"reading":{"type":"FromTheFuture"}}\n'
    (folder / "readings-0002.jsonl").write_bytes(b"rubbish\n" + newer + line(1.0, 1))
    follower = Follower(folder)
    follower.read()

    assert (follower.skipped, counts(follower)) == (2, [1])


def written(folder: Path, name: str, content: bytes, wall: float) -> None:
    """Somebody writes to a file of the session at this unix time."""
    with (folder / name).open("ab") as file:
        file.write(content)
    os.utime(folder / name, (wall, wall))


def test_time_goes_on_only_while_somebody_writes(folder: Path) -> None:
    """A watcher that is gone leaves a recording that stands still: its silence is not the job's."""
    written(folder, "readings-0002.jsonl", line(1.0, 1), CREATED + 1.0)
    follower = Follower(folder)
    follower.read()

    assert follower.live(CREATED + 2.0)
    assert follower.case(CREATED + 2.0).at == 2.0
    assert not follower.live(CREATED + STALE_SECONDS + 2.0)
    assert follower.case(CREATED + STALE_SECONDS + 2.0).at == 1.0


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_clock_that_was_set_ends_no_recording(folder: Path, step: float) -> None:
    """Nor does a machine that slept: its seconds go on from where they were, by a clock that shows another time."""
    written(folder, "readings-0002.jsonl", line(1.0, 1), CREATED + 1.0)
    follower = Follower(folder)
    follower.read()
    written(folder, "readings-0003.jsonl", line(2.0, 2), CREATED + 2.0 + step)
    follower.read()

    assert follower.live(CREATED + 3.0 + step)
    assert follower.case(CREATED + 3.0 + step).at == 3.0
    assert not follower.live(CREATED + 3.0 + step + STALE_SECONDS)


def test_who_comes_after_the_clock_was_set_sees_a_recording_that_goes_on(folder: Path) -> None:
    """Though a file that was full before has been written, by the clock, in the future."""
    written(folder, "readings-0002.jsonl", line(1.0, 1), CREATED + 3600.0)
    written(folder, "readings-0003.jsonl", line(2.0, 2), CREATED)
    follower = Follower(folder)
    follower.read()

    assert follower.live(CREATED + 1.0)


def test_a_job_that_has_ended_is_not_live(folder: Path) -> None:
    """The recording says how."""
    recorder = Recorder(folder, session())
    recorder.event(1.0, "verdict", "stuck", verdict())
    recorder.event(2.0, "outcome", "exit code 0")
    assert recorder.close(PATIENCE_SECONDS) == ""
    follower = Follower(folder)
    follower.read()

    assert follower.ended is not None
    assert follower.ended.text == "exit code 0"
    assert not follower.live(CREATED + 2.5)


def test_what_is_no_session_is_refused(tmp_path: Path) -> None:
    """As by every other command."""
    with pytest.raises(SessionUnreadable):
        Follower(tmp_path)
