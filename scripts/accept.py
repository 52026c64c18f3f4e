"""Judge every recorded case again, show what changed, and write it down as the new expectation. Then read the diff.

scripts/accept                 all cases
scripts/accept stuck_worker    those of one cause
scripts/accept --check         only show; 1 when anything would change
scripts/accept --prefixes      at 13 moments of each case's life, against tests/cases/moments.txt; also with --check
"""

import argparse
import os
import sys
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path

from perfwatch.gauntlet import moments, recorded

CASES = Path(__file__).resolve().parent.parent / "tests" / "cases"
BASELINE = CASES / "moments.txt"


def main() -> int:
    """Show and accept; with --check, 1 when anything would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("causes", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--prefixes", action="store_true")
    options = parser.parse_args()
    chosen = [case for case in recorded.cases(CASES) if not options.causes or _cause(_name(case)) in options.causes]
    changed = at_moments(chosen, options) if options.prefixes else at_accepted_moment(chosen, options)
    return 1 if options.check and changed else 0


def at_accepted_moment(chosen: Sequence[Path], options: argparse.Namespace) -> bool:
    """Judge each case once; True when a verdict changed."""
    changed = 0
    with Pool(os.cpu_count()) as pool:
        for case, said in zip(chosen, pool.imap(recorded.judge_again, chosen, chunksize=4), strict=True):
            before = recorded.accepted(case)
            if said != before:
                changed += 1
                print(f"{_name(case)}\n  - {before}\n  + {said}")
                if not options.check:
                    recorded.accept(case, said)
    print(f"{changed} changed")
    return changed > 0


def at_moments(chosen: Sequence[Path], options: argparse.Namespace) -> bool:
    """Judge each case at its moments; True when a verdict changed."""
    baseline = moments.parse(BASELINE.read_text()) if BASELINE.exists() else {}
    others = {name: told for name, told in baseline.items() if options.causes and _cause(name) not in options.causes}
    with Pool(os.cpu_count()) as pool:
        judged = dict(zip(map(_name, chosen), pool.imap(moments.moments_of, chosen, chunksize=1), strict=True))
    after = {**others, **judged}
    different = moments.differences(baseline, after)
    print(different + f"{'' if different else 'nothing changed in '}{sum(map(len, judged.values()))} verdicts")
    if not options.check:
        BASELINE.write_text(moments.text_of(after))
    return bool(different)


def _name(case: Path) -> str:
    return str(case.relative_to(CASES))


def _cause(name: str) -> str:
    return name.partition("/")[0]


if __name__ == "__main__":
    sys.exit(main())
