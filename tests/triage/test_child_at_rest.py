"""A shell script that the training thread waits for: what its brief programs are loaded from is no work, what they write is."""

import pytest
from msgspec.structs import replace

from perfwatch.triage.history import History
from perfwatch_probes.readings import Frame, ProcessEnded, ProcessUsage, Wait
from tests.triage.rank_looks import FIRST, LIB, MODULE, STOPPED, Frames, job, judged, looks, process, runs, stands

WAITS: Frames = (Frame("wait", LIB + "subprocess.py", 1264), Frame("fetch", "/app/train.py", 30), MODULE)
SCRIPT, STARTED = 300, 301  # and the numbers that follow
UNTIL = STOPPED + 140.0
LIBRARIES = 110 * 1024.0  # bytes per second, measured: grep and sleep, five times a second
NAP = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.1)


def waits(
    *names: str,
    read: float = LIBRARIES,
    written: float = 0.0,
    fetched: float = 0.0,
    computed: float = 0.013,
) -> History:
    """A script starts these programs in turn, and they use so much of each second."""
    history = job(1)
    history.add(STOPPED, process(SCRIPT, FIRST, "bash wait_for_features.sh status.json"))
    stands(history, FIRST, WAITS, Wait(call="wait4", number=61, kind="child", forever=True, child_pid=SCRIPT), UNTIL)
    reaps = Wait(call="wait4", number=61, kind="child", forever=True, child_pid=-1)
    runs(history, SCRIPT, (), STOPPED, UNTIL, share=0.1 * computed, wait=reaps, name="bash")
    for number, at in enumerate(looks(STOPPED, UNTIL)):
        seconds, pid = at - STOPPED, STARTED + number
        history.add(at, ProcessUsage(pid=SCRIPT, state="S", threads=1, cpu_seconds=0.1 * computed * seconds,
                                     children_cpu_seconds=0.9 * computed * seconds, major_faults=0, minor_faults=0,
                                     resident_bytes=2**21, read_chars=int(read * seconds), written_chars=int(written * seconds),
                                     read_bytes=int(fetched * seconds)))  # fmt: skip
        history.add(
            at, replace(process(pid, SCRIPT, (names or ("sleep",))[number % max(1, len(names))]), age_seconds=0.1)
        )
        stands(history, pid, (), NAP, at + 0.5, at)
        history.add(at + 0.4, ProcessEnded(pid=pid, start_ticks=pid))
    return history


def test_a_script_that_asks_and_sleeps_again_and_again_is_named_after_twice_the_patience() -> None:
    """It looks for a word in a file that nobody will write."""
    history = waits()
    soon, late = judged(history, STOPPED + 80.0), judged(history, STOPPED + 130.0)

    assert (soon.state, soon.suspect and soon.suspect.cause) == ("inconclusive", "blocked_child")
    assert (late.state, late.cause, late.confidence) == ("hung", "blocked_child", 0.65)
    assert "wait_for_features.sh" in late.summary
    assert "starts brief programs and sleeps in between" in late.summary


@pytest.mark.parametrize(
    "used",
    [
        {"written": 8192.0},  # a copy of small files at the pace of their store
        {"fetched": 65536.0},  # sums over files on a slow disk
        {"computed": 0.4},  # words are counted
        {"read": 3e6},  # more than libraries
    ],
)
def test_a_script_whose_brief_programs_work_is_waited_for(used: dict[str, float]) -> None:
    """However much it sleeps in between."""
    verdict = judged(waits(**used), STOPPED + 130.0)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")


def test_a_script_that_is_not_seen_to_sleep_is_not_said_to_hang() -> None:
    """What it starts uses little, but nobody knows what that is about."""
    assert judged(waits("rsync", "ssh", "sleep"), STOPPED + 130.0).state != "hung"


def test_a_program_that_sleeps_until_a_time_that_is_known_is_no_hang() -> None:
    """``subprocess.run(["sleep", "200"])``, whatever the patience: a cool-down, a window, a round of others."""
    history = job(1)
    history.add(STOPPED, process(SCRIPT, FIRST, "sleep 200"))
    stands(history, FIRST, WAITS, Wait(call="wait4", number=61, kind="child", forever=True, child_pid=SCRIPT), UNTIL)
    rest = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=200.0)
    stands(history, SCRIPT, (), rest, UNTIL)
    for at in looks(STOPPED, UNTIL):
        history.add(at, ProcessUsage(pid=SCRIPT, state="S", threads=1, cpu_seconds=0.001, children_cpu_seconds=0.0,
                                     major_faults=0, minor_faults=0, resident_bytes=2**20, read_chars=0, written_chars=0))  # fmt: skip

    for seconds in (30.0, 130.0):
        said = judged(history, STOPPED + seconds)

        assert (said.state, said.cause) == ("busy", "waiting_on_work")
        assert "wakes in" in said.summary
