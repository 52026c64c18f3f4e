"""A recording says whatever whoever wrote it wants: it is judged and reported within a bound, or refused as damaged."""

import json
import resource
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfwatch.errors import PerfwatchError, SessionUnreadable
from perfwatch.recording.recording import load
from perfwatch.recording.stack_tables import StackNumbers
from perfwatch.report.formats import named
from perfwatch.report.story import tell_whole
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes import bounds
from tests.recorded import RECORDINGS, session_of

CASES = (
    "stalled_collective/fires/lock_of_one_who_waits",
    "crashed/lookalike/killed",
    "stuck_worker/fires/expression_gone_wild",
    "endless_python/fires/endless_python-sleep",
)
EXTREMES: tuple[Any, ...] = (
    *(0, -1, 2**20, 2**31, 2**63, 2**64, -(2**64), 10**30, 1e-300, 1e18, 1e300, -1e300),
    *("", "x" * 100_000, "9" * 5000, "1000000000", "-5", "\x1b]0;a\x07", "%s{0}"),
    *(None, True, [], {}),
)
SECONDS, MEMORY_BYTES = 20.0, 2**30
FORMS = ("md", "text", "json", "speedscope")


def _places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*before, key)
        yield from _places(child, (*before, key))


def _put(value: Any, place: tuple[Any, ...], new: Any) -> None:
    for key in place[:-1]:
        value = value[key]
    value[place[-1]] = new


def _lines(folder: Path) -> dict[str, list[Any]]:
    files = {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("*.jsonl")}
    return files | {"session.json": [json.loads((folder / "session.json").read_text())]}


def _number_stacks(file: Path) -> None:
    """Each stack once, and then by its number, as a session has them."""
    numbers = StackNumbers()
    file.write_bytes(b"".join(map(numbers.stored, file.read_bytes().splitlines(keepends=True))))


def _write(folder: Path, files: dict[str, list[Any]]) -> None:
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A folder that takes a session."""
    return tmp_path / "session"


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_recording_with_extremes_in_it_is_reported_or_refused(session: Path, data: st.DataObject) -> None:
    """Numbers, texts and lists are replaced in one line or in all lines alike: no other error, no endless work."""
    shutil.rmtree(session, ignore_errors=True)
    session_of(RECORDINGS / data.draw(st.sampled_from(CASES)), session)
    if data.draw(st.booleans()):
        _number_stacks(session / "readings.jsonl")
    files = _lines(session)
    for _ in range(data.draw(st.integers(1, 3))):
        lines = files[data.draw(st.sampled_from(sorted(name for name in files if files[name])))]
        line = data.draw(st.sampled_from(lines))
        place, new = data.draw(st.sampled_from(list(_places(line)) or [("at",)])), data.draw(st.sampled_from(EXTREMES))
        for one in lines if data.draw(st.booleans()) else [line]:
            if place in set(_places(one)):
                _put(one, place, new)
    _write(session, files)
    began = time.process_time()

    try:
        recording = load(session)
        diagnose(recording, recording.end)
        story = tell_whole(session, recording)
        for name in FORMS:
            form = named(name)
            assert form is not None
            form.render(story)
    except PerfwatchError:
        pass

    assert time.process_time() - began < SECONDS


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (round(SECONDS), round(SECONDS)))


def _typed(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        (sys.executable, "-m", "perfwatch", *words), capture_output=True, text=True, timeout=120, preexec_fn=_limited
    )


@pytest.mark.live
@pytest.mark.parametrize("command", ["replay", "report"])
@pytest.mark.parametrize("parents", [(50_000,), (50_001, 50_000)], ids=["own", "each_other"])
def test_a_cycle_of_parents_ends_every_walk(session: Path, command: str, parents: tuple[int, ...]) -> None:
    """A process that is its own parent, and two that are each other's, with equal start times."""
    session_of(RECORDINGS / "crashed/lookalike/killed", session)
    files = _lines(session)
    first = files["readings.jsonl"][0]
    for pid, parent in zip((50_000, 50_001), parents, strict=False):
        shell = {
            "type": "Process",
            "pid": pid,
            "start_ticks": 349722,
            "parent_pid": parent,
            "name": "sh",
            "command": [],
        }
        files["readings.jsonl"].insert(0, first | {"reading": shell})
    _write(session, files)

    done = _typed(command, str(session), *(["--format", "md"] if command == "report" else []))

    assert done.returncode in (0, 40, 41, 50), done.stderr


@pytest.mark.live
@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("session.json", ("created",), 1e300),
        ("session.json", ("created",), -1e18),
        ("readings.jsonl", ("at",), 1e308),
        ("events.jsonl", ("at",), 1e308),
    ],
)
def test_times_that_cannot_be_are_damage(session: Path, name: str, place: tuple[str], value: float) -> None:
    """A session is refused, a line is left out; neither is an internal error."""
    session_of(RECORDINGS / "endless_python/fires/endless_python-sleep", session)
    files = _lines(session)
    for line in files[name]:
        _put(line, place, value)
    _write(session, files)

    done = _typed("replay", str(session))

    assert "internal error" not in done.stderr
    assert name != "session.json" or "damaged" in done.stderr


def test_deep_nesting_in_an_event_is_damage(session: Path) -> None:
    """It would end where something walks through it later."""
    session_of(RECORDINGS / "crashed/lookalike/killed", session)
    deep = '{"a":' * 500 + "1" + "}" * 500
    event = f'{{"at":1.0,"wall":1.0,"kind":"note","text":"","facts":{{"deep":{deep}}}}}\n'
    (session / "events.jsonl").write_text(event)

    recording = load(session)

    assert recording.events == ()
    assert recording.skipped == 1


def _gzip(*parts: bytes) -> bytes:
    packer = zlib.compressobj(1, wbits=31)
    return b"".join([*map(packer.compress, parts), packer.flush()])


def test_every_prefix_of_a_compressed_file_can_be_loaded(session: Path) -> None:
    """A copy that was cut short: the lines before the cut are there, and what is missing counts as one damaged line."""
    session_of(RECORDINGS / "stuck_worker/fires/expression_gone_wild", session)
    whole = load(session).records
    content = _gzip((session / "readings.jsonl").read_bytes())
    found = [0]
    for length in (*range(2, 30), *range(30, len(content), len(content) // 40)):
        (session / "readings.jsonl").write_bytes(content[:length])
        recording = load(session)

        assert (recording.skipped, recording.unknown) == (1, ())
        assert len(recording.records) >= found[-1]
        assert all(map(whole.__contains__, recording.records[:: len(recording.records) // 20 + 1]))
        found.append(len(recording.records))
    (session / "readings.jsonl").write_bytes(content)
    assert load(session).records == whole
    assert len(set(found)) > 5


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_compressed_file_with_turned_bits_is_damaged(session: Path, data: st.DataObject) -> None:
    """Whatever they make of it, that is counted, and nothing is raised."""
    shutil.rmtree(session, ignore_errors=True)
    session_of(RECORDINGS / "crashed/lookalike/killed", session)
    content = bytearray(_gzip((session / "readings.jsonl").read_bytes()))
    place = data.draw(st.integers(10, len(content) - 1))  # behind the header, whose flags and time mean nothing
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    (session / "readings.jsonl").write_bytes(content)

    recording = load(session)

    assert recording.skipped + len(recording.unknown) >= 1


def test_what_follows_a_compressed_file_is_damage(session: Path) -> None:
    """A line, or another such file: no writer makes either."""
    session_of(RECORDINGS / "crashed/lookalike/killed", session)
    lines = (session / "readings.jsonl").read_bytes()
    count = len(load(session).records)
    for more in (lines, _gzip(lines), b"\0"):
        (session / "readings.jsonl").write_bytes(_gzip(lines) + more)
        recording = load(session)

        assert len(recording.records) == count
        assert recording.skipped == 1


EMPTY = b"\x1f\x8b\x08\0\0\0\0\0\0\3" + b"\0\0\0\xff\xff" * 2**22  # blocks with nothing in them
DAMAGED = {
    "bomb_in_a_bomb": _gzip(_gzip(*[bytes(2**24)] * 4)) * 2000,
    "empty_blocks": EMPTY,
    "empty_members": _gzip() * 2**20,
    "endless_name": b"\x1f\x8b\x08\x08\0\0\0\0\0\3" + b"x" * 2**24,
}


@pytest.mark.parametrize("name", sorted(DAMAGED))
def test_a_compressed_file_that_no_writer_makes_takes_no_time(session: Path, name: str) -> None:
    """Megabytes of headers, of blocks or of files that hold nothing: read at the speed of zlib, and damaged."""
    session_of(RECORDINGS / "crashed/lookalike/killed", session)
    whole = load(session).records
    (session / "readings-0002.jsonl").write_bytes(DAMAGED[name])
    began = time.process_time()

    recording = load(session)

    assert time.process_time() - began < 5.0
    assert recording.records == whole
    assert recording.skipped in (1, 2)  # the bomb is a damaged line, and what follows it damage


@pytest.mark.live
@pytest.mark.parametrize("command", ["replay", "bundle", "top"])
def test_a_file_that_expands_without_end_is_given_up(session: Path, command: str) -> None:
    """A megabyte that stands for 1.2 GiB is refused, or passed over, in a gibibyte of memory and 20 s of CPU."""
    session_of(RECORDINGS / "crashed/lookalike/killed", session)
    (session / "readings-0002.jsonl").write_bytes(_gzip(*[bytes(2**22)] * 300))
    options = {"bundle": ("-o", str(session / "out.tar.gz")), "top": ("--once",)}

    done = _typed(command, str(session), *options.get(command, ()))

    assert done.returncode in ((0, 2) if command == "top" else (2,)), done.stderr
    assert "internal error" not in done.stderr
    assert done.returncode == 0 or "which no session has" in done.stderr
    assert not (session / "out.tar.gz").exists()


def test_the_bytes_of_a_compressed_file_count_too(session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may expand to nothing."""
    session_of(RECORDINGS / "crashed/lookalike/killed", session)
    (session / "readings-0002.jsonl").write_bytes(EMPTY)
    monkeypatch.setattr(bounds, "SESSION_BYTES", 2**23)

    with pytest.raises(SessionUnreadable, match="8 MiB, which no session has"):
        load(session)
