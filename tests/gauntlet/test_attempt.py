"""One drill from start to end, with a stand-in for perfwatch that answers what the test tells it."""

import dataclasses
import json
import os
import sys
import threading
from pathlib import Path

import psutil
import pytest

from perfwatch.drills.drill import Culprit, Drill
from perfwatch.gauntlet import rows
from perfwatch.gauntlet.attempt import Attempt, names, plan, run_attempt, run_gauntlet
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.gauntlet.program import BrokenDrillError, Program
from perfwatch.verdict import Coverage, ObserverCost, Timeline, Verdict
from perfwatch.verdict import Culprit as Named

pytestmark = pytest.mark.live

PROGRAM = """
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
with open(os.environ["PERFWATCH_DRILL_FIFO"], "w") as fifo:
    fifo.write(json.dumps({"onset": time.monotonic(), "pid": os.getpid(), "child": child.pid}) + "\\n")
time.sleep(1000)
"""


def verdict(state: str = "hung", cause: str = "stuck_worker", culprits: tuple[Named, ...] = ()) -> Verdict:
    """Make a verdict with as little as it can have."""
    return Verdict(
        state=state,
        cause=cause,
        confidence=0.9,
        summary="made by hand",
        owner="unknown",
        at="2026-01-01T00:00:00Z",
        coverage=Coverage(ranks_seen=1, world_size=1),
        culprits=culprits,
        timeline=Timeline(attached=1.0, decided=3.5),
        observer_cost=ObserverCost(),
    )


@pytest.fixture
def drill(tmp_path: Path) -> Drill:
    """A drill whose program starts a child in another session and then waits for ever."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return Drill(name="made", program=str(program), summary="waits", state="hung", causes=("stuck_worker",))


def conditions(tmp_path: Path, answer: str, exit_code: int = 30) -> Conditions:
    """Conditions under which perfwatch prints ``answer``."""
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(f"import sys\nprint({answer!r})\nsys.exit({exit_code})\n")
    return Conditions(folder=tmp_path / "out", perfwatch=(sys.executable, str(stand_in)), limit_seconds=30.0)


def as_json(answer: Verdict) -> str:
    """A verdict as ``attach --json`` prints it."""
    import msgspec

    return msgspec.json.encode(answer).decode()


def alive_with(fifo: Path) -> list[int]:
    """PIDs whose environment names this FIFO."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PERFWATCH_DRILL_FIFO") == str(fifo) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def test_a_right_answer_makes_a_right_row_and_leaves_no_process(tmp_path: Path, drill: Drill) -> None:
    """The program and the child that left its session are gone afterwards."""
    row, _ = run_attempt(Attempt(drill, "loud", 0), conditions(tmp_path, as_json(verdict())))

    assert (row.right, row.decided_seconds, row.exit_code, row.fault) == (True, 2.5, 30, None)
    assert alive_with(Path(row.session).parent / "onset") == []


def test_a_program_that_knows_nothing_of_drills_says_its_onset_on_a_line_of_its_output(
    tmp_path: Path, drill: Drill
) -> None:
    """It is given no strength, and the variables that were asked for."""
    says = "print(sys.argv[1:], os.environ['CARD'], 'no ONSET', flush=True); print('ONSET', flush=True)"
    Path(drill.program).write_text(f"import os, sys, time; {says}; time.sleep(1000)")
    attempt = Attempt(drill, "", 0, environment=(("CARD", "1"),), prints_onset=True)
    row, said = run_attempt(attempt, conditions(tmp_path, as_json(verdict())))

    assert said is not None
    assert row.right
    assert (Path(row.session).parent / "output.txt").read_text().startswith("[] 1 no ONSET")


def test_an_answer_that_is_no_verdict_is_a_fault(tmp_path: Path, drill: Drill) -> None:
    """The row says what was wrong and counts against perfwatch."""
    row, _ = run_attempt(Attempt(drill, "loud", 0), conditions(tmp_path, "Traceback ..."))

    assert not row.right
    assert "not a verdict" in (row.fault or "")


def test_an_unknown_exit_code_is_a_fault(tmp_path: Path, drill: Drill) -> None:
    """Exit code 1 is an internal error, whatever stdout says."""
    row, _ = run_attempt(Attempt(drill, "loud", 0), conditions(tmp_path, as_json(verdict()), exit_code=1))

    assert "exit code 1" in (row.fault or "")


def test_a_program_that_ends_too_early_is_a_broken_drill(tmp_path: Path, drill: Drill) -> None:
    """Its last words are kept."""
    Path(drill.program).write_text("raise SystemExit('no such data set')")
    row, _ = run_attempt(Attempt(drill, "loud", 0), conditions(tmp_path, ""))

    assert "no such data set" in (row.broken or "")


def test_an_interrupted_wait_for_the_onset_ends(tmp_path: Path) -> None:
    """Nobody waits for a program when the user has had enough."""
    with (
        Program([sys.executable, "-c", "import time; time.sleep(1000)"], tmp_path) as program,
        pytest.raises(BrokenDrillError),
    ):
        program.wait_for_onset(1000.0, interrupted=lambda: True)


def test_a_drill_that_goes_away_is_started_under_run(tmp_path: Path, drill: Drill) -> None:
    """Nobody can attach to what has ended."""
    gone = dataclasses.replace(drill, state="gone", causes=("crashed",))

    assert [Conditions(tmp_path).mode_for(drill), Conditions(tmp_path).mode_for(gone)] == ["attach", "run"]


def test_a_run_verdict_is_taken_from_the_session_as_it_is_written(tmp_path: Path, drill: Drill) -> None:
    """Under ``run`` the newest accusation among the events is the answer; a torn last line is left for later."""
    stand_in = tmp_path / "stand_in.py"
    event = json.dumps(
        {"at": 3.5, "wall": 1.0, "kind": "verdict", "text": "hung", "verdict": json.loads(as_json(verdict()))}
    )
    stand_in.write_text(
        "import os, sys\n"
        "session = sys.argv[sys.argv.index('--session') + 1]\n"
        "os.makedirs(session)\n"
        f"open(session + '/events.jsonl', 'w').write({event!r} + '\\n{{\"kind\": \"ver')\n"
        "command = sys.argv[sys.argv.index('--') + 1:]\n"
        "os.execv(command[0], command)\n"
    )
    under_run = Conditions(folder=tmp_path / "out", perfwatch=(sys.executable, str(stand_in)), mode="run")
    row, _ = run_attempt(Attempt(drill, "loud", 0), under_run)

    assert (row.mode, row.right) == ("run", True)


ENDS = """
import json, os, time
with open(os.environ["PERFWATCH_DRILL_FIFO"], "w") as fifo:
    fifo.write(json.dumps({"onset": time.monotonic(), "pid": os.getpid()}) + "\\n")
"""
SLOW_WATCHER = """
import json, subprocess, sys
if "run" in sys.argv:
    session, command = sys.argv[sys.argv.index("--session") + 1], sys.argv[sys.argv.index("--") + 1:]
    writes = "import os, sys, time; sys.stdin.read(); time.sleep(1.0); os.makedirs(sys.argv[1]); "
    writes += "open(sys.argv[1] + '/events.jsonl', 'w').write(sys.argv[2] + chr(10))"
    watcher = subprocess.Popen([sys.executable, "-c", writes, session, EVENT], stdin=subprocess.PIPE)
    subprocess.run(command)
else:
    events = open(sys.argv[2] + "/events.jsonl")  # to replay it fails where nothing is written
    print(json.dumps(json.loads(events.readline())["verdict"]))
"""


def test_the_end_of_a_run_is_judged_when_its_watcher_has_written_what_it_saw(tmp_path: Path, drill: Drill) -> None:
    """On a crowded machine ``run`` ends before its watcher."""
    (tmp_path / "ends.py").write_text(ENDS)
    ended = verdict("gone", "killed")
    event = json.dumps({"at": 3.5, "wall": 1.0, "kind": "outcome", "text": "1", "verdict": json.loads(as_json(ended))})
    (tmp_path / "stand_in.py").write_text(f"EVENT = {event!r}\n{SLOW_WATCHER}")
    gone = dataclasses.replace(drill, program=str(tmp_path / "ends.py"), state="gone", causes=("killed",))
    under_run = Conditions(folder=tmp_path / "out", perfwatch=(sys.executable, str(tmp_path / "stand_in.py")))
    row, _ = run_attempt(Attempt(gone, "loud", 0), under_run)

    assert (row.fault, row.state, row.right) == (None, "gone", True)


def test_the_gauntlet_gives_a_row_for_every_attempt(tmp_path: Path, drill: Drill) -> None:
    """Two repeats, two at a time."""
    attempts = plan([drill], repeat=2)
    given = list(run_gauntlet(attempts, conditions(tmp_path, as_json(verdict())), 2, threading.Event()))

    assert sorted(row.repeat for row in given) == [0, 1]


def test_the_plan_goes_round_by_round_and_keeps_to_the_strengths_asked_for(drill: Drill) -> None:
    """An interrupted gauntlet has seen every drill once before any twice."""
    masked = dataclasses.replace(drill, name="strong", strengths=("loud", "masked"))
    order = [(a.drill.name, a.strength, a.repeat) for a in plan([drill, masked], 2, ("loud",))]

    assert order == [("made", "loud", 0), ("strong", "loud", 0), ("made", "loud", 1), ("strong", "loud", 1)]


def test_a_resumed_gauntlet_leaves_out_what_it_has(tmp_path: Path, drill: Drill) -> None:
    """A torn last line and a broken drill are tried again."""
    told = conditions(tmp_path, as_json(verdict()))
    (done, *left) = plan([drill], repeat=3)
    told.folder.mkdir()
    rows.append(told.folder, run_attempt(done, told)[0])
    with (told.folder / rows.FILE).open("ab") as file:
        file.write(b'{"drill": "made", "str')

    assert rows.left_to_do([done, *left], told, rows.load(told.folder)) == left


@pytest.mark.parametrize(
    ("expected", "named", "right"),
    [
        (Culprit("worker", "__getitem__"), Named(pid=1, worker_pid=7, frame="__getitem__ (a.py:3)"), True),
        (Culprit("worker", "__getitem__"), Named(pid=1, worker_pid=8, frame="__getitem__ (a.py:3)"), False),
        (Culprit("worker", "__getitem__"), Named(pid=1, frame="__getitem__ (a.py:3)"), False),
        (Culprit("worker", "__getitem__"), Named(pid=1, worker_pid=7, frame="__iter__ (a.py:3)"), False),
        (Culprit("main"), Named(pid=1), True),
        (Culprit("main"), Named(pid=1, worker_pid=7), False),
        (Culprit("rank", rank=1), Named(pid=9, rank=1), True),
        (Culprit("rank", rank=1), Named(pid=9, rank=0), False),
        (Culprit("thread"), Named(pid=1, tid=5), True),
        (Culprit("thread"), Named(pid=1, tid=1), False),
    ],
)
def test_the_first_culprit_must_be_the_one_at_fault(expected: Culprit, named: Named, right: bool) -> None:
    """Role, process, rank and function are each compared where they are known."""
    assert names(expected, verdict(culprits=(named,)), root_pid=1, onset_pids={7}) is right


def test_naming_nobody_is_not_naming_the_right_one() -> None:
    """An empty list of culprits is wrong where there is one."""
    assert not names(Culprit("main"), verdict(), root_pid=1, onset_pids={1})


def test_a_program_ends_with_orphans_that_left_its_tree(tmp_path: Path) -> None:
    """A double fork into another session carries the FIFO in its environment and is ended too."""
    code = (
        "import json, os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        line = json.dumps({'onset': time.monotonic(), 'pid': os.getpid()})\n"
        "        open(os.environ['PERFWATCH_DRILL_FIFO'], 'w').write(line + '\\n')\n"
        "        time.sleep(1000)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "time.sleep(1000)\n"
    )
    with Program([sys.executable, "-c", code], tmp_path) as program:
        orphan = program.wait_for_onset(30.0).pid
        assert os.getsid(orphan) != os.getsid(program.pid)

    assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE
