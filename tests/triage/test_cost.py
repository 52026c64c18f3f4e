"""What a judgement costs, and what of it is worked out once."""

import sys
from collections.abc import Callable

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import ObserverCost, Verdict
from perfwatch_probes.readings import Frame, Operation, ProbeCall, Process, RecordedGroup, Stack, Steps, Thread, Wait
from tests.cards import load
from tests.sessions import session

# What a judgement costs grows with the job, and no faster: counted in calls of functions, which are the same on any machine.


RANKS = 48
TENSOR = "/usr/lib/python3/site-packages/torch/_tensor.py"
IN_CALL = Frame("all_reduce", "/usr/lib/python3/site-packages/torch/distributed/distributed_c10d.py", 2800)
LOCK = Wait(call="futex", number=202, kind="futex", forever=True)
IN_PROPORTION = 2.5  # for twice as much; what is compared pair by pair costs four times


def calls(work: Callable[[], object]) -> int:
    """How many functions it calls; of what C does, one for each call into it."""
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def stalled(ranks: int) -> Case:
    """Rank 0 has not come to the call that the others are in; each one's recorder is read a little later than the last."""
    history, members = History(), tuple(range(ranks))
    for rank in members:
        pid, sequence = 1000 + rank, 6 if rank else 5
        history.add(0.0, Process(pid=pid, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True, rank=rank, world_size=ranks))  # fmt: skip
        for at in (90.0, 95.0, 99.0):
            history.add(at, Thread(pid=pid, tid=pid, name="python", state="S", cpu_seconds=1.0, run_seconds=1.0,
                                   voluntary_switches=3, ran_ago_seconds=at - 50.0, wait=LOCK))  # fmt: skip
            frames = ((IN_CALL,) if rank else ()) + (Frame("main", "/home/u/train.py", 20),)
            history.add(at, Stack(pid=pid, tid=pid, thread="MainThread", frames=frames, samples=8, span_seconds=0.4))
        call = Operation(name="all_reduce", sequence=sequence, order=sequence, state="scheduled", point_to_point=False)
        for at in (90.0, 95.0):
            history.add(at + rank * 1e-4, RecordedGroup(pid=pid, rank=rank, group="0", members=members, enqueued=sequence,
                                                        completed=sequence - 1, operations=(call,), origin="pipe"))  # fmt: skip
    history.at = 99.5
    return Case(history, session(root_pids=(1000,)))


def test_who_waits_for_whom_is_found_in_proportion_to_the_ranks() -> None:
    """Not for each rank anew what holds for all that are in the same call."""
    small, large = stalled(RANKS), stalled(2 * RANKS)

    cost = [calls(lambda case=case: judge(case)) for case in (small, large)]  # type: ignore[misc]

    verdict = judge(large)
    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert [one.rank for one in verdict.culprits] == [0]
    assert cost[1] < IN_PROPORTION * cost[0]


def stepping(ranks: int) -> Case:
    """All ranks compute, each on a CPU half of the time, and their agents count steps."""
    history = History()
    backward, forward = Frame("backward", TENSOR, 500), Frame("forward", "/home/u/model.py", 5)
    for rank in range(ranks):
        pid = 1000 + rank
        history.add(0.0, Process(pid=pid, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"),
                                 python=True, torch_loaded=True, rank=rank, world_size=ranks))  # fmt: skip
        for second in range(8):
            busy = 0.6 * second
            frames = (backward if second % 2 else forward, Frame("main", "/home/u/train.py", 20))
            history.add(
                second, Steps(pid=pid, tid=pid, count=5 * second, step_ago_seconds=0.05, interval_seconds=(0.2,) * 5)
            )
            history.add(second, Thread(pid=pid, tid=pid, name="python", state="R", cpu_seconds=busy, run_seconds=busy,
                                       run_delay_seconds=0.3 * second, voluntary_switches=20 * second))  # fmt: skip
            history.add(
                second, Stack(pid=pid, tid=pid, thread="MainThread", frames=frames, samples=8, span_seconds=0.4)
            )
    history.at = 7.5
    return Case(history, session(root_pids=(1000,)))


def test_a_job_that_goes_on_is_judged_in_proportion_to_its_ranks() -> None:
    """By all rules: what holds for the job, how patient and what crowds its CPUs, is not made anew for each rank."""
    small, large = stepping(2 * RANKS), stepping(4 * RANKS)

    cost = [calls(lambda case=case: judge(case)) for case in (small, large)]  # type: ignore[misc]

    assert judge(large).missing == judge(small).missing  # no rule failed on the way
    assert cost[1] < IN_PROPORTION * cost[0]


def awaiting_a_key(ranks: int) -> Case:
    """Every rank waits for a key of the store, each with a child; beside rank 0 a thread computes, which may set it."""
    history = History()
    store = Frame("rendezvous", "/usr/lib/python3/site-packages/torch/distributed/rendezvous.py", 200)
    for rank in range(ranks):
        pid = 1000 + rank
        for one, parent in ((pid, 1), (10_000 + rank, pid)):
            history.add(0.0, Process(pid=one, start_ticks=1 + (one > 9_999), parent_pid=parent, name="python",
                                     command=("python", "train.py"), python=True, torch_loaded=one == pid,
                                     rank=rank if one == pid else None, world_size=ranks))  # fmt: skip
        for second in range(8):
            history.add(second, Thread(pid=pid, tid=pid, name="python", state="S", cpu_seconds=1.0, run_seconds=1.0,
                                       voluntary_switches=3, ran_ago_seconds=50.0 + second, wait=LOCK))  # fmt: skip
            history.add(second, Stack(pid=pid, tid=pid, thread="MainThread", frames=(store, Frame("main", "/home/u/t.py", 9)),
                                      samples=8, span_seconds=0.4))  # fmt: skip
            if rank == 0:
                history.add(second, Thread(pid=pid, tid=77, name="python", state="R", cpu_seconds=second, run_seconds=second))  # fmt: skip
    history.at = 7.5
    return Case(history, session(root_pids=(1000,)))


def test_ranks_that_all_wait_for_a_key_are_judged_in_proportion_to_their_number() -> None:
    """Who works in any of them, and may set it, is found once for all."""
    small, large = awaiting_a_key(2 * RANKS), awaiting_a_key(4 * RANKS)

    cost = [calls(lambda case=case: judge(case)) for case in (small, large)]  # type: ignore[misc]

    assert judge(large).cause == "waiting_on_work"
    assert cost[1] < IN_PROPORTION * cost[0]


def watched(seconds: int) -> Case:
    """A job of four ranks after so many seconds of looks at it."""
    history = stepping(4).history
    for second in range(seconds):
        for pid in range(1000, 1004):
            look = ProbeCall(
                probe="thread", entity=f"pid {pid}", duration_seconds=0.001, cpu_seconds=0.001, outcome="ok"
            )
            history.add(float(second - seconds), look)
    return Case(history, session(root_pids=(1000,)))


def test_what_watching_costs_now_is_found_without_a_look_at_all_that_was() -> None:
    """It is asked for each rank, in each judgement."""
    short, long = watched(600), watched(2400)

    assert judge(long).cause == judge(short).cause
    assert calls(lambda: judge(long)) < 1.2 * calls(lambda: judge(short))


def test_a_verdict_says_what_all_looks_cost_and_how_many_stacks_they_brought() -> None:
    """Of py-spy, what it cost; a dump that was refused brought none."""
    history = History()
    for at, probe, entity, outcome in (
        (1.0, "stacks", "pid 700", "ok"),
        (2.0, "stacks", "pid 700", "unavailable"),
        (2.0, "stacks", "py-spy", "ok"),
        (3.0, "thread", "pid 700", "ok"),
    ):
        call = ProbeCall(probe=probe, entity=entity, duration_seconds=0.1, cpu_seconds=0.25, outcome=outcome)
        history.add(at, call)
    history.at = 4.0

    assert judge(Case(history, session())).observer_cost == ObserverCost(cpu_seconds=1.0, stack_dumps=1)


# What is asked of a history again and again is worked out once, and anew as soon as anything has changed.


TRAIN, THREADS = "/app/train.py", "/usr/lib/python3.11/threading.py"
MAIN = (Frame("take", TRAIN, 20), Frame("<module>", TRAIN, 50))
HELPER = (Frame("give", TRAIN, 44), Frame("run", THREADS, 1012), Frame("_bootstrap", THREADS, 1032))
ENDED = 150


def test_an_answer_is_kept_until_a_reading_comes_or_time_goes_on() -> None:
    """Thirty rules ask for the same card in one judgement."""
    history, asked = History(), []

    def ask() -> int:
        return history.once("question", lambda: asked.append(1) or len(asked))  # type: ignore[func-returns-value]

    assert (ask(), ask()) == (1, 1)
    history.add(0.0, load("idle_context")[0])
    assert ask() == 2
    history.at = 1.0
    assert (ask(), ask()) == (3, 3)
    history.forget(0.5)
    assert ask() == 4


def test_two_questions_have_two_answers() -> None:
    """One for each card and window."""
    history = History()

    assert [history.once(name, lambda name=name: name) for name in ("a", "b")] == ["a", "b"]  # type: ignore[misc]


def test_what_looking_cost_is_told_whole_when_the_single_calls_are_forgotten() -> None:
    """A watch of days would otherwise say what the last ten minutes cost."""
    calls = [
        ProbeCall(probe="usage", entity="pid 1", duration_seconds=0.1, cpu_seconds=0.25, outcome="ok"),
        ProbeCall(probe="stacks", entity="pid 1", duration_seconds=0.1, cpu_seconds=0.5, outcome="ok"),
        ProbeCall(probe="stacks", entity="pid 1", duration_seconds=0.1, outcome="ok", target_paused_seconds=0.2),
        ProbeCall(probe="stacks", entity="pid 1", duration_seconds=0.1, outcome="unavailable"),
    ]
    history = History()
    for at, call in enumerate(calls):
        history.add(at, call)
    history.at = 1000.0
    history.forget(900.0)
    history.drop(lambda kind, key, at: True)

    cost = judge(Case(history, session())).observer_cost

    assert (cost.cpu_seconds, cost.stack_dumps, cost.target_paused_ms) == (0.75, 2, 200.0)


def test_of_a_kind_only_the_last_seconds_are_given_where_so_asked() -> None:
    """In order of time, whatever entity they are about."""
    history = History()
    for at, probe in ((1.0, "thread"), (8.0, "usage"), (9.0, "thread"), (9.5, "usage")):
        history.add(at, ProbeCall(probe=probe, entity="job", duration_seconds=0.1, outcome="ok"))
    history.at = 10.0

    assert [seen.at for seen in history.every(ProbeCall)] == [1.0, 8.0, 9.0, 9.5]
    assert [seen.at for seen in history.every(ProbeCall, seconds=2.0)] == [8.0, 9.0, 9.5]


def with_an_ended_thread(history: History) -> History:
    """A thread of an earlier epoch, and what was let go of once it was long gone."""
    history.add(1.0, Stack(pid=100, tid=ENDED, frames=MAIN))
    history.add(1.0, Thread(pid=100, tid=ENDED, name="pin", state="X", cpu_seconds=0.0))
    history.drop(lambda kind, key, at: key == (100, ENDED))
    return history


def test_who_was_let_go_of_is_found_under_no_pid() -> None:
    """And once only, when a later thread gets its number."""
    history = with_an_ended_thread(History())

    assert (history.of(Stack, 100), history.entities(Stack)) == ([], [])

    history.add(2.0, Stack(pid=100, tid=ENDED, frames=MAIN))
    assert history.of(Stack, 100) == [(100, ENDED)]


def deadlocked(history: History) -> Verdict:
    """Two threads that wait for each other's lock, for half a minute."""
    lock = Wait(call="futex", number=202, kind="futex", forever=True)
    history.add(0.0, Process(pid=100, start_ticks=1, parent_pid=1, name="python", command=("python", "train.py"),
                             python=True, torch_loaded=True))  # fmt: skip
    for at in range(3000, 3030):
        for tid, frames in ((100, MAIN), (101, HELPER)):
            history.add(at, Thread(pid=100, tid=tid, name="python", state="S", cpu_seconds=5.0, run_seconds=5.0,
                                   voluntary_switches=50, ran_ago_seconds=at - 2990.0, wait=lock))  # fmt: skip
            history.add(at, Stack(pid=100, tid=tid, frames=frames, samples=20, span_seconds=1.0))
    history.at = 3029.5
    return judge(Case(history, session(root_pids=(100,))))


def test_a_deadlock_is_told_alike_when_other_threads_have_ended_long_before() -> None:
    """A loader's pin-memory thread ends with each epoch: it neither moves nor may it be looked for."""
    verdict = deadlocked(with_an_ended_thread(History()))

    assert (verdict.state, verdict.cause) == ("hung", "deadlocked_locks")
    assert verdict == deadlocked(History())
