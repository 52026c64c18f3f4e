"""Whether each level of confidence is right as often as its number says: verdicts said and right, by level and family of causes.

scripts/calibrate                         the recorded cases, at 13 moments of their lives (tests/cases/moments.txt)
scripts/calibrate results/rows.jsonl ...  the results of gauntlets (perfwatch drill --all -o results)

A family is the module of the rule that names the cause; a module with a single cause counts as its state. Of a recorded case
the accepted verdict is the truth. A healthy or busy verdict before that moment is left out: the fault may not have begun.
The exit code is 1 if a higher level is right less often than a lower one, or a level less often than its number says, by more than chance.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from perfwatch.gauntlet import moments, recorded, rows
from perfwatch.triage.rules import RULES
from perfwatch.verdict import Level

CASES = Path(__file__).resolve().parent.parent / "tests" / "cases"
ACCUSES = ("hung", "slow", "gone")
EVERYTHING = "all"
CHANCE = 2.0  # standard errors: a smaller difference is chance


class Said(NamedTuple):
    """One verdict."""

    family: str
    level: Level
    right: bool


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, help="rows.jsonl of a gauntlet, or its folder")
    options = parser.parse_args()
    said = [*_in_gauntlets(options.results)] if options.results else [*_in_cases()]
    Console().print(_table(said))
    faults = [*_faults(said)]
    print("\n".join(faults) or "monotonic, and no level is right less often than its number says")
    return 1 if faults else 0


def _in_gauntlets(results: Sequence[Path]) -> Iterator[Said]:
    for path in results:
        for row in rows.load(path if path.is_dir() else path.parent):
            if row.broken is None and row.level is not None:
                yield Said(_family(row.state or "", row.cause), row.level, row.right)


def _in_cases() -> Iterator[Said]:
    baseline = moments.parse((CASES / "moments.txt").read_text())
    for case in recorded.cases(CASES):
        accepted = recorded.accepted(case)
        for said in baseline.get(str(case.relative_to(CASES)), ()):
            if accepted is None or said.state == "inconclusive":
                continue
            right = said.state == accepted.state and said.cause in (accepted.cause, moments.EMPTY)
            if right or said.state in ACCUSES:
                yield Said(_family(said.state, said.cause), Level.of(float(said.level)), right)


def _family(state: str, cause: str | None) -> str:
    modules = {rule.cause.name: rule.judge.__module__.rpartition(".")[2] for rule in RULES}
    module = modules.get(cause or "", state)
    return module if Counter(modules.values())[module] > 1 else state


def _counts(said: Iterable[Said], family: str, level: Level) -> tuple[int, int]:
    chosen = [one for one in said if one.level is level and family in (one.family, EVERYTHING)]
    return len(chosen), sum(one.right for one in chosen)


def _table(said: Sequence[Said]) -> Table:
    table = Table("causes", *(f"{level.word} ({level:.2f})" for level in Level), box=None, pad_edge=False)
    for family in (*sorted({one.family for one in said}), EVERYTHING):
        counts = [_counts(said, family, level) for level in Level]
        table.add_row(family, *(f"{right}/{total} {right / total:.0%}" if total else "-" for total, right in counts))
    return table


def _faults(said: Sequence[Said]) -> Iterator[str]:
    below: tuple[Level, float, float] | None = None
    for level in Level:
        total, right = _counts(said, EVERYTHING, level)
        if not total:
            continue
        share = right / total
        chance = CHANCE * math.sqrt(share * (1.0 - share) / total)
        if share + chance < level:
            yield f"{level.word} is right in {share:.1%}, less than its number {level:.2f}"
        if below is not None and share + chance < below[1] - below[2]:
            yield f"{level.word} is right in {share:.1%}, less often than {below[0].word} ({below[1]:.1%})"
        below = level, share, chance


if __name__ == "__main__":
    sys.exit(main())
