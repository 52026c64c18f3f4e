"""The score of a gauntlet as text: every figure that is compared with a goal is on the screen, with how it was made."""

from io import StringIO

import msgspec

from perfwatch.gauntlet.report import GauntletReport
from perfwatch.gauntlet.score import Row, score
from perfwatch.report.console import console

RIGHT = Row(
    drill="stuck_worker",
    strength="loud",
    repeat=0,
    mode="attach",
    late_seconds=0.0,
    expected_state="hung",
    expected_causes=("stuck_worker",),
    state="hung",
    cause="stuck_worker",
    confidence=0.9,
    summary="worker 7 sleeps",
    seconds=6.5,
    session="/tmp/one",
)
FALSE = msgspec.structs.replace(
    RIGHT, drill="busy_save", expected_state="busy", expected_causes=("checkpointing",), session="/tmp/two"
)


def shown(*rows: Row, skipped: dict[str, str] | None = None) -> list[str]:
    """What is printed, line by line, without the spaces at the ends."""
    stream = StringIO()
    console(stream).print(GauntletReport(score(rows), skipped or {}, "1 x each, --mode attach"))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_the_summary_has_every_figure_that_has_a_goal() -> None:
    """One right, one false accusation."""
    lines = shown(RIGHT, FALSE)

    assert lines[-9:] == [
        "state right        1/2 (50.0%)",
        "cause right        1/2 (50.0%)",
        "macro-F1           0.333 over 2 causes",
        "culprit right      0/0",
        "false hung         1/2 (50.0%)",
        "confidently wrong  1/2 (50.0%)",
        "abstained          0/2 (0.0%)",
        "calibration error  0.450",
        "1 x each, --mode attach",
    ]


def test_a_confidently_wrong_verdict_is_shown_with_its_words_and_its_session() -> None:
    """Whoever mends the rule replays the session."""
    lines = shown(FALSE)
    place = lines.index("Confidently wrong: 1")

    assert lines[place + 1].startswith("  busy_save (loud #0): busy/checkpointing, said hung/stuck_worker (certain)")
    assert "    /tmp/two" in lines[place:]


def test_the_matrix_has_true_states_as_rows() -> None:
    """A dot is a zero: the eye finds what is off the diagonal."""
    lines = shown(RIGHT, FALSE)
    place = lines.index("States: what is true (rows), what was said (columns)")

    assert [line.split() for line in lines[place + 1 : place + 4]] == [["hung"], ["hung", "1"], ["busy", "1"]]


def test_a_skipped_drill_is_named_with_its_reason() -> None:
    """Nobody takes a missing row for a success."""
    assert "skipped blocked_storage: needs root" in shown(RIGHT, skipped={"blocked_storage": "needs root"})


def test_an_empty_gauntlet_says_so() -> None:
    """No figures without runs."""
    assert shown() == ["No drill has run.", "1 x each, --mode attach"]
