"""The verdicts of recorded cases at 13 moments of their lives, as text that is committed, and how two such texts differ.

A moment is a thirteenth of the time from the beginning of a recording to its end, so that it does not depend on how densely
the recording was read. Each case has a line per run of equal verdicts: moments, state, cause, level of confidence, culprit,
and for a suspicion the suspected cause and, for each moment, the seconds until it is decided. Columns are two spaces apart, ``-`` is empty.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import msgspec

from perfwatch.gauntlet.recorded import blamed, load_case
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Level, Verdict

T = TypeVar("T")

MOMENTS = 13
KINDS = ("case added", "case removed", "state changed", "cause changed", "later", "sooner", "culprit", "level")
EMPTY, GAP = "-", "  "


class Moment(msgspec.Struct, frozen=True):
    """What a verdict comes down to."""

    state: str
    cause: str = EMPTY
    level: str = EMPTY
    culprit: str = EMPTY
    suspect: str = EMPTY
    decides_in: str = EMPTY  # seconds

    @classmethod
    def of(cls, verdict: Verdict) -> "Moment":
        """The moment of a verdict."""
        suspect = verdict.suspect
        return cls(
            verdict.state,
            verdict.cause or EMPTY,
            level(verdict.confidence),
            blamed(verdict) or EMPTY,
            suspect.cause if suspect else EMPTY,
            f"{suspect.decides_in_seconds:.1f}" if suspect else EMPTY,
        )

    def __str__(self) -> str:
        """Its columns, without empty ones at the end."""
        return _columns(msgspec.structs.astuple(self))


Verdicts = Mapping[str, tuple[Moment, ...]]  # by the name of the case, a moment each


def level(confidence: float) -> str:
    """The level of a confidence as a number; empty if nothing is claimed."""
    return f"{Level.of(confidence):.2f}" if confidence > 0.0 else EMPTY


def moments_of(case: Path) -> tuple[Moment, ...]:
    """Judge a case at each of its moments."""
    whole = load_case(case)
    times = [whole.end * number / MOMENTS for number in range(1, MOMENTS + 1)]
    return tuple(Moment.of(diagnose(whole.until(at), at)) for at in times)


def text_of(verdicts: Verdicts) -> str:
    """The text of all cases, in order of their names."""
    return "".join(f"{name}\n{_lines(verdicts[name])}" for name in sorted(verdicts))


def parse(text: str) -> Verdicts:
    """The cases of a text."""
    verdicts: dict[str, list[Moment]] = {}
    moments: list[Moment] = []
    for line in text.splitlines():
        if not line.startswith(" "):
            moments = verdicts.setdefault(line, [])
            continue
        numbers, _, columns = line.strip().partition(" ")
        first, _, last = numbers.partition("-")
        said = Moment(*columns.strip().split(GAP))
        seconds = said.decides_in.split()
        for number in range(int(last or first) - int(first) + 1):
            moments.append(msgspec.structs.replace(said, decides_in=seconds[min(number, len(seconds) - 1)]))
    return {name: tuple(moments) for name, moments in verdicts.items()}


def differences(before: Verdicts, after: Verdicts) -> str:
    """A count per kind of change, then the cases of each kind with what was and what is; empty where nothing changed.

    A verdict that changes in several ways counts once, as the first of KINDS. Later and sooner are about the same hang, which
    is suspected instead of named, or named instead of suspected, or decided in more or fewer seconds.
    """
    changes: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    counts: Counter[str] = Counter()
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            kind, told = ("case removed", before) if name in before else ("case added", after)
            changes[kind][name] = _lines(told[name])
            counts[kind] += 1
            continue
        pairs = list(zip(before[name], after[name], strict=True))
        kinds = [kind_of(old, new) for old, new in pairs]
        for kind in {one for one in kinds if one is not None}:
            shown = [f"{old}  ->  {new}" if one == kind else "" for one, (old, new) in zip(kinds, pairs, strict=True)]
            changes[kind][name] = "".join(_numbered(text, run) for text, run in _runs(shown) if text)
            counts[kind] += kinds.count(kind)
    counted = "".join(f"{counts[kind]:6} {kind}\n" for kind in KINDS if counts[kind])
    listed = (
        f"\n{kind}\n" + "".join(f"  {name}\n{lines}" for name, lines in changes[kind].items())
        for kind in KINDS
        if changes[kind]
    )
    return counted + "".join(listed)


def kind_of(old: Moment, new: Moment) -> str | None:
    """Which of KINDS a change is; None for no change."""
    if old == new:
        return None
    if old.cause != EMPTY and new.suspect == old.cause:
        return "later"
    if new.cause != EMPTY and old.suspect == new.cause:
        return "sooner"
    if old.state != new.state:
        return "state changed"
    if (old.cause, old.suspect) != (new.cause, new.suspect):
        return "cause changed"
    if old.decides_in != new.decides_in:
        return "later" if float(new.decides_in) > float(old.decides_in) else "sooner"
    return "culprit" if old.culprit != new.culprit else "level"


def _lines(moments: Sequence[Moment]) -> str:
    """A line per run of moments that differ at most in the seconds of a suspicion, which follow one after the other."""
    lines, seconds = [], [moment.decides_in for moment in moments]
    for said, (first, last) in _runs([msgspec.structs.replace(moment, decides_in=EMPTY) for moment in moments]):
        decides_in = " ".join(seconds[first - 1 : last]) if said.suspect != EMPTY else EMPTY
        lines.append(_numbered(str(msgspec.structs.replace(said, decides_in=decides_in)), (first, last)))
    return "".join(lines)


def _numbered(text: str, run: tuple[int, int]) -> str:
    first, last = run
    return f"    {f'{first}-{last}' if last > first else first:<5} {text}\n"


def _columns(values: Sequence[str]) -> str:
    filled = max(number for number, value in enumerate(values, 1) if value != EMPTY)
    return GAP.join(values[:filled])


def _runs(values: Iterable[T]) -> Iterator[tuple[T, tuple[int, int]]]:
    """Runs of equal values with the numbers of their first and last moments."""
    first = 1
    for value, run in groupby(values):
        last = first + len(list(run)) - 1
        yield value, (first, last)
        first = last + 1
