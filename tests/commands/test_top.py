"""``perfwatch top`` in a real terminal: three sizes, resized, its keys, a recording that grows, hostile names, no colour."""

import contextlib
import fcntl
import io
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import msgspec
import pytest

from perfwatch.recording.recording import CAPTURE_BEGUN, Event, Record
from perfwatch.report.console import console
from perfwatch.top.errands import Errands
from perfwatch.top.follow import Follower
from perfwatch.top.viewing import Viewer
from perfwatch_probes.readings import Steps
from tests import hostile, simulated_hour
from tests.command_line import perfwatch
from tests.end_to_end.conftest import needs_root
from tests.recorded import RECORDINGS, session_of
from tests.terminals import PATIENCE_SECONDS, TMUX, environment, terminal

pytestmark = pytest.mark.live

SECONDS = 90.0
HOME, CLEAR, ALTERNATE_SCREEN = b"\x1b[H", b"\x1b[2J", b"\x1b[?1049h"
KEYS = "? help  s stacks  v verdict  c capture  q quit"
with_tmux = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a simulated job of 8 cards and 64 processes that is stuck."""
    return simulated_hour.write(tmp_path_factory.mktemp("top") / "session", SECONDS)


def expected(folder: Path, columns: int, lines: int) -> list[str]:
    """The screen of this size, as it is rendered without a terminal."""
    return [line.rstrip() for line in shown(folder, columns, lines).splitlines()]


def shown(folder: Path, columns: int, lines: int) -> str:
    """One screen of a session."""
    stream = io.StringIO()
    screen = console(stream)
    screen.width, screen.height = columns, lines
    long_ago = 0.0  # nobody writes it now, however fresh the files of the test are
    viewer = Viewer(Follower(folder), screen, Errands(None, ""), wall=lambda: long_ago)
    screen.print(viewer.once(fitted=True), end="")
    return stream.getvalue()


def once(*arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
    """Into a pipe."""
    command = [sys.executable, "-m", "perfwatch", "top", *arguments]
    everything = {**environment(), **changes}
    return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, env=everything)


def in_process(*arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
    """As into a pipe, without a new process."""
    return perfwatch("top", *arguments, env={**environment(), **changes})


@with_tmux
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (200, 60), (40, 15)])
def test_the_screen_is_filled_and_no_line_runs_over(tmp_path: Path, session: Path, columns: int, lines: int) -> None:
    """What tmux shows is what was rendered for this size: verdict on top, keys at the bottom, all cards and ranks between."""
    with terminal(tmp_path, columns, lines, "top", str(session)) as window:
        seen = window.until(lambda screen: screen[-1].startswith("? help"))

    assert seen == expected(session, columns, lines)
    assert len(seen) == lines
    assert seen[1].startswith("HUNG stalled_collective (conf")
    assert "rank 5 never joined the gradients' reduction: rank 5's DataLoader worker 1053" in " ".join(seen)
    assert seen[-1].endswith("q quit")
    if lines > 15:
        assert [line for line in seen if line.startswith("gpu 7")]
        ranks = re.findall(r"rank (\d) +10\d0 ", "\n".join(seen))
        assert ranks[:3] == ["5", "0", "1"], "who is to blame comes first"


def test_a_wide_screen_cuts_no_evidence(session: Path) -> None:
    """It stands below cards and processes, over the whole width; what a thread waits in is whole too."""
    for columns, lines in ((160, 50), (200, 60)):
        screen = shown(session, columns, lines)

        assert "pid 1053 stays at __getitem__ (train.py:13): " in screen
        assert re.search(r"\d+ of \d+ samples alike over [\d.]+ s\b", screen)
        assert "clock_nanosleep (sleep)" in screen


def test_a_small_screen_gives_the_verdict_a_second_line(session: Path) -> None:
    """What does not fit into 80 columns goes on below, and every card is still there."""
    narrow, wide = expected(session, 80, 24), expected(session, 300, 24)
    told = " ".join(f"{narrow[1]} {narrow[2]}".split()).removesuffix("\N{HORIZONTAL ELLIPSIS}")

    assert wide[1].startswith(told)
    assert len(told) > 80


def test_a_watch_that_has_just_begun_is_given_time_to_say_something(tmp_path: Path) -> None:
    """Into a pipe: the recording is looked at again while it grows, until there is a verdict."""
    case = RECORDINGS / "starved_by_transforms" / "fires" / "starved_by_transforms"
    folder = session_of(case, tmp_path / "session")
    readings = (folder / "readings.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "readings.jsonl").write_bytes(b"".join(readings[:10]))
    waited = [0.0]

    def wait(seconds: float) -> None:
        waited.append(seconds)
        with (folder / "readings.jsonl").open("ab") as file:
            file.writelines(readings[10:] if len(waited) == 3 else [])

    stream = io.StringIO()
    viewer = Viewer(
        Follower(folder),
        console(stream),
        Errands(None, ""),
        clock=lambda: sum(waited),
        wall=lambda: 0.0,
        wait=wait,
    )
    console(stream).print(viewer.once(60.0))

    assert len(waited) >= 3
    assert "SLOW starved_by_transforms" in stream.getvalue()


@with_tmux
def test_a_resized_window_is_drawn_anew(tmp_path: Path, session: Path) -> None:
    """Smaller and larger: nothing of the old size is left."""
    with terminal(tmp_path, 200, 60, "top", str(session)) as window:
        window.until(lambda screen: screen[-1].startswith(KEYS))
        window.resize(80, 24)
        window.until(lambda screen: screen == expected(session, 80, 24))
        window.resize(130, 50)
        window.until(lambda screen: screen == expected(session, 130, 50))


@with_tmux
def test_help_is_a_key_and_what_is_longer_than_the_screen_scrolls(tmp_path: Path, session: Path) -> None:
    """Processes, stacks and verdict: by arrows, which a mouse wheel sends too, by pages, and to the end; never beyond it."""
    with terminal(tmp_path, 80, 24, "top", str(session)) as window:
        window.until(lambda screen: any("more below" in line for line in screen))
        window.keys("Down", "Down")
        window.until(lambda screen: any(line.startswith("2 more above") for line in screen))
        window.keys("G", "G", "Down")
        seen = window.until(lambda screen: any(line.endswith(" more above") for line in screen))
        assert [line for line in seen if line.startswith("  7 workers   1071")]
        window.keys("Up")
        window.until(lambda screen: any(line.endswith("1 more below") for line in screen))
        window.keys("?")
        window.until(lambda screen: any(line.startswith("Tab ") for line in screen))
        window.keys("h", "v", "PageDown")
        window.until(lambda screen: any(line.startswith("next") for line in screen))


@with_tmux
def test_its_keys_show_stacks_and_verdict_and_leave_the_terminal_as_it_was(tmp_path: Path, session: Path) -> None:
    """s, v, b, c, q; nobody watches this session any more, so a capture is refused with what to do."""
    before = {path.name: path.stat().st_mtime_ns for path in session.iterdir()}
    with terminal(tmp_path, 100, 30, "top", str(session)) as window:
        window.until(lambda screen: screen[-1].startswith(KEYS))
        window.keys("s")
        window.until(lambda screen: any("different stack" in line for line in screen))
        window.keys("v")
        window.until(lambda screen: any(line.startswith("evidence") for line in screen))
        window.keys("b")
        window.until(lambda screen: any(line.startswith("gpu 0") for line in screen))
        window.keys("c")
        window.until(lambda screen: "this job is not watched" in screen[-1])
        window.keys("q")
        window.until(lambda screen: screen[0] == "ended with 0")

    assert {path.name: path.stat().st_mtime_ns for path in session.iterdir()} == before


@with_tmux
def test_a_recording_that_grows_is_followed(tmp_path: Path) -> None:
    """New steps are on the screen as soon as they are written, also when a line comes in two pieces."""
    folder = simulated_hour.write(tmp_path / "session", 70.0)
    reading = Steps(pid=1000, tid=1000, count=987654, interval_seconds=(0.4,))
    line = msgspec.json.encode(Record(70.5, reading)) + b"\n"
    with terminal(tmp_path, 80, 24, "top", str(folder)) as window:
        window.until(lambda screen: screen[-1].startswith(KEYS))
        with (folder / "readings-0002.jsonl").open("ab", buffering=0) as file:
            file.write(line[:30])
            file.write(line[30:])
        window.until(lambda screen: any("987,654" in line for line in screen))


def test_a_capture_that_somebody_else_has_begun_is_shown_until_it_is_done(tmp_path: Path) -> None:
    """By a rule, a signal or a command in another terminal: the recording says so, and a bar what of its usual time has passed."""
    folder = simulated_hour.write(tmp_path / "session", 70.0)
    begun = Event(69.0, CAPTURE_BEGUN, "torch capture, asked by a rule")
    done = Event(79.0, "capture", "torch: a window of 1.2 s brought window.json.gz")

    def screen(seconds: float) -> str:
        stream = io.StringIO()
        made = console(stream)
        made.width, made.height = 100, 30
        now = simulated_hour.CREATED + seconds
        made.print(Viewer(Follower(folder), made, Errands(None, ""), wall=lambda: now).once(), end="")
        return stream.getvalue()

    def written(event: Event) -> None:
        with (folder / "events.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(event) + b"\n")
        now = simulated_hour.CREATED + event.at
        os.utime(folder / "events.jsonl", (now, now))

    written(begun)
    at_work, left = screen(74.0), screen(174.0)
    written(done)

    assert "torch capture, asked by a rule" in at_work
    assert "asked by a rule" not in left  # nobody writes any more: the watcher was killed
    assert "asked by a rule" not in screen(80.0)
    assert "brought window.json.gz" in screen(80.0)


def test_the_patience_of_a_suspicion_runs_out_before_ones_eyes(tmp_path: Path) -> None:
    """Two of three ranks wait for the third, since a quarter of a minute: that may be a hang."""
    screen = shown(session_of(RECORDINGS / "starting" / "lookalike" / "two_of_three_ranks", tmp_path), 100, 30)

    assert re.search(r"suspected hung \(blocked_rendezvous\) \S+ +silent 14 s, decides in 46 s", screen)


def test_a_thread_that_is_the_culprit_has_a_row_and_the_next_step_is_told_once(tmp_path: Path) -> None:
    """Below its rank, with the line that it is at; what to do stands below the evidence where the line is too short for it."""
    folder = session_of(RECORDINGS / "contended_lock" / "fires" / "holder_rests", tmp_path)
    wide, narrow = shown(folder, 120, 40), shown(folder, 80, 40)

    assert re.search(r"thread board +23497 +\S +send \(ochre.py:19\)", wide)
    assert wide.count("do the slow part outside of the lock") == 1
    assert narrow.count("do the slow part outside of the lock") == 1


@with_tmux
@needs_root()
def test_the_session_of_another_user_is_shown_and_left_alone(tmp_path: Path, session: Path) -> None:
    """Its watcher is not asked for anything: that is said instead."""
    theirs = tmp_path / "theirs"
    shutil.copytree(session, theirs)
    os.chown(theirs, 65534, 65534)
    with terminal(tmp_path, 100, 30, "top", str(theirs)) as window:
        window.until(lambda screen: screen[-1].startswith(KEYS))
        window.keys("c")
        window.until(lambda screen: "not your session: read-only" in screen[-1])
        window.keys("q")
        window.until(lambda screen: screen[0] == "ended with 0")


def test_a_recording_of_a_newer_version_is_refused_with_the_way_out(tmp_path: Path, session: Path) -> None:
    """What this version does not know is not guessed at."""
    newer = tmp_path / "newer"
    shutil.copytree(session, newer)
    text = (newer / "session.json").read_text()
    (newer / "session.json").write_text(text.replace("perfwatch.session/3", "perfwatch.session/9"))
    done = in_process(str(newer))

    assert done.returncode == 2
    assert "perfwatch.session/9" in done.stderr


@with_tmux
def test_without_colour_there_is_none(tmp_path: Path, session: Path) -> None:
    """NO_COLOR: bold and reverse are left, and what a bar means is told by its letters too."""
    with terminal(tmp_path, 80, 24, "top", str(session), NO_COLOR="1") as window:
        window.until(lambda screen: screen[-1].startswith(KEYS))
        colours = [line for line in window.screen("-e") if any(f"\x1b[{code}m" in line for code in range(31, 38))]

    assert colours == []


def test_a_pipe_gets_one_screen(session: Path) -> None:
    """All of it: no key, no control sequence, no blanks at the ends, no empty rest of a screen."""
    done = once(str(session), COLUMNS="100", LINES="30")

    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "rank 7        1070" in done.stdout  # more lines than a screen has
    assert "quit" not in done.stdout
    assert [line for line in done.stdout.splitlines() if line.endswith(" ")] == []
    assert "\n\n\n" not in done.stdout


def test_a_terminal_without_utf_8_gets_letters(session: Path) -> None:
    """Bars, sparklines and cut lines are ASCII then."""
    done = once(str(session), "--once", PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C", COLUMNS="100", LINES="30")

    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "%%%%%%%%" in done.stdout


def test_hostile_names_do_not_steer_the_terminal(tmp_path: Path) -> None:
    """No escape sequence, nothing backwards, no line longer than the screen."""
    done = in_process(str(hostile.record(tmp_path / "session")), COLUMNS="80", LINES="24")

    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_an_empty_recording_says_that_nothing_is_known(tmp_path: Path) -> None:
    """Missing is not zero."""
    folder = simulated_hour.write(tmp_path / "session", 0.0)
    for file in folder.glob("*.jsonl"):
        os.truncate(file, 0)

    done = in_process(str(folder), COLUMNS="80", LINES="24")

    assert done.returncode == 0
    assert "no GPU was looked at" not in done.stdout.splitlines()[0]
    assert "steps are not counted" in done.stdout
    assert "no process of the job is seen" in done.stdout


def test_a_process_that_is_not_there_is_told_as_by_attach() -> None:
    """Same words, same exit code."""
    done = in_process("4194303")

    assert done.returncode == 3
    assert "4194303" in done.stderr


def test_a_screen_is_drawn_over_the_one_before_and_never_cleared(session: Path) -> None:
    """Over ssh a screen that is cleared first flickers."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "perfwatch", "top", str(session)]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**environment(), "TERM": "xterm"}
    ) as top:
        os.close(theirs)
        drawn = b""
        while drawn.count(HOME) < 3:
            assert select.select([ours], [], [], PATIENCE_SECONDS)[0], drawn[-200:]
            drawn += os.read(ours, 65536)
        os.write(ours, b"q")
        while top.poll() is None:
            with contextlib.suppress(OSError):  # the other end is closed
                drawn += os.read(ours, 65536)
    os.close(ours)

    assert CLEAR not in drawn
    assert drawn.count(ALTERNATE_SCREEN) == 1
