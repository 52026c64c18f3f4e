"""Logs of dead jobs as people post them, and of jobs that only look dead: a score over all of them, which may not fall.

Each was rebuilt from a report of a bug (the errors as the libraries print them, the rest in words of our own), and what ended it was
written down from the report's own resolution before perfwatch read it. ``wild.txt.xz`` has the set, the name of the end (``none``: the job
is well, or nothing tells of an end), the report and the text of each, in which ``\\r`` stands for a carriage return.

What the sets scored when they were new is in tests/RESULTS.md. Here they guard what they taught.
"""

import lzma
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.autopsy.left_files import of_log

WILD = Path(__file__).parent / "wild.txt.xz"
# A finished job whose worker gets SIGTERM is told as terminated, and one that goes on with a loss of NaN as ended by that.
LEAST_F1, MOST_FALSE_ALARMS = 0.99, 2
LEAST_LOGS = 477


def logs() -> Iterator[tuple[str, str]]:
    """What ended each, and its text."""
    for entry in re.split(r"(?m)^=== ", lzma.decompress(WILD.read_bytes()).decode())[1:]:
        head, _, text = entry.partition("\n")
        yield head.split(" ")[1], text.replace("\\r", "\r")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """Of each log what ended it, and what autopsy says."""
    place = tmp_path_factory.mktemp("wild")
    return [(end, of_log(place, text).sub_cause or "none") for end, text in logs()]


def test_ends_of_logs_from_the_wild_are_named(told: list[tuple[str, str]]) -> None:
    """Macro-F1 over the names: each counts the same, however many logs it has."""
    dead = [pair for pair in told if pair[0] != "none"]
    scores = []
    for name in {end for end, _ in dead}:
        right = sum(end == said == name for end, said in dead)
        scores.append(2 * right / (sum(end == name for end, _ in dead) + sum(said == name for _, said in dead)))

    assert len(dead) >= LEAST_LOGS
    assert sum(scores) / len(scores) >= LEAST_F1, [pair for pair in dead if pair[0] != pair[1]]


def test_jobs_that_are_well_are_not_called_dead(told: list[tuple[str, str]]) -> None:
    """Warnings that look like errors, retried downloads, a noisy teardown."""
    said_of_well = [said for end, said in told if end == "none"]

    assert sum(said != "none" for said in said_of_well) <= MOST_FALSE_ALARMS
