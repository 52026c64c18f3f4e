"""The confidence of a hang follows from independent sources: each that is taken away lowers it, and none raises it."""

from dataclasses import replace
from itertools import combinations

import pytest

from perfwatch.gauntlet.recorded import cases, expected_of
from perfwatch.recording.recording import Record, Recording
from perfwatch.recording.session import Machine, Session
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.independence import certainty_of_a_hang
from perfwatch.triage.moving.progress import StepClock
from perfwatch.verdict import Evidence
from perfwatch_probes import readings as r
from tests.recorded import RECORDINGS, load_case

HUNG = [
    str(case.relative_to(RECORDINGS))
    for case in cases(RECORDINGS)
    if case.parent.name == "fires" and expected_of(case).state == "hung"
]
# Cases in which no rule caps the confidence, and what was read of each witness that they cite.
UNCAPPED = [
    "blocked_child/fires/blocked_child",
    "blocked_pipe/fires/stderr_that_an_actor_does_not_read",
    "deadlocked_locks/fires/producer_ended",
    "stalled_collective/fires/collector_that_reads_no_more",
    "stalled_collective/fires/stalled_collective-nccl",
    "stalled_collective/fires/stalled_collective-nccl-dead",
    "stalled_collective/fires/store_that_refuses",
    "stuck_worker/fires/two_locks_in_opposite_order",
    "waiting_for_input/fires/waiting_for_input",
]
READ_FROM: dict[str, type[r.Reading]] = {
    "stack": r.Stack,
    "steps": r.Steps,
    "thread": r.Thread,
    "syscall": r.Thread,
    "socket": r.Descriptor,
    "process": r.ProcessEnded,
    "nccl_ras": r.Communicator,
}
WITNESSES = ("thread", "syscall", "pipe", "stack", "gil", "steps", "socket", "collective")


def without(recording: Recording, *kinds: type[r.Reading]) -> Recording:
    """What would have been recorded if this had not been read."""
    return replace(recording, records=tuple(one for one in recording.records if type(one.reading) not in kinds))


@pytest.mark.parametrize("case", HUNG)
def test_whatever_is_not_read_no_hang_becomes_surer(case: str) -> None:
    """One kind of reading after the other is left out; the same cause is at most as sure, and without some of them less."""
    whole, at = load_case(RECORDINGS / case), expected_of(RECORDINGS / case).at
    full = diagnose(whole, at)
    less = [diagnose(without(whole, kind), at) for kind in {type(one.reading) for one in whole.records}]
    same = [one.confidence if one.cause == full.cause else 0.0 for one in less]

    assert max(same) <= full.confidence
    assert min(same) < full.confidence


@pytest.mark.parametrize("case", UNCAPPED)
def test_each_witness_that_is_cited_counts(case: str) -> None:
    """Without what it was read from, the same cause is less sure, or nothing is said."""
    whole, at = load_case(RECORDINGS / case), expected_of(RECORDINGS / case).at
    full = diagnose(whole, at)
    cited = {READ_FROM[one.witness] for one in full.evidence if one.witness in READ_FROM}
    flat = [kind.__name__ for kind in cited if diagnose(without(whole, kind), at).confidence >= full.confidence]

    assert full.confidence >= 0.95
    assert flat == []


def reads_an_empty_pipe() -> Recording:
    """A training thread that has read a pipe of its own for 90 seconds, told by its task, its stack and its steps."""
    wait = r.Wait(call="read", number=0, kind="read", fd=5, forever=True)
    line = (
        r.Frame(function="train", file="/w/train.py", line=20),
        r.Frame(function="<module>", file="/w/train.py", line=30),
    )
    process = r.Process(
        pid=100,
        parent_pid=1,
        start_ticks=1,
        name="python",
        command=("python", "train.py"),
        python=True,
        torch_loaded=True,
    )
    pipe = r.Descriptor(
        pid=100, fd=5, kind="pipe", target="pipe:[7]", inode=7, access="r", readers=(100,), writers=(100,)
    )
    records = [Record(0.0, 0.0, process), Record(1.0, 1.0, pipe)]
    for second in range(90):
        at, ago = float(second), second + 1.0
        task = r.Thread(
            pid=100,
            tid=100,
            name="python",
            state="S",
            cpu_seconds=5.0,
            run_seconds=5.0,
            voluntary_switches=50,
            ran_ago_seconds=ago,
            wait=wait,
        )
        steps = r.Steps(
            pid=100, tid=100, count=30, step_ago_seconds=ago, interval_seconds=() if second else (0.3,) * 30
        )
        stack = r.Stack(pid=100, tid=100, thread="MainThread", frames=line, samples=20, span_seconds=0.9)
        records += [Record(at, at, one) for one in (task, stack, steps)]
    session = Session(
        version="x",
        created=1e9,
        mode="run",
        machine=Machine(name="m", kernel="6", architecture="x86_64", cpus=8, memory_bytes=2**34),
        root_pids=(100,),
    )
    return Recording(session, tuple(records))


def test_a_blocked_pipe_is_less_sure_without_its_stack_or_its_steps_and_least_without_both() -> None:
    """The task's own files are one source: what they tell does not stand for the others."""
    whole = reads_an_empty_pipe()
    looks = [whole, without(whole, r.Stack), without(whole, r.Steps), without(whole, r.Stack, r.Steps)]

    told = [(verdict.cause, verdict.confidence) for verdict in map(diagnose, looks)]

    assert told == [("blocked_pipe", 0.98), ("blocked_pipe", 0.96), ("blocked_pipe", 0.96), ("blocked_pipe", 0.9)]


def test_fewer_witnesses_never_allow_more() -> None:
    """Of every set of witnesses, each one left out."""
    pieces = {name: Evidence(witness=name, entity="pid 1", claim="", observed="") for name in WITNESSES}
    for size in range(1, len(WITNESSES) + 1):
        for chosen in combinations(WITNESSES, size):
            sure = certainty_of_a_hang(pieces[name] for name in chosen)
            for left_out in chosen:
                assert certainty_of_a_hang(pieces[name] for name in chosen if name != left_out) <= sure


def test_steps_that_are_not_overdue_are_no_witness() -> None:
    """A step two seconds ago, where steps take a second, says nothing of a hang."""
    each = (1.0,) * 9
    clocks = [
        StepClock(count=9, ago_seconds=ago, intervals=each, advanced=9, usual=each, longest_seconds=1.0)
        for ago in (2.0, 6.0)
    ]

    assert [clock.late for clock in clocks] == [False, True]
