"""Text from the job cannot steer a terminal, and times read as people say them."""

import pytest

from perfwatch.text import clean, duration


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("train.py:9", "train.py:9"),
        ("modèle_学習.py", "modèle_学習.py"),
        ("\x1b[31mred\x1b]0;title\x07", "?[31mred?]0;title?"),
        ("two\nlines\tand\r", "two lines and "),
        ("safe\u202egnp.exe", "safe?gnp.exe"),
        ("\udcff broken utf-8", "? broken utf-8"),
        ("\x9b31m", "?31m"),
    ],
)
def test_control_characters_do_not_reach_the_terminal(text: str, shown: str) -> None:
    """Escape sequences, line ends, bidirectional overrides, bytes that are no text."""
    assert clean(text) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0.0 s"), (0.44, "0.4 s"), (9.96, "10.0 s"), (42.4, "42 s"), (99.4, "99 s"), (412.0, "6 min 52 s"),
        (3599.6, "1 h 00 min"), (11_100, "3 h 05 min"), (187_200, "2 d 4 h"), (None, "unknown"),
    ],
)  # fmt: skip
def test_a_duration_reads_as_people_say_it(seconds: float | None, shown: str) -> None:
    """Two units at most, none of them too fine."""
    assert duration(seconds) == shown
