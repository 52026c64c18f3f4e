"""Of a process with too many threads those that matter are read."""

from pathlib import Path

from perfwatch.watching.thread_choice import MOST_THREADS, SURVEYED_THREADS, UNREMARKABLE_THREADS, ThreadChoice
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.readings import ProbeCall

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
