"""When a suspect is sampled again."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.watching import cadence
from perfwatch.watching.attention import Schedule
from perfwatch.watching.failures import MOST_TOLD, Failures
from perfwatch.watching.probes_of_job import Look
from perfwatch.watching.sampling import Sampling
from perfwatch.watching.sources import Sources
from perfwatch.watching.thread_choice import MOST_THREADS, SURVEYED_THREADS, UNREMARKABLE_THREADS, ThreadChoice
from perfwatch.watching.turns import FRESH_SECONDS, Turns
from perfwatch_probes import readings as r
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.readings import Frame, ProbeCall, Reading, Thread, Wait
from tests.sessions import session
from tests.triage.rank_looks import FIRST, MODULE, job, process, runs

PY_SPY = """#!/bin/sh
[ "$1" = record ] && read released < {fifo}
exit 1
"""


@pytest.mark.live
def test_a_suspect_is_sampled_again_as_soon_as_a_late_record_of_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a crowded machine a record takes longer than it was meant to: that costs no turn."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "py-spy").write_text(PY_SPY.format(fifo=fifo))
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setenv("PERFWATCH_PY_SPY", str(tmp_path / "py-spy"))
    history, clock = History(), [0.0]

    def sink(readings: Sequence[Reading]) -> None:
        for reading in readings:
            history.add(clock[0], reading)

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        look = Look(sink=sink)
        look.processes([program.pid])
        sampling = Sampling(look, Sources(look), history, Schedule(lambda: clock[0]), lambda: clock[0])
        sampling.begin()
        case = Case(history, session(root_pids=(program.pid,)))
        sampling.of_suspect(case, None, certain=False)
        (first,) = look.records
        clock[0] = cadence.RECORD_SECONDS + 0.6
        sampling.of_suspect(case, None, certain=False)
        still = list(look.records)
        fifo.write_text("released\n")
        while look.records:
            look.collect()
        clock[0] += 2 * cadence.COLLECT_SECONDS
        sampling.of_suspect(case, None, certain=False)
        again = list(look.records)
        look.close()
        program.communicate(b"\n")

    assert still == [first]
    assert len(again) == 1


class Texts(Look):
    """A look that takes no stacks, and remembers whose variables it was to read."""

    def __init__(self) -> None:
        super().__init__(sink=lambda _: None)
        self.read: list[int] = []

    def dump(self, pids: Sequence[int], texts: bool = False) -> list[Reading]:
        """None."""
        self.read += pids if texts else []
        return []

    def behind(self, found: Iterable[Thread], awaited: Mapping[int, str] | None = None) -> None:
        """Nothing is looked at."""

    def source(self, pid: int, frame: Frame) -> None:
        """Nor is a line read."""


def test_the_variables_of_one_that_looks_for_a_file_are_read_once_and_those_of_the_next_with_its_pid_too() -> None:
    """Its path is in them; a pid is used again."""
    takes = (Frame("acquire", "/v/site-packages/filelock/_api.py", 300), MODULE)
    history, look, clock = job(1, trained=False), Texts(), [0.0]
    runs(history, FIRST, (takes,), 0.0, 9.0, share=0.004, wait=Wait(call="clock_nanosleep", number=230, kind="sleep"))
    case = Case(history, session(root_pids=(FIRST,)))
    sampling = Sampling(look, Sources(look), history, Schedule(lambda: clock[0]), lambda: clock[0])
    read = []
    for start_ticks in (1, 1, 2):
        look.known[FIRST] = msgspec.structs.replace(process(FIRST, 1, "python train.py"), start_ticks=start_ticks)
        sampling.begin()
        clock[0] += cadence.dump_seconds(0, certain=True)
        sampling.of_suspect(case, None, certain=True)
        read.append(list(look.read))

    assert read == [[FIRST], [FIRST], [FIRST, FIRST]]


PACKAGES = "/usr/lib/python3.11/site-packages"
OWN = r.Frame("load", "/app/train.py", 15)


class Looks:
    """Remembers what it was asked for."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, int]] = []

    def source(self, pid: int, frame: r.Frame) -> None:
        """Instead of a look at the file."""
        self.lines.append((frame.file, frame.line))


def read(*frames: r.Frame) -> list[tuple[str, int]]:
    """The lines that are asked for where a thread stands so."""
    history, looks = History(), Looks()
    history.add(1.0, r.Stack(pid=7, tid=7, frames=frames))
    history.at = 1.0
    Sources(looks).of_threads(history)  # type: ignore[arg-type]
    return looks.lines


def test_a_librarys_innermost_line_is_read_for_it_may_take_a_lock() -> None:
    """Not those between it and the program, and none of the standard library, whose functions are known."""
    fetch = r.Frame("fetch", f"{PACKAGES}/reader/core.py", 3)
    between = r.Frame("read", f"{PACKAGES}/reader/api.py", 9)
    wait = r.Frame("wait", "/usr/lib/python3.11/threading.py", 327)

    assert read(fetch, between, OWN) == [("/app/train.py", 15), (fetch.file, 3)]
    assert read(wait, between, OWN) == [("/app/train.py", 15)]
    assert read(OWN) == [("/app/train.py", 15)]


PID = 100


def _thread(proc: Path, tid: int, state: str = "S", ticks: int = 0) -> None:
    folder = proc / str(PID) / "task" / str(tid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = ["0"] * 50
    fields[0], fields[11] = state, str(ticks)
    (folder / "stat").write_text(f"{tid} (python) {' '.join(fields)}\n")


def test_a_thread_that_runs_is_chosen_however_young_it_is(tmp_path: Path) -> None:
    """After a round of surveys a thread that has used CPU time is among the chosen, and so is the main one."""
    tids = list(range(PID, PID + 3 * SURVEYED_THREADS))
    for tid in tids:
        _thread(tmp_path, tid)
    choice = ThreadChoice(Filesystem(proc=tmp_path), lambda: 0.0, lambda _: None)
    for _ in range(3):
        assert tids[-1] not in choice.choose(PID, tids, ())

    _thread(tmp_path, tids[-1], ticks=50)
    chosen = [choice.choose(PID, tids, ()) for _ in range(3)][-1]

    assert {PID, tids[-1]} <= set(chosen)
    assert len(chosen) == MOST_THREADS + 1


def test_what_is_left_out_is_said_once(tmp_path: Path) -> None:
    """In numbers, where it is more than any training has."""
    tids = list(range(PID, PID + UNREMARKABLE_THREADS + 1))
    said: list[ProbeCall] = []
    choice = ThreadChoice(Filesystem(proc=tmp_path), lambda: 0.0, said.extend)
    (tmp_path / str(PID) / "task").mkdir(parents=True)

    for _ in range(3):
        choice.choose(PID, tids, ())

    assert [one.reason for one in said] == ["4,033 of 4,097 threads of pid 100 were not sampled"]


EVERY_SECONDS = 3.5
MOST = 6


def taken(ranks: int, others: int, turns: int) -> list[list[int]]:
    """Who is sampled in each turn; ranks are 1, 2, ..., the others 101, 102, ..."""
    chooser = Turns()
    first = list(range(1, ranks + 1))
    rest = list(range(101, 101 + others))
    return [chooser.take(first, first + rest, MOST, turn * EVERY_SECONDS) for turn in range(turns)]


def test_a_small_job_is_sampled_whole_each_time() -> None:
    """Two ranks with two workers each."""
    assert {frozenset(turn) for turn in taken(2, 4, 5)} == {frozenset({1, 2, 101, 102, 103, 104})}


def test_eight_ranks_are_seen_within_two_turns_and_their_workers_after_them() -> None:
    """As on a node of eight GPUs, with two workers for each rank."""
    turns = taken(8, 16, 3)

    assert turns[0] == [1, 2, 3, 4, 5, 6]
    assert turns[1] == [7, 8, 101, 102, 103, 104]
    assert turns[2] == [105, 106, 107, 108, 109, 110]


def test_a_few_ranks_are_in_every_turn() -> None:
    """However many work for them, and those have their turns all the same."""
    turns = taken(2, 20, 6)

    assert all({1, 2} <= set(turn) for turn in turns)
    assert len({pid for turn in turns for pid in turn}) == 22


def test_no_rank_is_left_out_for_long() -> None:
    """Whoever was not sampled lately comes before any worker."""
    seen: dict[int, list[float]] = {}
    for number, turn in enumerate(taken(8, 64, 40)):
        for pid in turn:
            seen.setdefault(pid, []).append(number * EVERY_SECONDS)

    for rank in range(1, 9):
        assert max(later - earlier for earlier, later in zip(seen[rank], seen[rank][1:], strict=False)) <= (
            FRESH_SECONDS + EVERY_SECONDS
        )
    assert len(seen) == 8 + 64


def test_who_has_gone_is_forgotten() -> None:
    """And a process that is new is sampled at once."""
    chooser = Turns()
    chooser.take([1], [2], MOST, 0.0)

    assert chooser.take([3], [1, 2, 4], 2, 1.0) == [3, 4]


def fails(words: str, kind: type[Exception] = ValueError) -> Exception:
    """An error with these words, always from one place."""
    try:
        raise kind(words)
    except Exception as error:
        return error


def test_an_error_whose_words_change_is_told_once() -> None:
    """It may name a pid; another kind, or the same from elsewhere, is news."""
    failures = Failures()
    try:
        int("x")
    except ValueError as error:
        elsewhere = error

    assert failures.new(fails("no process 1")) == "internal error: ValueError: no process 1"
    assert failures.new(fails("no process 2")) == ""
    assert failures.new(fails("no process 2", KeyError)) == "internal error: KeyError: 'no process 2'"
    assert failures.new(elsewhere).startswith("internal error: ValueError: invalid literal")


def test_no_more_is_told_than_somebody_reads() -> None:
    """However many places fail."""
    failures = Failures()
    told = [failures.new(fails("", type(f"Error{number}", (Exception,), {}))) for number in range(2 * MOST_TOLD)]

    assert sum(map(bool, told)) == MOST_TOLD
