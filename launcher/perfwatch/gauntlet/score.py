"""The score of a gauntlet: arithmetic on finished rows. No clock, no file, no process.

A ``Row`` is one drill, once, with the expected and the actual verdict. ``score`` turns rows into the figures in tests/RESULTS.md. Two
kinds of failure are kept apart. ``fault`` means that perfwatch gave no verdict; it counts as wrong. ``broken`` means that the drill
failed before its fault began; it is shown and not counted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from perfwatch.triage.history import quantile
from perfwatch.verdict import Level

CONFIDENT = Level.HIGH  # a wrong verdict from here on is "confidently wrong": the worst thing that perfwatch can say
NO_VERDICT = "no verdict"

# How long a cause must be watched before it may be named, by the end of its wait chain (see the patience of triage).
# Where the chains of one cause can end either way, the commoner class stands here, and a drill of the other kind says so.
DECISIVE = frozenset({"dead_worker", "stopped", "waiting_for_input"})
STRUCTURAL = frozenset(
    {"blocked_pipe", "deadlocked_locks", "mismatched_collective", "stalled_collective", "wedged_collective"}
)
PATIENCE_CLASSES = ("decisive", "structural", "temporal", "slow", "benign")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One drill, once."""

    drill: str
    strength: str
    repeat: int
    mode: str  # attach or run
    late_seconds: float  # attached so long after the onset
    expected_state: str
    expected_causes: tuple[str, ...]  # any of them is right; the first is the best name
    lookalike_of: str | None = None  # the cause that must not be named
    end: str = ""  # how its wait chain ends, where that decides on another patience than its cause's own
    state: str | None = None
    cause: str | None = None
    confidence: float | None = None
    summary: str = ""
    culprit_right: bool | None = None  # None: no culprit is expected, or nothing was decided
    seconds: float | None = None  # from the later of onset and attach to the printed verdict
    decided_seconds: float | None = None  # the same on the verdict's own timeline, without start-up
    exit_code: int | None = None
    session: str = ""
    fault: str | None = None
    broken: str | None = None

    @property
    def key(self) -> tuple[str, str, int, str, float]:
        """What tells one row of a gauntlet from another: a resumed gauntlet leaves out the keys that it has."""
        return (self.drill, self.strength, self.repeat, self.mode, self.late_seconds)

    @property
    def state_right(self) -> bool:
        """The state is the expected one."""
        return self.state == self.expected_state

    @property
    def right(self) -> bool:
        """The state is right and the cause is one of those accepted (any but ``lookalike_of`` where none is listed)."""
        if not self.state_right:
            return False
        if self.expected_causes:
            return self.cause in self.expected_causes
        return self.cause is None or self.cause != self.lookalike_of

    @property
    def abstained(self) -> bool:
        """Perfwatch said that it cannot tell."""
        return self.state == "inconclusive" and self.expected_state != "inconclusive"

    @property
    def level(self) -> Level | None:
        """The level of its confidence; None if there is no verdict."""
        return None if self.confidence is None or self.state in (None, "inconclusive") else Level.of(self.confidence)

    @property
    def confidently_wrong(self) -> bool:
        """True if the verdict is false and sounds sure."""
        return not self.right and self.level is not None and self.level >= CONFIDENT

    @property
    def expected_label(self) -> str:
        """The name under which this row counts: its best cause, else its state."""
        return self.expected_causes[0] if self.expected_causes else self.expected_state

    @property
    def given_label(self) -> str:
        """The name that was given; every accepted name counts as the best one."""
        return self.expected_label if self.right else self.cause or self.state or NO_VERDICT

    @property
    def patience(self) -> str:
        """Which promise about time-to-verdict holds for this row (one of PATIENCE_CLASSES)."""
        if self.expected_state in ("slow",):
            return "slow"
        if self.expected_state in ("busy", "healthy"):
            return "benign"
        if self.end:
            return self.end
        if self.expected_state == "gone" or self.expected_label in DECISIVE:
            return "decisive"
        return "structural" if self.expected_label in STRUCTURAL else "temporal"


class CauseScore(msgspec.Struct, frozen=True, kw_only=True):
    """How often one cause was named when it was there, and there when it was named."""

    cause: str
    total: int
    right: int
    precision: float | None  # None: never named
    recall: float
    f1: float


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Time to verdict of one patience class, seconds."""

    patience: str
    count: int
    p50_seconds: float
    p95_seconds: float
    max_seconds: float


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the reliability table: the verdicts of one level of confidence."""

    level: str
    count: int
    confidence: float  # the share that should be right
    accuracy: float  # the share that is right


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a gauntlet says about perfwatch. Shares are of ``runs``, which leaves out broken drills."""

    runs: int
    state_right: int
    right: int
    culprit_total: int
    culprit_right: int
    abstentions: tuple[Row, ...]
    false_hung: tuple[Row, ...]  # something that was not hung was called hung
    confidently_wrong: tuple[Row, ...]
    wrong: tuple[Row, ...]  # every other row that is not right
    broken: tuple[Row, ...]
    confusion: dict[str, dict[str, int]]  # expected state -> given state -> runs
    causes: tuple[CauseScore, ...]
    macro_f1: float
    times: tuple[Times, ...]
    reliability: tuple[Bin, ...]
    calibration_error: float  # expected calibration error over the verdicts that were given


def score(rows: Iterable[Row]) -> Score:
    """Turn the rows of a gauntlet, in any order, into its figures."""
    everything = tuple(rows)
    runs = tuple(row for row in everything if row.broken is None)
    confusion: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in runs:
        confusion[row.expected_state][row.state or NO_VERDICT] += 1
    causes = _causes(runs)
    reliability = _reliability(runs)
    answered = sum(line.count for line in reliability)
    judged = [row for row in runs if row.culprit_right is not None]
    return Score(
        runs=len(runs),
        state_right=sum(row.state_right for row in runs),
        right=sum(row.right for row in runs),
        culprit_total=len(judged),
        culprit_right=sum(bool(row.culprit_right) for row in judged),
        abstentions=tuple(row for row in runs if row.abstained),
        false_hung=tuple(row for row in runs if row.state == "hung" and row.expected_state != "hung"),
        confidently_wrong=tuple(row for row in runs if row.confidently_wrong),
        wrong=tuple(row for row in runs if not (row.right or row.abstained or row.confidently_wrong)),
        broken=tuple(row for row in everything if row.broken is not None),
        confusion={expected: dict(given) for expected, given in confusion.items()},
        causes=causes,
        macro_f1=sum(cause.f1 for cause in causes) / len(causes) if causes else 0.0,
        times=_times(runs),
        reliability=reliability,
        calibration_error=sum(line.count * abs(line.accuracy - line.confidence) for line in reliability) / answered
        if answered
        else 0.0,
    )


def _causes(runs: Sequence[Row]) -> tuple[CauseScore, ...]:
    expected = Counter(row.expected_label for row in runs)
    given = Counter(row.given_label for row in runs)
    both = Counter(row.expected_label for row in runs if row.right)
    lines = []
    for cause, total in sorted(expected.items()):
        precision = both[cause] / given[cause] if given[cause] else None
        recall = both[cause] / total
        f1 = 2 * precision * recall / (precision + recall) if precision and recall else 0.0
        lines.append(CauseScore(cause=cause, total=total, right=both[cause], precision=precision, recall=recall, f1=f1))
    return tuple(lines)


def _times(runs: Sequence[Row]) -> tuple[Times, ...]:
    lines = []
    for patience in PATIENCE_CLASSES:
        seconds = [row.seconds for row in runs if row.patience == patience and row.right and row.seconds is not None]
        if seconds:
            lines.append(
                Times(
                    patience=patience,
                    count=len(seconds),
                    p50_seconds=quantile(seconds, 0.50) or 0.0,
                    p95_seconds=quantile(seconds, 0.95) or 0.0,
                    max_seconds=max(seconds),
                )
            )
    return tuple(lines)


def _reliability(runs: Sequence[Row]) -> tuple[Bin, ...]:
    lines = []
    for level in Level:
        inside = [row for row in runs if row.level is level]
        if inside:
            accuracy = sum(row.right for row in inside) / len(inside)
            lines.append(Bin(level=level.word, count=len(inside), confidence=float(level), accuracy=accuracy))
    return tuple(lines)
