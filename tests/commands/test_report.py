"""``perfwatch report``: where it goes, which form it has, and what it makes of damaged sessions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfwatch.recording.recording import Record, Recorder
from perfwatch.recording.redaction import redact
from perfwatch_probes.readings import Traceback
from tests.command_line import perfwatch
from tests.recorded import RECORDINGS, session_of
from tests.sessions import PATIENCE_SECONDS, record, session

pytestmark = pytest.mark.live

BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
CRASHED = RECORDINGS / "crashed" / "fires" / "awaited_trial"


def report(*arguments: str, cwd: Path | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run the command."""
    return perfwatch("report", *arguments, cwd=cwd, env={**BARE, **environment})


def test_a_page_is_named_after_its_session(tmp_path: Path) -> None:
    """Nothing needs to be said; the name of the file is printed, and only its owner may read it."""
    folder = record(tmp_path / "20261120-115124-733")

    done = report(str(folder), cwd=tmp_path)

    page = tmp_path / "20261120-115124-733.html"
    assert (done.returncode, done.stdout.strip()) == (0, page.name)
    assert done.stderr == f"perfwatch: writing {page}\n"
    assert page.stat().st_mode & 0o777 == 0o600
    assert "<!doctype html>" in page.read_text()[:20]


def test_text_goes_to_stdout(tmp_path: Path) -> None:
    """So that it can be piped."""
    done = report(str(record(tmp_path / "session")), "--format", "text")

    assert done.returncode == 0
    assert "HOW IT WAS MEASURED" in done.stdout


def test_the_ending_of_the_file_chooses_the_form(tmp_path: Path) -> None:
    """An older report of that name is replaced, and no unfinished file stays."""
    target = tmp_path / "report.json"
    target.write_text("old")

    done = report(str(record(tmp_path / "session")), "-o", str(target))

    assert done.returncode == 0
    assert json.loads(target.read_text())["schema"] == "perfwatch.report/2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "session"]


def test_a_file_in_a_checkout_is_announced_as_one(tmp_path: Path) -> None:
    """It could be committed by mistake."""
    folder = record(tmp_path / "one")
    (tmp_path / "project" / ".git").mkdir(parents=True)

    done = report(str(folder), cwd=tmp_path / "project")

    place = tmp_path / "project"
    assert f"writing {place}/one.html, in the git checkout {place}; another place: -o FILE" in done.stderr


def test_a_dash_is_stdout(tmp_path: Path) -> None:
    """And no file of that name; the form is as without it, and a terminal gets no page."""
    folder = record(tmp_path / "session")
    page, text = report(str(folder), "-o", "-", cwd=tmp_path), report(str(folder), "-o", "-", "-f", "md", cwd=tmp_path)
    archive = perfwatch("bundle", str(folder), "-o", "-", cwd=tmp_path)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "perfwatch", "report", str(folder), "-o", "-"]
    on_terminal = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    for end in (ours, theirs):
        os.close(end)

    assert page.stdout.startswith("<!doctype html>")
    assert text.stdout.startswith("**INCONCLUSIVE**")
    assert archive.stdout.startswith("\x1f")
    assert (on_terminal.returncode, "html is not to be read on a terminal" in on_terminal.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["session"]


def test_of_a_session_that_was_not_named_is_said_which_and_how_to_take_another(tmp_path: Path) -> None:
    """Before it is read."""
    for number, name in enumerate(("older", "newer")):
        folder = record(tmp_path / name)
        (folder / "events.jsonl").write_text('{"kind": "verdict", "verdict": {"state": "healthy"}}\n')
        os.utime(folder / "session.json", (1000 + number, 1000 + number))

    done = report("-f", "md", PERFWATCH_DIR=str(tmp_path))

    first, second, *_ = done.stderr.splitlines()
    assert first.startswith("perfwatch: this is the newest session, newer: python train.py, begun ")
    assert second.startswith("perfwatch: for another one: perfwatch report older    # python train.py, begun ")


@pytest.mark.parametrize("form", ["md", "text", "json", "html"])
def test_a_crash_is_handed_over_as_one(form: str, tmp_path: Path) -> None:
    """What was said of the living job is a line beside it."""
    done = report(str(session_of(CRASHED, tmp_path / "session")), "-o", str(tmp_path / "report"), "-f", form)
    made = (tmp_path / "report").read_text()

    assert done.returncode == 0
    if form == "json":
        document = json.loads(made)
        assert (document["verdict"]["cause"], document["lived"]["state"]) == ("crashed", "inconclusive")
    else:
        assert "last verdict before it ended (after" in made
        assert made.index("crashed") < made.index("last verdict before it ended")


def test_an_unknown_form_is_answered_with_all_of_them(tmp_path: Path) -> None:
    """The message is the manual."""
    done = report(str(record(tmp_path / "session")), "--format", "pdf")

    assert done.returncode == 2
    assert "--format 'pdf' is not a report format" in done.stderr
    assert ".pftrace" in done.stderr


def test_a_place_that_takes_no_file_is_named(tmp_path: Path) -> None:
    """And another one is asked for."""
    done = report(str(record(tmp_path / "session")), "-o", str(tmp_path / "nowhere" / "a.html"))

    assert done.returncode == 2
    assert "could not be written: No such file or directory" in done.stderr


def test_a_torn_session_is_reported_with_what_it_lacks(tmp_path: Path) -> None:
    """Half a line at the end, a line of rubbish, a kind of reading that nobody knows."""
    folder = record(tmp_path / "session")
    lines = b'rubbish\n{"at":1.0,"reading":{"type":"FromTheFuture"}}\n{"at": 3.0, "rea'
    (folder / "readings-0002.jsonl").write_bytes(lines)

    done = report(str(folder), "--format", "text")

    assert done.returncode == 0
    assert "2 damaged lines and 1 line of a newer version" in done.stdout


def test_a_session_of_a_newer_version_is_refused_with_advice(tmp_path: Path) -> None:
    """How it was installed is not known here, and its name on the package index is another project's."""
    folder = record(tmp_path / "session")
    session = folder / "session.json"
    session.write_text(session.read_text().replace("perfwatch.session/3", "perfwatch.session/9"))

    done = report(str(folder))

    assert done.returncode == 2
    assert "install a newer one the way this one was installed" in done.stderr


def test_a_session_that_is_being_written_can_be_reported(tmp_path: Path) -> None:
    """A file that grows while it is read, with its last line unfinished; no file changes."""
    folder = record(tmp_path / "session")
    file = folder / "readings-0002.jsonl"
    with file.open("ab") as writer:
        writer.write(b'{"at":9.0,"read')
        writer.flush()
        before = file.read_bytes()
        done = report(str(folder), "--format", "md")

    assert done.returncode == 0
    assert file.read_bytes() == before


@pytest.mark.live
@pytest.mark.parametrize("form", ["text", "md"])
def test_a_terminal_without_utf_8_gets_a_report_too(tmp_path: Path, form: str) -> None:
    """What its encoding lacks is replaced, not fatal."""
    done = subprocess.run(
        [sys.executable, "-m", "perfwatch", "report", str(record(tmp_path / "session")), "-f", form],
        capture_output=True, text=True, timeout=60,
        env={**BARE, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


def test_a_session_without_cards_has_no_lines_that_they_wait_for(tmp_path: Path) -> None:
    """speedscope has nothing to show then, and that is said."""
    done = report(str(record(tmp_path / "session")), "-f", "speedscope")

    assert done.returncode == 2
    assert "no card was sampled" in done.stderr


@pytest.mark.parametrize("form", ["html", "md"])
def test_the_traceback_of_a_crashed_rank_is_in_the_report(tmp_path: Path, form: str) -> None:
    """Line by line, equal ones once, as it was recorded: with what was redacted; nothing of it is markup."""
    secret = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in main\nE: </pre><b>``` token=hunter2hunter2'
    words = tuple(Record(2.0, Traceback(pid=pid, exception="E", text=redact(secret))) for pid in (7, 8))
    folder = tmp_path / "session"
    folder.mkdir(mode=0o700)
    recorder = Recorder(folder, session())
    for one in words:
        recorder.append(one.at, [one.reading])
    assert recorder.close(PATIENCE_SECONDS) == ""
    assert report(str(folder), "-o", str(tmp_path / f"out.{form}")).returncode == 0
    text = (tmp_path / f"out.{form}").read_text()

    assert (
        text.count(
            "File &#34;/a/train.py&#34;, line 3, in main" if form == "html" else 'File "/a/train.py", line 3, in main'
        )
        == 1
    )
    assert "pid 7, pid 8" in text
    assert "hunter2" not in text
    assert "[redacted]" in text
    assert ("&lt;/pre&gt;&lt;b&gt;" if form == "html" else "</pre><b>''' token") in text
