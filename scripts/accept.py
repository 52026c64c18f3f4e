"""Judge every recorded case again, show what changed, and write it down as the new expectation. Then read the diff.

scripts/accept                 all cases
scripts/accept stuck_worker    those of one cause
scripts/accept --check         only show
"""

import argparse
import sys
from pathlib import Path

from perfwatch.gauntlet import recorded

CASES = Path(__file__).resolve().parent.parent / "tests" / "cases"


def main() -> int:
    """Show and accept; with --check, 1 when anything would change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("causes", nargs="*")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    changed = 0
    for case in recorded.cases(CASES):
        name = case.relative_to(CASES)
        if options.causes and name.parts[0] not in options.causes:
            continue
        said = recorded.judge_again(case)
        before = recorded.accepted(case)
        if said != before:
            changed += 1
            print(f"{name}\n  - {before}\n  + {said}")
            if not options.check:
                recorded.accept(case, said)
    print(f"{changed} changed")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
