"""A frame and a stack are written once per file; what is read is what was recorded, whatever the files went through."""

import io
import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfwatch.errors import SessionUnreadable
from perfwatch.recording import archive
from perfwatch.recording.recording import Record, Recorder, Recording, load
from perfwatch.recording.segments import STACKS, Segments
from perfwatch.recording.stack_tables import StackNumbers, whole_lines
from perfwatch.recording.thinning import THINNED, kept
from perfwatch.top.follow import Follower
from perfwatch_probes import bounds
from perfwatch_probes.readings import Frame, Stack
from tests.sessions import CREATED, PATIENCE_SECONDS, content_of, session, uncompress

OLD_SESSION = {
    "session.json": '{"schema":"perfwatch.session/1","version":"0.1.0","created":1795175484.0,"mode":"run",'
    '"machine":{"name":"node-a","kernel":"6.1","architecture":"x86_64","cpus":8,"memory_bytes":17179869184,"boot_id":""},'
    '"command":["python","train.py"],"root_pids":[700],"conditions":{},"probes":{}}',
    "readings-0001.jsonl": '{"at":0.0,"wall":1795175484.0,"reading":{"type":"Thread","pid":700,"tid":700,"name":"python",'
    '"state":"S","cpu_seconds":0.0},"known_at":0.0}\n',
    "stacks-0001.jsonl": "".join(
        f'{{"at":{at},"wall":{CREATED + at},"reading":{{"type":"Stack","pid":700,"tid":700,"frames":'
        '[["read","/app/train.py",9],["main","/app/train.py",20]]},"known_at":0.0}\n'
        for at in (0.0, 1.0)
    ),
    "events.jsonl": "",
}

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
FRAMES = st.builds(Frame, TEXTS, TEXTS, st.integers(0, 2**31))


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    """Stacks of a few frames, in many combinations."""
    frames = draw(st.lists(FRAMES, min_size=1, max_size=5))
    chosen = draw(st.lists(st.lists(st.sampled_from(frames), max_size=6), max_size=20))
    return [record(float(at), tuple(one), tid=at % 3) for at, one in enumerate(chosen)]


def record(at: float, frames: tuple[Frame, ...], tid: int = 700, thread: str = "") -> Record:
    """One stack."""
    return Record(at, Stack(pid=700, tid=tid, thread=thread, frames=frames))


def line(one: Record) -> bytes:
    """As the watcher hands it to the writer."""
    return msgspec.json.encode(one) + b"\n"


def session_in(folder: Path) -> Path:
    """A session without a line."""
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "session.json").write_bytes(msgspec.json.encode(session()))
    return folder


def stored(folder: Path, entries: list[Record]) -> Path:
    """A session of these stacks in one file, as the writer process keeps it."""
    session_in(folder)
    segments = Segments(folder, 2**26, lambda text: None)
    for one in entries:
        segments.append(STACKS, line(one))
    segments.close()
    return folder


STACK = tuple(Frame(f"layer_{depth}", "/home/user/project/network.py", depth) for depth in range(20))
OTHER = (Frame("read", "/home/user/project/data.py", 7), *STACK[1:])


@settings(max_examples=60)
@given(entries=records())
def test_what_was_recorded_is_what_is_loaded(entries: list[Record]) -> None:
    """Any stacks in any order, and once more after the lines were made whole and stored again."""
    with tempfile.TemporaryDirectory() as place:
        folder = stored(Path(place) / "s", entries)
        assert list(load(folder).records) == entries

        if entries:
            file = folder / "stacks-0001.jsonl"
            again = StackNumbers()
            file.write_bytes(b"".join(map(again.stored, whole_lines(content_of(file).splitlines(keepends=True)))))
            assert list(load(folder).records) == entries


def test_a_frame_and_a_stack_are_written_once(tmp_path: Path) -> None:
    """However often they were seen."""
    folder = stored(tmp_path / "s", [record(float(at), OTHER if at % 2 else STACK) for at in range(100)])
    content = content_of(folder / "stacks-0001.jsonl")

    assert content.count(b"/home/user/project/network.py") == 20
    assert content.count(b"/home/user/project/data.py") == 1
    assert content.count(b'"frames"') == 2


def test_equal_stacks_are_one_object_over_all_files(tmp_path: Path) -> None:
    """And equal frames in different stacks; also in a session of the first format."""
    folder = stored(tmp_path / "s", [record(0.0, STACK), record(1.0, OTHER)])
    stored(folder, [record(2.0, STACK)])
    (folder / "stacks-0003.jsonl").write_bytes(line(record(3.0, STACK)))

    first, other, second, third = (one.reading for one in load(folder).records if isinstance(one.reading, Stack))

    assert first.frames is second.frames
    assert first.frames is third.frames
    assert other.frames[1] is first.frames[1]


def test_every_prefix_of_a_file_can_be_loaded(tmp_path: Path) -> None:
    """A crash tears the last line, be it a definition or a reading: what stands before it is whole."""
    folder = stored(tmp_path / "s", [record(0.0, STACK[:2]), record(1.0, OTHER[:3]), record(2.0, STACK[:2])])
    file = uncompress(folder) / "stacks-0001.jsonl"
    content, whole = file.read_bytes(), load(folder).records
    for length in range(0, len(content), 5):
        file.write_bytes(content[:length])
        recording = load(folder)

        assert recording.records == whole[: len(recording.records)]
        assert len(recording.records) >= content[:length].count(b'"at"') - 1
        assert recording.skipped <= 1


def damaged(folder: Path, number: int) -> Recording:
    """The session after line ``number`` of its stacks has become rubbish."""
    file = uncompress(folder) / "stacks-0001.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    lines[number] = lines[number][:-9] + b"\n"
    file.write_bytes(b"".join(lines))
    return load(folder)


def test_a_damaged_reading_costs_itself_alone(tmp_path: Path) -> None:
    """The definition before it stands in a line of its own."""
    entries = [record(0.0, STACK), record(1.0, STACK), record(2.0, OTHER)]
    recording = damaged(stored(tmp_path / "s", entries), 1)

    assert list(recording.records) == entries[1:]
    assert recording.skipped == 1


def test_a_damaged_definition_costs_the_readings_that_name_it(tmp_path: Path) -> None:
    """They are counted, not loaded without frames; later stacks that share its frames go with them, others stay."""
    apart = (Frame("main", "/app/train.py", 3),)
    entries = [record(0.0, STACK), record(1.0, STACK), record(2.0, apart)]
    recording = damaged(stored(tmp_path / "s", entries), 0)

    assert list(recording.records) == entries[2:]
    assert recording.skipped == 3


@pytest.mark.parametrize(
    "definition",
    [
        b'{"stack":1,"frames":[7]}',
        b'{"stack":1,"frames":[[1,"f","/t.py",1],-1]}',
        b'{"stack":1,"frames":[[1,"f","/t.py"]]}',
        b'{"stack":1,"frames":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"stack":1,"frames":[' + b",".join([b'[1,"f","/t.py",1]'] * (bounds.MOST_STACK_FRAMES + 1)) + b"]}",
        b'{"stack":1,"frames":[[1,"f","/t.py",123456789012345678901234567890]]}',
        b'{"stack":null}',
    ],
)
def test_a_definition_that_no_writer_makes_is_damage(tmp_path: Path, definition: bytes) -> None:
    """It names a frame that is not there, is nested or longer than any; the reading that names it is left out with it."""
    folder = session_in(tmp_path / "s")
    named = b'{"at":1.0,"wall":1.0,"reading":{"type":"Stack","pid":7,"tid":7},"stack":1}'
    good = b'{"at":2.0,"wall":2.0,"reading":{"type":"Stack","pid":7,"tid":7,"frames":[["f","/t.py",1]]}}'
    (folder / "stacks-0001.jsonl").write_bytes(b"\n".join([definition, named, good, b""]))

    recording = load(folder)

    assert [one.at for one in recording.records] == [2.0]
    assert recording.skipped + len(recording.unknown) == 2
    assert not any(b'"at"' in one for one in recording.unknown)


def test_lines_that_stand_for_more_frames_than_any_session_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few bytes each name a thousand frames: what they stand for is counted, not only what they take."""
    monkeypatch.setattr(bounds, "MOST_NAMED_FRAMES", 20 * len(STACK))
    stored(tmp_path / "fits", [record(float(at), STACK) for at in range(20)])
    stored(tmp_path / "more", [record(float(at), STACK) for at in range(21)])

    assert len(load(tmp_path / "fits").records) == 20
    with pytest.raises(SessionUnreadable, match="frames, which no session has"):
        load(tmp_path / "more")


def test_thinning_leaves_readings_with_their_stacks(tmp_path: Path) -> None:
    """The first of a stack, which defined it, is given up; the last, which named it, has its frames."""
    lines = [line(record(second / 2, (Frame(f"f{second % 7}", "/t.py", 1), *STACK))) for second in range(200)]
    numbers = StackNumbers()
    whole = list(kept(lines, THINNED))

    thinned = list(kept(whole_lines(b"".join(map(numbers.stored, lines)).splitlines(keepends=True)), THINNED))

    fields = [msgspec.json.decode(one, type=Record) for one in (*whole, *thinned)]
    assert fields[: len(whole)] == fields[len(whole) :]
    assert len(whole) == 10


def test_a_session_over_its_budget_is_whole_where_it_is_loaded(tmp_path: Path) -> None:
    """Every segment that was thinned or written anew defines what it names."""
    folder = session_in(tmp_path / "s")
    said: list[str] = []
    segments = Segments(folder, 64 * 1024, said.append)
    made = {}
    for second in range(3000):
        one = record(float(second), (Frame(f"f{second % 11}", f"/app/{second // 50}.py", 1), *STACK), tid=second % 3)
        made[one.at] = one
        segments.append(STACKS, line(one))
    segments.close()

    recording = load(folder)

    assert sum(file.stat().st_size for file in folder.glob("stacks*")) <= 64 * 1024
    assert any("thinned" in text for text in said)
    assert (recording.skipped, recording.unknown) == (0, ())
    assert recording.records[-1].at == 2999.0
    assert all(one == made[one.at] for one in recording.records)


def test_a_writer_after_a_killed_one_knows_when_segments_of_stacks_began(tmp_path: Path) -> None:
    """Their first line is a definition, which has no time: the newest is not taken for the oldest and given up."""
    folder = session_in(tmp_path / "s")
    for at in (1000.0, 2000.0):
        stored(folder, [record(at, STACK)])
    segments = Segments(folder, 2**26, lambda text: None)

    segments.pin(2001.0, 2001.0)

    assert [(one.name, one.first_at, bool(one.pinned)) for one in segments._segments] == [
        ("stacks-0001.jsonl", 1000.0, False),
        ("stacks-0002.jsonl", 2000.0, True),
    ]


def test_a_definition_that_the_disk_refused_is_written_with_the_next_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk costs the readings that it refused, none of those that follow."""
    folder = session_in(tmp_path / "s")
    segments = Segments(folder, 2**26, lambda text: None)
    segments.append(STACKS, line(record(0.0, OTHER)))
    written = os.write

    def refused(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", refused)
        with pytest.raises(OSError, match="No space"):
            segments.append(STACKS, line(record(1.0, STACK)))
    assert os.write is written
    for at in (2.0, 3.0):
        segments.append(STACKS, line(record(at, STACK)))
    segments.close()

    recording = load(folder)

    assert list(recording.records) == [record(0.0, OTHER), record(2.0, STACK), record(3.0, STACK)]
    assert recording.skipped == 0


def test_a_follower_sees_stacks_whole_wherever_the_file_was_cut(tmp_path: Path) -> None:
    """A definition may have come with an earlier look; another segment has numbers of its own."""
    entries = [record(0.0, STACK[:2]), record(1.0, OTHER[:3]), record(2.0, STACK[:2])]
    content = content_of(stored(tmp_path / "s", entries) / "stacks-0001.jsonl")
    for cut in range(0, len(content), 11):
        folder = session_in(tmp_path / f"cut-{cut}")
        (folder / "stacks-0001.jsonl").write_bytes(content[:cut])
        follower = Follower(folder)
        follower.read()
        with (folder / "stacks-0001.jsonl").open("ab") as file:
            file.write(content[cut:])
        stored(folder, [record(3.0, OTHER)])
        follower.read()

        assert [seen.reading.frames for seen in follower.history.every(Stack)] == [
            *(STACK[:2], OTHER[:3], STACK[:2], OTHER)
        ]
        assert follower.skipped == 0


def test_a_follower_remembers_the_stacks_of_the_file_that_grows(tmp_path: Path) -> None:
    """It is the one with the highest number, also where that has a digit more."""
    entries = [record(at, STACK) for at in (0.0, 1.0, 2.0)]
    first, *others = content_of(stored(tmp_path / "s", entries) / "stacks-0001.jsonl").splitlines(keepends=True)
    folder = session_in(tmp_path / "grows")
    (folder / "stacks-9999.jsonl").write_bytes(first + others[0])
    (folder / "stacks-10000.jsonl").write_bytes(first + others[1])
    follower = Follower(folder)
    follower.read()
    with (folder / "stacks-10000.jsonl").open("ab") as file:
        file.write(others[2])
    follower.read()

    assert [seen.reading.frames for seen in follower.history.every(Stack)] == [STACK] * 3
    assert follower.skipped == 0


def test_a_bundle_is_the_session(tmp_path: Path) -> None:
    """Definitions go into it, redacted as everything."""
    frames = (Frame("f", "password=hunter2Zx", 1), *STACK)
    folder = stored(tmp_path / "s", [record(0.0, frames), record(1.0, STACK), record(2.0, frames)])
    output = io.BytesIO()
    archive.bundle(folder, output, lambda done, total: None)
    (tmp_path / "b.tar.gz").write_bytes(output.getvalue())

    with archive.opened(tmp_path / "b.tar.gz") as unpacked:
        content = (unpacked / "stacks-0001.jsonl").read_bytes()
        loaded = [one.reading for one in load(unpacked).records if isinstance(one.reading, Stack)]

    assert b"hunter2Zx" not in content
    assert [one.frames[-20:] for one in loaded] == [STACK] * 3


@pytest.mark.live
def test_texts_of_a_stack_are_redacted_before_they_reach_the_writer(tmp_path: Path) -> None:
    """As in every format."""
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    recorder = Recorder(folder, session())
    recorder.append(0.0, [Stack(pid=7, tid=7, frames=STACK, texts=("password=hunter2Zx",), text_names=("url",))])
    assert recorder.close(PATIENCE_SECONDS) == ""

    assert b"hunter2Zx" not in content_of(folder / "stacks-0001.jsonl")
    (loaded,) = (one.reading for one in load(folder).records)
    assert isinstance(loaded, Stack)
    assert (loaded.frames, len(loaded.texts)) == (STACK, 1)


def test_a_session_of_the_first_format_is_read(tmp_path: Path) -> None:
    """Written by an earlier version, byte for byte."""
    for name, text in OLD_SESSION.items():
        (tmp_path / name).write_text(text)

    recording = load(tmp_path)
    follower = Follower(tmp_path)
    follower.read()

    stacks = [one.reading for one in recording.records if isinstance(one.reading, Stack)]
    frames = (Frame("read", "/app/train.py", 9), Frame("main", "/app/train.py", 20))
    assert [one.frames for one in stacks] == [frames, frames]
    assert stacks[0].frames is stacks[1].frames
    assert (len(recording.records), recording.skipped, recording.unknown) == (3, 0, ())
    assert len(list(follower.history.every(Stack))) == 2


def test_a_session_of_the_second_format_is_read(tmp_path: Path) -> None:
    """Each line has the wall time too, no segment is compressed, and stacks are numbered."""
    old = dict(OLD_SESSION)
    old["session.json"] = old["session.json"].replace("session/1", "session/2")
    old["stacks-0001.jsonl"] = (
        '{"stack":1,"frames":[[1,"read","/app/train.py",9],[2,"main","/app/train.py",20]]}\n'
        '{"at":0.5,"wall":1795175484.5,"reading":{"type":"Stack","pid":700,"tid":700},"stack":1}\n'
    )
    old["events.jsonl"] = '{"at":1.0,"wall":1795175485.0,"kind":"note","text":"said"}\n'
    for name, text in old.items():
        (tmp_path / name).write_text(text)

    recording = load(tmp_path)
    follower = Follower(tmp_path)
    follower.read()

    (stack,) = (one.reading for one in recording.records if isinstance(one.reading, Stack))
    assert stack.frames == (Frame("read", "/app/train.py", 9), Frame("main", "/app/train.py", 20))
    assert (len(recording.records), len(recording.events), recording.skipped, recording.unknown) == (2, 1, 0, ())
    assert len(list(follower.history.every(Stack))) == 1


def test_a_session_says_that_earlier_versions_cannot_read_it(tmp_path: Path) -> None:
    """They compare the number behind the slash with their own, and say that a newer perfwatch wrote it."""
    folder = stored(tmp_path / "s", [])

    assert load(folder).session.schema == "perfwatch.session/3"
