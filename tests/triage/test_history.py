"""What is asked of a history again and again is worked out once, and anew as soon as anything has changed."""

from perfwatch.triage.history import History
from tests.cards import load


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
