"""An error of ours is told once."""

from perfwatch.watching.failures import MOST_TOLD, Failures


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
