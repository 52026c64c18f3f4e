"""The arithmetic of a gauntlet, on rows made by hand."""

import msgspec
import pytest

from perfwatch.gauntlet.score import Row, score


def row(
    state: str | None = "hung",
    cause: str | None = "stuck_worker",
    confidence: float | None = 0.9,
    *,
    expected: str = "hung",
    causes: tuple[str, ...] = ("stuck_worker",),
    lookalike_of: str | None = None,
    seconds: float | None = 4.0,
    culprit_right: bool | None = None,
    broken: str | None = None,
    fault: str | None = None,
) -> Row:
    """Make one row; by default a right one."""
    return Row(
        drill="made",
        strength="loud",
        repeat=0,
        mode="attach",
        late_seconds=0.0,
        expected_state=expected,
        expected_causes=causes,
        lookalike_of=lookalike_of,
        state=state,
        cause=cause,
        confidence=confidence,
        seconds=seconds,
        culprit_right=culprit_right,
        broken=broken,
        fault=fault,
    )


def benign(state: str, cause: str | None, confidence: float = 0.9) -> Row:
    """A row of a program that is busy loading."""
    return row(state, cause, confidence, expected="busy", causes=("starting",), lookalike_of="stuck_worker")


def test_any_accepted_cause_is_right_and_counts_as_the_best_one() -> None:
    """A second accepted name is as right as the first."""
    result = score([row(cause="dead_worker", causes=("stuck_worker", "dead_worker"))])

    assert (result.right, result.causes[0].cause, result.causes[0].f1) == (1, "stuck_worker", 1.0)


def test_the_right_cause_in_the_wrong_state_is_wrong() -> None:
    """State and cause must both be right."""
    result = score([row(state="slow")])

    assert (result.state_right, result.right) == (0, 0)


def test_a_lookalike_without_named_causes_is_right_unless_it_gets_the_forbidden_name() -> None:
    """Where no cause is asked for, only ``lookalike_of`` is wrong."""
    good = row("busy", "starting", expected="busy", causes=(), lookalike_of="stuck_worker")
    bad = row("busy", "stuck_worker", expected="busy", causes=(), lookalike_of="stuck_worker")

    assert [good.right, bad.right] == [True, False]


def test_abstaining_is_neither_right_nor_confidently_wrong() -> None:
    """``inconclusive`` counts as an abstention, whatever its confidence says."""
    result = score([row("inconclusive", None, 0.95)])

    assert (result.right, len(result.abstentions), result.confidently_wrong, result.wrong) == (0, 1, (), ())


def test_a_benign_program_called_hung_is_a_false_hung() -> None:
    """Each false accusation of hanging is kept with its row."""
    wrong = benign("hung", "stuck_worker", 0.85)
    result = score([wrong, benign("busy", "starting")])

    assert (result.false_hung, result.confidently_wrong) == ((wrong,), (wrong,))


def test_a_wrong_verdict_below_the_bar_is_wrong_but_not_confidently() -> None:
    """0.8 is where confidence begins."""
    unsure, sure = row(cause="blocked_pipe", confidence=0.79), row(cause="blocked_pipe", confidence=0.8)
    result = score([unsure, sure])

    assert (result.wrong, result.confidently_wrong) == ((unsure,), (sure,))


def test_no_verdict_counts_as_wrong_and_a_broken_drill_as_nothing() -> None:
    """A fault of perfwatch is in the figures, a fault of the drill is not."""
    silent = row(None, None, None, seconds=None, fault="attach: exit code 1")
    result = score([silent, row(), row(broken="ended before its fault began")])

    assert (result.runs, result.right, result.wrong, len(result.broken)) == (2, 1, (silent,), 1)


def test_precision_recall_and_macro_f1_are_those_of_the_textbook() -> None:
    """Two of three stuck workers found, one called a pipe; one pipe found."""
    rows = [row(), row(), row(cause="blocked_pipe"), row(cause="blocked_pipe", causes=("blocked_pipe",))]
    result = score(rows)
    pipe, worker = result.causes

    assert (pipe.precision, pipe.recall) == (0.5, 1.0)
    assert worker.precision == 1.0
    assert worker.recall == pytest.approx(2 / 3)
    assert result.macro_f1 == pytest.approx((2 / 3 + 0.8) / 2)


def test_a_cause_that_was_never_named_has_no_precision() -> None:
    """Never named is not the same as named wrongly."""
    cause = score([row("inconclusive", None)]).causes[0]

    assert (cause.precision, cause.recall, cause.f1) == (None, 0.0, 0.0)


def test_states_are_counted_by_what_is_true_and_what_was_said() -> None:
    """The confusion matrix has a row for each true state."""
    result = score([row(), row("slow"), benign("healthy", None), row(None, None, None)])

    assert result.confusion == {"hung": {"hung": 1, "slow": 1, "no verdict": 1}, "busy": {"healthy": 1}}


def test_times_are_those_of_right_verdicts_by_patience_class() -> None:
    """A fast wrong answer does not improve the figures."""
    rows = [row(seconds=second) for second in (1.0, 2.0, 3.0)]
    rows += [row(cause="blocked_pipe", seconds=0.1), row(cause="stopped", causes=("stopped",), seconds=1.5)]
    decisive, temporal = score(rows).times

    assert (decisive.patience, decisive.p95_seconds) == ("decisive", 1.5)
    assert (temporal.patience, temporal.count, temporal.p50_seconds, temporal.max_seconds) == ("temporal", 3, 2.0, 3.0)


def test_a_drill_may_say_that_its_chain_ends_in_what_time_may_heal() -> None:
    """A collective that waits for a rank which naps is given the patience, though most of its kind are told in seconds."""
    stalled = row(cause="stalled_collective", causes=("stalled_collective",))

    assert (stalled.patience, msgspec.structs.replace(stalled, end="temporal").patience) == ("structural", "temporal")


def test_calibration_compares_what_was_claimed_with_what_was_right() -> None:
    """Two high, four certain and one of them wrong."""
    rows = [row()] * 3 + [row(cause="blocked_pipe")] + [row(confidence=0.85)] * 2
    result = score(rows)
    high, certain = result.reliability

    assert (high.level, high.count, high.accuracy) == ("high", 2, 1.0)
    assert (certain.level, certain.count, certain.accuracy) == ("certain", 4, 0.75)
    assert result.calibration_error == pytest.approx(2 / 6 * 0.2 + 4 / 6 * 0.2)


def test_abstentions_stay_out_of_the_calibration() -> None:
    """Only verdicts that were given claim anything."""
    assert score([row("inconclusive", None, 0.3)]).reliability == ()


def test_culprits_are_counted_where_there_is_one_to_name() -> None:
    """Rows without a culprit are left out of the share."""
    result = score([row(culprit_right=True), row(culprit_right=False), row(culprit_right=None)])

    assert (result.culprit_right, result.culprit_total) == (1, 2)


def test_an_empty_gauntlet_has_a_score() -> None:
    """Nothing run, nothing claimed."""
    result = score([])

    assert (result.runs, result.macro_f1, result.calibration_error, result.times) == (0, 0.0, 0.0, ())
