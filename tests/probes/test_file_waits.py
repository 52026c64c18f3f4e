"""Whether a loop waits until a file appears or until it goes, by the loop's text; and whether the file is there."""

import os
from pathlib import Path

import pytest
from msgspec import structs

from perfwatch_probes.deadline import Inline
from perfwatch_probes.descriptors import AWAITED, awaited
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.guest import Recorded
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import APPEARS, GOES, Frame, SourceLine, Stack, Wait
from perfwatch_probes.source import describe
from tests.triage.rank_looks import FIRST, MODULE, TRAIN, job, judged, runs


@pytest.mark.parametrize(
    ("loop", "awaits"),
    [
        ("while not os.path.exists(done):\n    time.sleep(1)", APPEARS),
        ("while os.path.exists(lock):\n    time.sleep(1)", GOES),
        ("while lock.exists() and not stop.is_set():\n    time.sleep(1)", GOES),
        ("while True:\n    if done.is_file():\n        break\n    time.sleep(1)", APPEARS),
        ("for _ in range(10**9):\n    if not self.lock.exists():\n        return\n    time.sleep(1)", GOES),
        ("while not (folder / 'a').exists() or tries < 3:\n    time.sleep(1)", ""),
        ("while not (a.exists() and b.exists()):\n    time.sleep(1)", ""),
        ("while len(os.listdir(folder)) < world:\n    time.sleep(1)", ""),
        ("while True:\n    for one in parts:\n        if one.exists():\n            break\n    time.sleep(1)", ""),
        ("while not ready(folder):\n    time.sleep(1)", ""),
        ("while os.path.exists(lock):\n    if os.path.exists(stop):\n        return\n    time.sleep(1)", ""),
    ],
)
def test_the_test_of_a_loop_tells_what_it_waits_for(loop: str, awaits: str) -> None:
    """Or the test under which it is left; where both are told, or neither, nothing is."""
    body = "\n".join(f"    {line}" for line in loop.splitlines())
    text = f"def wait():\n{body}\n"

    assert describe(text, "/app/a.py", len(text.splitlines())).awaits == awaits


@pytest.mark.parametrize(
    ("test", "tested"),
    [
        ("os.path.exists(done)", ("done",)),
        ("done.exists() and not stop.is_file()", ("done", "stop")),
        ("os.path.exists(self.path)", ()),
        ("os.path.exists(os.path.join(folder, name))", ()),
        ("(folder / name).exists()", ()),
        ("ready(folder)", ()),
    ],
)
def test_only_a_variable_that_is_tested_as_it_is_holds_the_path(test: str, tested: tuple[str, ...]) -> None:
    """A part of an expression is a part of the path."""
    assert describe(f"while not ({test}):\n    time.sleep(1)\n", "/app/a.py", 2).tested_names == tested


def test_a_path_is_looked_at_as_its_process_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to where it works; its newest change counts, be it of the text, the name or the rights."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build.lock").touch()
    os.utime(tmp_path / "build.lock", (1.0, 1.0))  # which is a change of its own
    now = (tmp_path / "build.lock").stat().st_ctime + 40.0
    there = awaited(Filesystem(), os.getpid(), "build.lock", Recorded(Inline()), lambda: now)
    gone = awaited(Filesystem(), os.getpid(), str(tmp_path / "none" / "a.done"), Recorded(Inline()))

    assert (there.fd, there.kind, there.target) == (AWAITED, "file", "build.lock")
    assert there.changed_ago_seconds == pytest.approx(40.0)
    assert (gone.kind, gone.changed_ago_seconds) == ("missing", None)


def test_of_a_process_that_has_ended_nothing_is_missing() -> None:
    """It is not known."""
    with pytest.raises(Unavailable):
        awaited(Filesystem(), 2**22 - 1, "/data/a.done", Recorded(Inline()))


def test_triage_finds_it_under_the_number_of_the_probe(tmp_path: Path) -> None:
    """A lock that has been there unchanged for an hour, for whose removal a rank waits: six seconds are enough to say so."""
    lock = tmp_path / "build.lock"
    lock.touch()
    now = lock.stat().st_ctime + 3600.0
    found = awaited(Filesystem(), os.getpid(), str(lock), Recorded(Inline()), lambda: now)
    history, waits = job(1, trained=False), (Frame("guarded", TRAIN, 18), MODULE)
    nap = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.4)
    runs(history, FIRST, (waits,), 20.0, 26.0, share=0.001, wait=nap, switches_per_second=2.0)
    line = SourceLine(file=TRAIN, line=18, text="time.sleep(0.5)", calls=("time.sleep",), awaits=GOES, loops=("while",),
                      tested_names=("lock",), loop_calls=("os.path.exists", "time.sleep"))  # fmt: skip
    history.add(20.0, line)
    history.add(25.8, Stack(pid=FIRST, tid=FIRST, frames=waits, texts=(str(lock),), text_names=("lock",)))
    history.add(26.0, structs.replace(found, pid=FIRST))
    verdict = judged(history, 26.0)

    assert (verdict.state, verdict.cause) == ("hung", "waiting_for_file")
    assert verdict.summary.endswith(f"waits for {lock} to be removed")
