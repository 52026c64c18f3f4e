"""Lengths of time in a sentence are read at 3 a.m.: no powers of ten."""

import pytest

from perfwatch.text import short_time


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.0, "0 us"),
        (0.000412, "412 us"),
        (0.0382, "38.2 ms"),
        (0.9996, "1,000 ms"),
        (1.5, "1.5 s"),
        (99.97, "100 s"),
        (3600.0, "3,600 s"),
    ],
)
def test_a_short_time_has_three_figures_and_no_power_of_ten(seconds: float, written: str) -> None:
    """From microseconds to hours."""
    assert short_time(seconds) == written
