"""The container of recorded cases: what is stored is loaded, always to the same bytes, and a session folder has the same content."""

from pathlib import Path

import pytest
from msgspec import structs

from perfwatch.gauntlet.recorded import (
    EXPECTED,
    Expected,
    accept,
    accepted,
    case_file,
    case_text,
    cases,
    expected_of,
    load_case,
    store,
    unpack,
)
from perfwatch.recording.recording import Recording, load
from tests.sessions import record

pytestmark = pytest.mark.live


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """A session with readings, an event and a verdict."""
    return load(record(tmp_path / "session"))


def test_a_stored_case_has_the_readings_and_events_and_no_verdicts(tmp_path: Path, recording: Recording) -> None:
    """What was said about it live does not belong to the evidence."""
    case = tmp_path / "cases" / "killed" / "fires" / "by_a_signal"
    store(case, recording, recording.records, {"drill": "killed", "trimmed": False}, {"node-a": "node-b"})
    loaded = load_case(case)

    assert loaded.records == recording.records
    assert [event.kind for event in loaded.events] == ["outcome"]
    assert loaded.session.machine.name == "node-b"
    assert loaded.session.conditions == {"drill": "killed", "trimmed": False}
    assert load_case(case_file(case)) == loaded
    assert cases(tmp_path / "cases") == [case]


def test_a_case_has_the_same_bytes_whenever_it_is_stored(tmp_path: Path, recording: Recording) -> None:
    """No time and no name in its header; and what holds the same text already is not written again."""
    one, other = (tmp_path / "cases" / "killed" / "fires" / name for name in ("one", "other"))
    for case in (one, other):
        store(case, recording, recording.records, {}, {})
    written = case_file(one).stat().st_mtime_ns
    store(one, recording, recording.records, {}, {})

    assert case_file(one).read_bytes() == case_file(other).read_bytes()
    assert case_file(one).stat().st_mtime_ns == written


def test_an_unpacked_case_is_a_session(tmp_path: Path, recording: Recording) -> None:
    """The commands read it."""
    case = tmp_path / "cases" / "killed" / "fires" / "one"
    store(case, recording, recording.records, {}, {})

    assert load(unpack(case, tmp_path / "unpacked")) == load_case(case)


def test_a_damaged_line_of_a_case_is_an_error(tmp_path: Path, recording: Recording) -> None:
    """It is not skipped as a line of a torn session is: the case would be another one."""
    case = tmp_path / "cases" / "killed" / "fires" / "one"
    store(case, recording, [structs.replace(recording.records[0], at="soon")], {}, {})

    with pytest.raises(ValueError, match="float"):
        load_case(case)


def test_the_verdicts_of_a_cause_stand_in_one_text(tmp_path: Path, recording: Recording) -> None:
    """In order of kind and name; what is empty is left out, and cases that were removed go."""
    folder = tmp_path / "cases" / "killed"
    named = {
        "lookalike/other": Expected(2.0, "inconclusive"),
        'fires/with "quotes"': Expected(3.5, "gone", "killed", "f\\n"),
    }
    for name, expected in named.items():
        store(folder / name, recording, recording.records, {}, {})
        accept(folder / name, expected)

    assert (folder / EXPECTED).read_text() == (
        '[fires."with \\"quotes\\""]\nat = 3.5\nstate = "gone"\ncause = "killed"\nculprit = "f\\\\n"\n'
        '\n[lookalike.other]\nat = 2.0\nstate = "inconclusive"\n'
    )
    assert {name: expected_of(folder / name) for name in named} == named

    case_file(folder / "lookalike" / "other").unlink()
    accept(folder / 'fires/with "quotes"', Expected(3.5, "gone", "killed"))

    assert accepted(folder / "lookalike" / "other") is None
    assert case_text(folder / 'fires/with "quotes"').startswith(b'{"schema":')
