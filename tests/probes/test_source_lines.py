"""Which line of a program is meant by a number."""

import pytest

from perfwatch_probes.source import describe


@pytest.mark.parametrize("mark", ["\f", "\x0b", "\x1c", "\x85", "\u2028"])
def test_lines_are_counted_as_python_counts_them(mark: str) -> None:
    """A form feed or a separator of Unicode's ends a line of text, but none of a program."""
    reading = describe(f"# {mark}\ntime.sleep(1)\n", "/t.py", 2)

    assert (reading.text, reading.calls) == ("time.sleep(1)", ("time.sleep",))


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_lines_may_end_as_elsewhere(ending: str) -> None:
    """To Python they are the same."""
    reading = describe(f"import time{ending}time.sleep(1){ending}", "/t.py", 2)

    assert (reading.text, reading.calls) == ("time.sleep(1)", ("time.sleep",))
