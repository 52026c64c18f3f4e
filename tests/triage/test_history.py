"""What is asked of a history again and again is worked out once, and anew as soon as anything has changed."""

from perfwatch.probes.readings import ProbeCall
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from tests.cards import load
from tests.sessions import session


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
