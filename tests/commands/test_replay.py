"""``perfwatch replay``: which moment is judged, and what is said about it."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from perfwatch.errors import EXIT_CODES, UsageError
from perfwatch.recording.recording import Event, Record, Recording
from perfwatch.report.exits import exit_code
from perfwatch.report.moment import last_living_moment, parse_moment, told_first
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import ProcessEnded
from tests.command_line import perfwatch
from tests.recorded import RECORDINGS, session_of
from tests.sessions import readings, record, session, verdict

CRASHED = RECORDINGS / "crashed" / "fires" / "awaited_trial"


def replay(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command."""
    return perfwatch("replay", *arguments)


def recording(*events: Event, seconds: int = 10) -> Recording:
    """So many seconds of readings and these events."""
    records = tuple(Record(float(s), reading) for s in range(seconds) for reading in readings(s))  # type: ignore[arg-type]
    return Recording(session(), records, events)


def event(at: float, kind: str, state: str = "hung") -> Event:
    """An event, with a verdict where its kind has one."""
    return Event(at, kind, "text", verdict(state=state) if kind == "verdict" else None)


def test_the_last_verdict_on_the_living_job_counts() -> None:
    """Not the last one of all: that says only that the job is gone."""
    events = [event(3, "verdict"), event(5, "verdict"), event(9, "outcome"), event(9, "verdict", "gone")]

    assert last_living_moment(recording(*events)) == 5


def test_a_retracted_verdict_does_not_count() -> None:
    """The job moved again: judge it as it was in the end."""
    assert last_living_moment(recording(event(3, "verdict"), event(5, "retraction"))) == 9
    assert last_living_moment(recording(event(3, "verdict"), event(5, "retraction"), event(7, "outcome"))) == 6


def test_a_job_without_a_verdict_is_judged_just_before_its_end() -> None:
    """A run that was healthy until it was killed."""
    assert last_living_moment(recording(event(8, "outcome"))) == 7


def test_the_look_that_found_the_job_gone_is_not_a_living_moment() -> None:
    """The end of the root process is read before the outcome is written down."""
    dead = Record(9.5, ProcessEnded(pid=700, start_ticks=1))
    whole = recording(event(9.6, "outcome"))

    assert last_living_moment(replace(whole, records=(*whole.records, dead))) == 9


@dataclass(frozen=True)
class Told:
    """What was made of one moment."""

    at: float
    verdict: Verdict


@pytest.mark.parametrize(
    ("lived", "ended", "cause", "at", "beside"),
    [
        ("healthy", "gone", "crashed", 8, "healthy"), ("inconclusive", "gone", "killed", 8, "inconclusive"),
        ("gone", "gone", "killed", 8, None), ("hung", "gone", "killed", 3, None), ("slow", "gone", "crashed", 8, "slow"),
        ("inconclusive", "gone", "finished", 8, None), ("healthy", "gone", "finished", 3, None), ("healthy", "inconclusive", None, 3, None),
    ],
)  # fmt: skip
def test_the_end_comes_first_where_nothing_before_explains_it(
    lived: str, ended: str, cause: str | None, at: float, beside: str | None
) -> None:
    """A crash of a run that was well, the good end of one too short to be judged; what hung says why it was ended."""
    whole = recording(event(3, "verdict"), event(8, "outcome"), seconds=8)
    first, told_too = told_first(
        whole, lambda at: Told(at, verdict(state=lived) if at < 8 else verdict(state=ended, cause=cause))
    )

    assert first.at == at
    assert (told_too.state if told_too else None) == beside


def test_a_job_that_goes_on_has_no_end_to_tell() -> None:
    """It is judged once: a long recording is not read through twice."""
    asked: list[float] = []
    told_first(recording(event(3, "verdict")), lambda at: asked.append(at) or Told(at, verdict(state="healthy")))  # type: ignore[func-returns-value]

    assert asked == [3]


@pytest.mark.live
def test_a_crash_is_told_as_one(tmp_path: Path) -> None:
    """With its exit code, and what was said before in a line beside it; --at says what was known."""
    crashed = str(session_of(CRASHED, tmp_path))
    ended, before = replay(crashed), replay(crashed, "--at", "1", "--json")

    assert ended.returncode == EXIT_CODES["crashed"]
    assert ended.stdout.splitlines()[3].startswith("GONE  crashed")
    assert "last verdict before it ended (after" in ended.stdout
    assert json.loads(replay(crashed, "--json").stdout)["cause"] == "crashed"
    assert json.loads(before.stdout)["state"] != "gone"


@pytest.mark.live
@pytest.mark.parametrize("arguments", [("replay", "--json"), ("bundle", "-o", "bundle.tar.gz")], ids=" ".join)
def test_the_command_is_a_program(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """It prints what it prints here, with the same exit code."""
    words = (arguments[0], str(record(tmp_path / "s")), *arguments[1:])
    done = subprocess.run(
        [sys.executable, "-m", "perfwatch", *words], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    (tmp_path / "bundle.tar.gz").unlink(missing_ok=True)
    here = perfwatch(*words, cwd=tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (here.returncode, here.stdout, here.stderr)


@pytest.mark.parametrize("text", ["4.5", "2026-11-20T11:51:28.5Z", "2026-11-20T12:51:28.5+01:00"])
def test_a_moment_is_seconds_or_a_date(text: str) -> None:
    """Both forms that perfwatch prints itself, in any time zone."""
    assert parse_moment(text, recording()) == pytest.approx(4.5)


@pytest.mark.parametrize(("text", "seconds"), [("2026-11-20T11:51:24Z", 0.5), ("2026-11-20T11:51:28Z", 4.499)])
def test_a_moment_as_it_is_printed_holds_what_was_told_in_that_second(text: str, seconds: float) -> None:
    """Of a session that began in the midst of a second, too: its first second is no moment outside of it."""
    whole = recording()
    late = replace(whole, session=msgspec.structs.replace(whole.session, created=whole.session.created + 0.5))

    assert parse_moment(text, late) == pytest.approx(seconds, abs=0.01)


@pytest.mark.parametrize("text", ["yesterday", "-1", "99", "2027-01-01T00:00:00Z", "nan"])
def test_a_moment_outside_the_recording_is_refused(text: str) -> None:
    """With the span that it covers, or the forms that are understood."""
    with pytest.raises(UsageError) as caught:
        parse_moment(text, recording())

    assert "0 to 9.0 s" in caught.value.advice or "--at 120" in caught.value.advice


@pytest.mark.parametrize(
    ("state", "cause", "code"),
    [
        ("healthy", "balanced", 0), ("busy", "compiling", 10), ("slow", "serial_loading", 20), ("hung", "stopped", 30),
        ("gone", "finished", 40), ("gone", "crashed", 41), ("gone", "out_of_memory", 41), ("inconclusive", None, 50),
    ],
)  # fmt: skip
def test_the_exit_code_tells_the_state(state: str, cause: str | None, code: int) -> None:
    """As the README has them."""
    assert exit_code(verdict(state=state, cause=cause)) == code


@pytest.mark.live
def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    """With the exit code of its state."""
    result = replay(str(record(tmp_path / "s")), "--json")

    shown = json.loads(result.stdout)
    assert shown["schema"] == "perfwatch.verdict/2"
    assert shown["at"] == "2026-11-20T11:51:26Z"
    assert result.stdout.count("\n") == 1
    assert result.returncode == EXIT_CODES[shown["state"]]
    assert result.stderr == ""


@pytest.mark.live
def test_the_same_recording_gives_the_same_verdict(tmp_path: Path) -> None:
    """On another machine and a year later: here twice, and from a copy of the folder under another name."""
    folder = record(tmp_path / "s")
    first = replay(str(folder), "--json").stdout
    folder.rename(tmp_path / "elsewhere")

    assert replay(str(tmp_path / "elsewhere"), "--json").stdout == first


@pytest.mark.live
def test_it_says_where_the_verdict_comes_from_and_how_the_job_ended(tmp_path: Path) -> None:
    """And what was said then, where today's rules say something else."""
    shown = replay(str(record(tmp_path / "s"))).stdout

    assert "run on node-a: python train.py" in shown
    assert "judged at 2.0 s of 3.0 s" in shown
    assert "perfwatch 0.1.0 said then: hung stuck_worker" in shown
    assert "outcome after 3.0 s: killed by signal 15" in shown


@pytest.mark.live
def test_a_bundle_can_be_replayed(tmp_path: Path) -> None:
    """Whoever got the archive types one command."""
    record(tmp_path / "s")
    made = perfwatch("bundle", str(tmp_path / "s"), cwd=tmp_path)

    assert made.stdout == "s.tar.gz\n"
    assert (tmp_path / "s.tar.gz").stat().st_mode & 0o777 == 0o600
    assert replay(str(tmp_path / "s.tar.gz"), "--json").stdout == replay(str(tmp_path / "s"), "--json").stdout


@pytest.mark.live
def test_a_bundle_overwrites_nothing(tmp_path: Path) -> None:
    """The file that is there may be the only copy of another incident."""
    record(tmp_path / "s")
    (tmp_path / "b.tar.gz").write_text("precious")
    result = perfwatch("bundle", str(tmp_path / "s"), "-o", str(tmp_path / "b.tar.gz"))

    assert result.returncode == 2
    assert "exists already" in result.stderr
    assert (tmp_path / "b.tar.gz").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz", "s"]
