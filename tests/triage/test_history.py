"""What is asked of a history again and again is worked out once, and anew as soon as anything has changed."""

from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Frame, ProbeCall, Process, Stack, Thread, Wait
from tests.cards import load
from tests.sessions import session

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
