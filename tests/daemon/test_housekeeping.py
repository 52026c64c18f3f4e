"""All recordings of the daemon stay within their budget, and what tells of an incident stays longest."""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfwatch.daemon.housekeeping import Tidied, tidy
from perfwatch.daemon.node import TIDY_SECONDS, Node
from perfwatch.daemon.scanner import Scanner
from perfwatch.daemon.serving import Log
from perfwatch.daemon.ward import Terms
from perfwatch.recording.kept import Limits, keep_within, remove_all, sessions_in
from perfwatch.recording.recording import Recorder
from perfwatch.recording.segments import hold
from perfwatch_probes.deadline import Inline
from tests.machines import FakeMachine
from tests.sessions import PATIENCE_SECONDS, readings, session, verdict

pytestmark = pytest.mark.live

HEALTHY = verdict(state="healthy", cause="balanced")


def made(home: Path, name: str, created: float, *told: object, mode: str = "daemon", size: int = 1_000_000) -> Path:
    """A finished session of about a megabyte."""
    folder = home / name
    folder.mkdir(mode=0o700)
    recorder = Recorder(folder, session(mode=mode, created=created))
    recorder.append(0.0, readings())
    for number, one in enumerate(told):
        recorder.event(float(number), "verdict", "x", one)  # type: ignore[arg-type]
    recorder.close(PATIENCE_SECONDS)
    (folder / "captures").mkdir()
    (folder / "captures" / "trace").write_bytes(bytes(size))
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Five sessions: an old hang, calm ones, a slow one, and one that somebody made by hand."""
    made(tmp_path, "hung", 100.0, HEALTHY, verdict())
    made(tmp_path, "calm-old", 200.0, HEALTHY)
    made(tmp_path, "by-hand", 50.0, HEALTHY, mode="run")
    made(tmp_path, "slow", 300.0, verdict(state="slow", cause="regressed"))
    made(tmp_path, "calm-new", 400.0, verdict(state="gone", cause="finished"))
    (tmp_path / "something-else").mkdir()
    return tmp_path


def left(home: Path) -> set[str]:
    """Names of the folders that are there."""
    return {path.name for path in home.iterdir()}


@pytest.mark.parametrize(
    ("megabytes", "gone"),
    [
        (9.0, set()),
        (3.5, {"calm-old"}),
        (2.5, {"calm-old", "calm-new"}),
        (1.5, {"calm-old", "calm-new", "hung"}),
        (0.0, {"calm-old", "calm-new", "hung", "slow"}),
    ],
)
def test_the_oldest_calm_ones_go_first_and_that_is_said(home: Path, megabytes: float, gone: set[str]) -> None:
    """What somebody made by hand is never touched, nor counted."""
    before = left(home)
    done = tidy(str(home), [], round(megabytes * 1_100_000), least_free_bytes=0)

    assert before - left(home) == gone
    assert len(done.removed) == len(gone)
    assert done.bytes_left <= max(megabytes * 1_100_000, 0)
    assert all("the budget of all sessions is used" in sentence for sentence in done.removed)


def test_what_is_being_written_counts_and_stays(home: Path) -> None:
    """Others give way to it."""
    tidy(str(home), [str(home / "calm-old")], 2_300_000, least_free_bytes=0)

    assert left(home) == {"calm-old", "by-hand", "slow", "something-else"}


def test_a_disk_that_others_fill_is_given_room(home: Path) -> None:
    """Far below the budget, and said for what it is."""
    done = tidy(str(home), [], 2**40, least_free_bytes=2**60)

    assert left(home) == {"by-hand", "something-else"}
    assert all("the disk is nearly full" in sentence for sentence in done.removed)


def test_many_small_ones_are_too_many_too(home: Path) -> None:
    """A folder of ten thousand sessions is no use to anybody."""
    done = tidy(str(home), [], 2**40, most=2, least_free_bytes=0)

    assert left(home) == {"hung", "slow", "by-hand", "something-else"}
    assert [sentence.partition(": ")[2] for sentence in done.removed] == 2 * ["more than 2 sessions are kept"]


def test_one_that_cannot_be_removed_is_said_and_others_go_in_its_stead(home: Path) -> None:
    """It comes first in every round: housekeeping would have ended with it for good."""

    def remove(folder: Path) -> None:
        if folder.name == "calm-old":
            raise PermissionError(1, "Operation not permitted", str(folder))
        shutil.rmtree(folder)

    done = tidy(str(home), [], 2_750_000, least_free_bytes=0, remove=remove)

    assert left(home) == {"calm-old", "slow", "by-hand", "something-else"}
    assert done.stuck == (f"{home}/calm-old cannot be removed: Operation not permitted",)
    assert [sentence.split()[1] for sentence in done.removed] == ["calm-new", "hung"]
    assert 2_000_000 < done.bytes_left <= 2_750_000


class Tidies(Inline):
    """Housekeeping that finds, round after round, one folder that it cannot remove."""

    def call(self, function: Callable[..., Any], *arguments: object, deadline_seconds: float) -> Any:
        """How each round went."""
        return Tidied(5, (), ("calm-old cannot be removed",))


def test_what_cannot_be_removed_is_said_once(tmp_path: Path) -> None:
    """Each minute tries it again, and the log of a node is read by people."""
    times, said = [0.0], list[str]()
    scanner = Scanner(FakeMachine(tmp_path).filesystem, Inline(), lambda: times[-1])
    terms = Terms(tmp_path, 2**30, 60.0, metrics=False, notify=False, act=False)
    node = Node(scanner, terms, 2**30, Tidies(), said.append, clock=lambda: times[-1])
    for _ in range(3):
        node.turn()
        times.append(times[-1] + TIDY_SECONDS)

    assert said == ["calm-old cannot be removed"]


class Beaten:
    """Counts the heartbeats."""

    count = 0

    def beat(self) -> None:
        """One more."""
        self.count += 1

    def news(self) -> list[str]:
        """All arrive."""
        return []


def test_the_heartbeat_stops_where_the_daemon_is_blind(tmp_path: Path) -> None:
    """It lives and turns, and cannot list the processes: the dead-man's switch must find out."""
    machine, times, beaten = FakeMachine(tmp_path), [0.0], Beaten()
    scanner = Scanner(machine.filesystem, Inline(), lambda: times[-1])
    terms = Terms(tmp_path, 2**30, 60.0, metrics=False, notify=False, act=False)
    node = Node(scanner, terms, 2**30, Tidies(), lambda _: None, heartbeat=beaten, clock=lambda: times[-1])  # type: ignore[arg-type]
    node.turn(scan_seconds=1.0)
    seen = beaten.count
    shutil.rmtree(machine.filesystem.proc)
    times.append(2.0)
    node.turn(scan_seconds=1.0)

    assert (seen, beaten.count) == (1, 1)


def test_text_has_the_pid_before_the_sentence() -> None:
    """Further fields are for programs."""
    stream = io.StringIO()
    log = Log(stream)
    log("watching this machine")
    log("adopted, python train.py", "adopted", 42, uid=0, command="python train.py")

    assert stream.getvalue() == "perfwatch: watching this machine\nperfwatch: pid 42: adopted, python train.py\n"


def test_json_is_one_object_for_each_event_without_empty_fields() -> None:
    """Whatever the job chose as its name stays on its line, and cannot steer a terminal."""
    stream = io.StringIO()
    log = Log(stream, as_json=True, clock=lambda: 1.25)
    log("adopted, \x1b[2J\n", "adopted", 42, uid=0, cause=None, session="", command="\x1b[2J\n\u202e")

    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().strip().isprintable()
    assert json.loads(stream.getvalue()) == {
        "schema": "perfwatch.log/1",
        "time": "1970-01-01T00:00:01.250Z",
        "event": "adopted",
        "message": "adopted, ?[2J ",
        "pid": 42,
        "uid": 0,
        "command": "\x1b[2J\n\u202e",
    }


DAY, NOW = 86400.0, 400 * 86400.0


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Sessions that were made by hand: calm ones of three ages, an old incident, one of the daemon, and one that is being written."""
    for name, days, told, mode in (
        ("calm-old", 40, HEALTHY, "attach"),
        ("calm-new", 10, HEALTHY, "run"),
        ("calm-now", 0, HEALTHY, "attach"),
        ("hung-old", 300, verdict(), "attach"),
        ("daemon", 300, HEALTHY, "daemon"),
        ("written", 300, HEALTHY, "attach"),
    ):
        made(tmp_path, name, NOW - days * DAY, told, mode=mode)
    return tmp_path


def gone(home: Path, limits: Limits) -> list[str]:
    """What is removed, in order."""
    held = hold(home / "written")
    done = keep_within(str(home), limits, lambda: NOW)
    os.close(held)
    return [one.name for one in done.removed]


def test_calm_recordings_are_removed_when_they_are_old(recorded: Path) -> None:
    """Not the daemon's, nor one that is written, nor an incident; and no more than once an hour."""
    assert gone(recorded, Limits(days=30, gib=0)) == ["calm-old"]
    assert gone(recorded, Limits(days=1, gib=0)) == []


def test_where_all_together_have_too_much_the_oldest_calm_ones_go_first(recorded: Path) -> None:
    """Then incidents; what was recorded in the last hour stays."""
    assert gone(recorded, Limits(days=0, gib=0.0001)) == ["calm-old", "calm-new", "hung-old"]


def test_without_limits_nothing_is_removed(recorded: Path) -> None:
    """0 is none."""
    assert gone(recorded, Limits(days=0, gib=0)) == []


def test_a_removal_that_was_cut_short_is_completed(recorded: Path) -> None:
    """What is left of a session is no session, and lies where the next round finds it."""
    (recorded / ".removed-x").mkdir()
    (recorded / ".removed-x" / "readings-0001.jsonl").write_text("")
    gone(recorded, Limits())

    assert not (recorded / ".removed-x").exists()
    assert ".removed-x" not in [one.name for one in sessions_in([str(recorded)])]


def test_what_perfwatch_did_not_write_is_never_removed(recorded: Path) -> None:
    """A training that saves into its session, a folder with a session.json in it, and one whose name looks like a removal."""
    (recorded / "calm-old" / "checkpoints").mkdir()
    (recorded / "thesis").mkdir()
    shutil.copy(recorded / "calm-new" / "session.json", recorded / "thesis")
    (recorded / "thesis" / "thesis.tex").write_text("precious")
    (recorded / ".removed-photos").mkdir()
    (recorded / ".removed-photos" / "sea.jpg").write_text("precious")

    assert gone(recorded, Limits(days=1, gib=0.0001)) == ["calm-new", "hung-old"]
    done = remove_all(one for one in sessions_in([str(recorded)]) if one.name in ("calm-old", "thesis"))
    assert done.removed == ()
    assert {reason.split()[2] for _, reason in done.stuck} == {"checkpoints,", "thesis.tex,"}
    assert (recorded / "thesis" / "thesis.tex").exists()
    assert (recorded / ".removed-photos" / "sea.jpg").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_session_of_another_user_is_neither_listed_nor_removed(recorded: Path) -> None:
    """Where every user may write, a folder with a session.json in it proves nothing."""
    sessions = sessions_in([str(recorded)])
    os.chown(recorded / "calm-old", 65534, 65534)

    assert gone(recorded, Limits(days=30, gib=0)) == []
    assert "calm-old" not in [one.name for one in sessions_in([str(recorded)])]
    done = remove_all(one for one in sessions if one.name == "calm-old")
    assert done.stuck == ((str(recorded / "calm-old"), "it belongs to another user"),)


def test_nothing_is_removed_where_another_user_could_exchange_it(recorded: Path) -> None:
    """Between the look and the removal; a dry run says the same."""
    recorded.chmod(0o777)
    for dry_run in (True, False):
        done = remove_all(sessions_in([str(recorded)]), dry_run)
        assert done.removed == ()
        assert any(reason == f"other users can write {recorded}: chmod go-w {recorded}" for _, reason in done.stuck)


def test_a_session_is_listed_by_what_it_is_about(recorded: Path) -> None:
    """A hang, though the job was then killed; newest first."""
    made(recorded, "killed", NOW + 1, verdict(), verdict(state="gone", cause="killed"))
    first, *_ = found = sessions_in([str(recorded)])

    assert (first.name, first.state, first.cause) == ("killed", "hung", verdict().cause)
    assert [one.created for one in found] == sorted((one.created for one in found), reverse=True)
    assert not any(one.written for one in found)
