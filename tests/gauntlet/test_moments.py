"""The committed verdicts of every moment, and the report of what a change does to them."""

import pytest

from perfwatch.gauntlet.moments import MOMENTS, Moment, differences, kind_of, level, parse, text_of
from perfwatch.gauntlet.recorded import cases
from tests.recorded import RECORDINGS

STARTS = Moment("inconclusive")
HUNG = Moment("hung", "stuck_worker", "0.95", "read_shard")
SLOW = Moment("slow", "straggling_rank", "0.80", "work on it")
CASE = "stuck_worker/fires/stuck_worker"


def suspicion(seconds: str, cause: str = "stuck_worker") -> Moment:
    """It may be hung, and that is decided in so many seconds."""
    return Moment("inconclusive", "-", "0.50", "read_shard", cause, seconds)


BEFORE = {CASE: (STARTS, STARTS, suspicion("4.0"), suspicion("2.0"), HUNG), "slow": (SLOW,)}


def test_a_text_has_a_line_per_run_of_equal_verdicts_and_is_read_back() -> None:
    """The seconds of a suspicion follow one after the other."""
    text = text_of(BEFORE)

    assert text.splitlines() == [
        "slow",
        "    1     slow  straggling_rank  0.80  work on it",
        CASE,
        "    1-2   inconclusive",
        "    3-4   inconclusive  -  0.50  read_shard  stuck_worker  4.0 2.0",
        "    5     hung  stuck_worker  0.95  read_shard",
    ]
    assert parse(text) == BEFORE


def test_nothing_is_reported_where_nothing_changed() -> None:
    """The check passes."""
    assert differences(BEFORE, BEFORE) == ""


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (HUNG, Moment("slow", "stuck_worker", "0.95", "read_shard"), "state changed"),
        (HUNG, Moment("hung", "dead_worker", "0.95", "read_shard"), "cause changed"),
        (suspicion("4.0"), suspicion("4.0", "dead_worker"), "cause changed"),
        (HUNG, Moment("hung", "stuck_worker", "0.80", "read_shard"), "level"),
        (HUNG, Moment("hung", "stuck_worker", "0.80", "main"), "culprit"),
        (HUNG, suspicion("4.0"), "later"),
        (suspicion("4.0"), HUNG, "sooner"),
        (suspicion("4.0"), suspicion("14.0"), "later"),
        (suspicion("4.0"), suspicion("0.5"), "sooner"),
        (STARTS, suspicion("4.0"), "cause changed"),
        (HUNG, HUNG, None),
    ],
)
def test_a_change_is_counted_as_one_kind(old: Moment, new: Moment, kind: str | None) -> None:
    """A hang that is named after all comes later or sooner; anything else that changed is another judgement."""
    assert kind_of(old, new) == kind


def test_a_report_counts_each_kind_and_lists_its_cases() -> None:
    """Consecutive moments that changed in the same way share a line."""
    after = {CASE: (STARTS, HUNG, HUNG, HUNG, HUNG), "new": (STARTS,)}

    assert differences(BEFORE, after).splitlines() == [
        "     1 case added",
        "     1 case removed",
        "     1 state changed",
        "     2 sooner",
        "",
        "case added",
        "  new",
        "    1     inconclusive",
        "",
        "case removed",
        "  slow",
        "    1     slow  straggling_rank  0.80  work on it",
        "",
        "state changed",
        f"  {CASE}",
        "    2     inconclusive  ->  hung  stuck_worker  0.95  read_shard",
        "",
        "sooner",
        f"  {CASE}",
        "    3     inconclusive  -  0.50  read_shard  stuck_worker  4.0  ->  hung  stuck_worker  0.95  read_shard",
        "    4     inconclusive  -  0.50  read_shard  stuck_worker  2.0  ->  hung  stuck_worker  0.95  read_shard",
    ]


@pytest.mark.parametrize(
    ("confidence", "text"),
    [(0.0, "-"), (0.3, "0.50"), (0.6, "0.65"), (0.79, "0.65"), (0.8, "0.80"), (0.9, "0.95"), (1.0, "0.95")],
)
def test_a_confidence_is_the_one_of_four_levels(confidence: float, text: str) -> None:
    """Nothing claimed has no level."""
    assert level(confidence) == text


def test_the_baseline_has_every_case_at_every_moment() -> None:
    """Run scripts/accept --prefixes after a case was added."""
    text = (RECORDINGS / "moments.txt").read_text()
    baseline = parse(text)

    assert list(baseline) == [str(case.relative_to(RECORDINGS)) for case in cases(RECORDINGS)]
    assert {len(moments) for moments in baseline.values()} == {MOMENTS}
    assert text_of(baseline) == text
