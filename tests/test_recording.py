"""The recording: what is written is what is read, whatever happened to it in between."""

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from perfwatch.errors import SessionUnreadable
from perfwatch.postmortem import diagnose
from perfwatch.recording.recent import load_recent
from perfwatch.recording.recording import Record, Recorder, Recording, load
from perfwatch.recording.segments import Segments
from perfwatch.recording.session_lines import LONGEST_LINE_BYTES
from perfwatch.recording.writer import STALLED_SECONDS, Writer
from perfwatch.recording.writer_process import Files
from perfwatch.report.moment import last_living_moment, last_told
from perfwatch.triage.history import History, key_of
from perfwatch.watching.watch import Watch
from perfwatch_probes.readings import Process, SourceLine, Stack, Traceback
from tests.sessions import PATIENCE_SECONDS, content_of, readings, record, session, uncompress, verdict
from tests.simulated_hour import write

pytestmark = pytest.mark.live


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished session."""
    return record(tmp_path / "s")


def test_what_was_recorded_is_what_is_loaded(folder: Path) -> None:
    """Readings, stacks and events, in order of time."""
    recording = load(folder)

    assert recording.session == session()
    assert [r.at for r in recording.records] == [0.0] * 3 + [1.0] * 3 + [2.0] * 3
    assert [r.reading for r in recording.records[:3]] == readings(0)
    assert [(e.kind, e.at) for e in recording.events] == [("verdict", 2.0), ("outcome", 3.0)]
    assert recording.events[0].verdict == verdict()
    assert recording.end == 3.0


def test_until_is_what_was_known_then(folder: Path) -> None:
    """Nothing later, everything earlier, of readings and of events."""
    then = load(folder).until(1.0)

    assert then.end == 1.0
    assert len(then.records) == 6
    assert then.events == ()


def test_an_empty_recording_ends_where_it_begins() -> None:
    """A watcher that was killed at once."""
    assert Recording(session()).end == 0.0


def test_nobody_else_can_read_it(folder: Path) -> None:
    """The folder is 0700, every file 0600."""
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_torn_last_line_is_left_out_and_counted(folder: Path) -> None:
    """The machine lost power in the middle of a line."""
    whole = load(folder)
    file = uncompress(folder) / "readings-0001.jsonl"
    file.write_bytes(file.read_bytes()[:-20])

    torn = load(folder)

    assert len(torn.records) == len(whole.records) - 1
    assert torn.skipped == 1


def test_a_line_with_a_byte_that_is_no_letter_is_left_out_and_counted(folder: Path) -> None:
    """The disk has turned one bit; the decoder has an error of another kind for what is no UTF-8."""
    whole = load(folder)
    file = uncompress(folder) / "readings-0001.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    place = lines[1].index(b'"type":"') + len(b'"type":"')
    lines[1] = lines[1][:place] + b"\xff" + lines[1][place + 1 :]
    file.write_bytes(b"".join(lines))

    turned = load(folder)

    assert len(turned.records) == len(whole.records) - 1
    assert turned.skipped == 1


def test_every_prefix_can_be_loaded(folder: Path) -> None:
    """Several readers may follow while one writer writes, and they see it at any byte."""
    file = uncompress(folder) / "readings-0001.jsonl"
    content = file.read_bytes()
    for length in range(0, len(content), 7):
        file.write_bytes(content[:length])

        assert len(load(folder).records) >= 3


def test_reading_types_of_a_newer_version_are_kept_and_counted(folder: Path) -> None:
    """A minor version may add probes; the rest of the recording is as good as ever."""
    line = b'{"at":1.5,"wall":1.5,"reading":{"type":"Telepathy","volume":11}}\n'
    (folder / "readings-0002.jsonl").write_bytes(line)

    recording = load(folder)

    assert recording.unknown == (line,)
    assert len(recording.records) == 9


def test_fields_of_a_newer_version_do_no_harm(folder: Path) -> None:
    """In readings, events and the description."""
    uncompress(folder)
    for name in ("readings-0001.jsonl", "events.jsonl", "session.json"):
        lines = (folder / name).read_bytes().splitlines()
        lines[0] = lines[0][:-1] + b',"fresh":{"x":1}}'
        (folder / name).write_bytes(b"\n".join(lines) + b"\n")

    recording = load(folder)

    assert (len(recording.records), len(recording.events), recording.unknown) == (9, 2, ())


def test_what_earlier_versions_read_and_this_one_does_not_is_left_out(folder: Path) -> None:
    """A field goes, the reading stays; a whole kind of reading is kept unread."""
    waits = b'{"type":"Thread","pid":7,"tid":7,"name":"x","state":"S","cpu_seconds":1.0,"wait":%s}'
    futex = waits % b'{"call":"futex","number":202,"kind":"futex","forever":true,"address":94103}'
    source = b'{"type":"SourceLine","file":"/t.py","line":4,"text":"while True:","loop_is_endless":true}'
    mount = b'{"type":"MountActivity","mount":"/data","filesystem":"nfs4","requests":2,"completed":1}'
    with (folder / "readings-0002.jsonl").open("wb") as file:
        file.writelines(b'{"at":1.5,"wall":1.5,"reading":%s}\n' % one for one in (futex, source, mount))

    recording = load(folder)

    assert [type(one.reading).__name__ for one in recording.records if one.at == 1.5][-2:] == ["Thread", "SourceLine"]
    assert len(recording.unknown) == 1


def test_one_plain_file_of_readings_is_a_recording_too(folder: Path, tmp_path: Path) -> None:
    """As the regression tests keep them: trimmed, readable in a diff."""
    (folder / "readings-0001.jsonl").rename(folder / "readings.jsonl")
    (folder / "stacks-0001.jsonl").rename(folder / "stacks.jsonl")

    assert len(load(folder).records) == 9


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"schema":"perfwatch.session/9","novel":true}', "newer perfwatch"),
        (b'{"schema":"perfwatch.session/1"}', "damaged"),
        (b'{"schema":"perfwatch.session/one"}', "damaged"),
        (b"", "damaged"),
        (b"\xff\xfe\x00", "damaged"),
        (b"[" * 100_000, "damaged"),
    ],
)
def test_a_description_that_cannot_be_used_is_said_to_be_so(folder: Path, content: bytes, says: str) -> None:
    """With the advice what to do, never with a traceback."""
    (folder / "session.json").write_bytes(content)

    with pytest.raises(SessionUnreadable, match=says) as caught:
        load(folder)

    assert caught.value.advice


def test_a_folder_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    """Missing, or without a description."""
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(SessionUnreadable, match="is not a perfwatch session"):
            load(path)


def test_planted_fifos_and_links_do_not_hang_or_leak(folder: Path, tmp_path: Path) -> None:
    """A session from somebody else is untrusted input."""
    (folder / "session.json").unlink()
    os.mkfifo(folder / "session.json")

    with pytest.raises(SessionUnreadable):
        load(folder)


def test_a_line_without_end_does_not_fill_the_memory(folder: Path) -> None:
    """It is cut, counted and passed over; what follows is read."""
    with (folder / "readings-0002.jsonl").open("wb") as file:
        file.write(b'{"at":' + b"1" * (2 * LONGEST_LINE_BYTES) + b"\n")
        file.write(msgspec.json.encode(Record(9.0, readings()[0])) + b"\n")  # type: ignore[arg-type]

    recording = load(folder)

    assert recording.skipped == 1
    assert recording.end == 9.0


def test_it_can_be_followed_while_it_is_written(tmp_path: Path) -> None:
    """Before the writer ends, and by several readers."""
    (tmp_path / "s").mkdir(mode=0o700)
    writer = Writer(tmp_path / "s", 2**22)
    recorder = Recorder(tmp_path / "s", session(), writer=writer)
    recorder.append(1.0, readings())
    assert writer.settle(PATIENCE_SECONDS)

    assert len(load(tmp_path / "s").records) == len(load(tmp_path / "s").records) == 3

    recorder.close(PATIENCE_SECONDS)


def test_what_came_late_was_not_known_before(tmp_path: Path) -> None:
    """A record of stacks is told when it is over; until then nobody could judge by it, and the recording ends no sooner."""
    (tmp_path / "s").mkdir(mode=0o700)
    recorder = Recorder(tmp_path / "s", session())
    recorder.append(1.0, readings()[:1], known_at=3.0)
    recorder.append(2.0, readings()[1:2])
    recorder.close(PATIENCE_SECONDS)
    recording = load(tmp_path / "s")

    assert [record.at for record in recording.until(2.0).records] == [2.0]
    assert [record.at for record in recording.until(3.0).records] == [1.0, 2.0]
    assert History(recording.records, 2.0).entities(Process) == []
    assert History(recording.records, 3.0).entities(Process) == [(700,)]
    assert recording.end == 3.0


def test_secrets_are_in_no_file_of_a_session(tmp_path: Path) -> None:
    """Neither from command lines nor from environments, tracebacks, stack texts, events or the description."""
    (tmp_path / "s").mkdir(mode=0o700)
    recorder = Recorder(tmp_path / "s", session(command=("python", "--api-key", "SECRET1abc")))
    recorder.append(
        0.0,
        [
            Process(
                pid=1, start_ticks=1, parent_pid=0, name="p", command=("x", "--token=SECRET2abc"),
                environment={"MASTER_ADDR": "http://u:SECRET3abc@h"},
            ),
            Traceback(pid=1, exception="E", text='raise E("password=SECRET4abc")'),
            Stack(pid=1, tid=1, texts=("token: SECRET5abc",)),
        ],
    )  # fmt: skip
    recorder.event(0.0, "verdict", "secret=SECRET6abc", verdict(summary="api_key=SECRET7abc"))
    recorder.close(PATIENCE_SECONDS)

    stored = b"".join(map(content_of, (tmp_path / "s").iterdir()))

    assert stored.count(b"[redacted]") == 7
    assert b"SECRET" not in stored


def test_secrets_are_not_in_what_is_judged_live_either() -> None:
    """A line of the program that a verdict quotes is as free of them as the disk."""
    watch = Watch([os.getpid()], session(root_pids=(os.getpid(),)))
    try:
        watch.take([SourceLine(file="train.py", line=3, text='log(api_key="SECRET1abc")', calls=("log",))])
        [seen] = watch.case().history.every(SourceLine)
    finally:
        watch.close()

    assert seen.reading == SourceLine(file="train.py", line=3, text='log(api_key="[redacted]")', calls=("log",))


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def __call__(self) -> float:
        """The time that it shows."""
        return self.now


def test_a_disk_that_hangs_is_stated_while_the_watcher_goes_on(tmp_path: Path) -> None:
    """A stopped writer is as silent as one on a dead disk: the loss is said when asked, and once more at the end."""
    (tmp_path / "s").mkdir(mode=0o700)
    clock = Clock()
    writer = Writer(tmp_path / "s", 2**22, clock=clock)
    recorder = Recorder(tmp_path / "s", session(), writer=writer)
    os.kill(writer.pid, signal.SIGSTOP)
    recorder.append(1.0, readings())
    quiet = recorder.loss
    clock.now = STALLED_SECONDS + 1
    recorder.append(7.0, readings())

    assert quiet == ""
    assert recorder.loss == f"the recording is not being stored: the disk has not answered for 6.0 s ({tmp_path / 's'})"
    # 2 x 3 readings and the event that says so
    assert "7 lines of the recording were lost: the disk did not answer" in recorder.close(0.0)


def nearly_full_disk(folder: Path, budget: int, say: Callable[[str], None]) -> Files:
    """A disk with room for 2,000 bytes in each file: for one event, not for many readings."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    return Segments(folder, budget, say)


def test_a_loss_is_an_event_of_the_recording(tmp_path: Path) -> None:
    """Whoever reads it later must know that something is missing, and not be drowned in complaints."""
    (tmp_path / "s").mkdir(mode=0o700)
    writer = Writer(tmp_path / "s", 2**22, nearly_full_disk)
    recorder = Recorder(tmp_path / "s", session(), writer=writer)
    for second in range(100):
        recorder.append(float(second), readings(second))
        assert writer.settle(PATIENCE_SECONDS)
    said = recorder.close(PATIENCE_SECONDS)

    shed = [event.text for event in load(tmp_path / "s").events if event.kind == "shed"]
    assert 1 <= len(shed) <= 9  # at the first loss and at every doubling
    assert "lines of the recording were lost: File too large" in shed[0]
    assert "lines of the recording were lost: File too large" in said


def test_another_file_in_the_place_of_a_segment_costs_no_recording(tmp_path: Path) -> None:
    """It is not followed, not overwritten, and the next number is taken."""
    (tmp_path / "s").mkdir(mode=0o700)
    (tmp_path / "s" / "readings-0001.jsonl").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("untouched")
    recorder = Recorder(tmp_path / "s", session())
    for second in range(3):
        recorder.append(float(second), readings(second))
    recorder.close(PATIENCE_SECONDS)

    assert (tmp_path / "precious").read_text() == "untouched"
    assert load(tmp_path / "s").end == 2.0


def test_the_description_can_be_completed(tmp_path: Path) -> None:
    """World size and versions are known only after a while."""
    (tmp_path / "s").mkdir(mode=0o700)
    recorder = Recorder(tmp_path / "s", session())
    recorder.describe(session(conditions={"world_size": 2}))
    recorder.close(PATIENCE_SECONDS)

    assert load(tmp_path / "s").session.conditions == {"world_size": 2}


def test_of_a_long_session_the_part_that_a_watch_remembers_gives_the_same_verdict(tmp_path: Path) -> None:
    """At the moment of the last verdict and at the end, with the same cost of looking; most records are left out."""
    folder = write(tmp_path / "long", 1500.0)
    whole = load(folder)
    moment = last_living_moment(whole)
    recent = load_recent(folder, key_of, 600.0, last_told, lambda done, total: None)
    for at in (moment, whole.end):
        told = diagnose(recent.until(at), at)
        assert told == diagnose(whole.until(at), at)
    assert recent.end == whole.end
    assert len(recent.records) < 0.6 * len(whole.records)
