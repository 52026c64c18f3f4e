"""Is the state right on 96 small programs that were written from the table of resources, and not from the rules?

Each program in ``lookalikes/`` is about one resource and takes a word: what has become of the task that should release it. It works,
sleeps, is outside of the job, is in native code, has gone, or waits itself in a cycle. The first four are not hung, the last two are.

    .venv/bin/python scripts/lookalikes.py -o results             all of them, attached at the onset
    .venv/bin/python scripts/lookalikes.py -o results --late 40   attached 40 s later
    .venv/bin/python scripts/lookalikes.py -o results --only lock,pipe --jobs 1
    .venv/bin/python scripts/lookalikes.py -o results --tables    print what was right again
"""

import argparse
import json
import sys
import threading
from collections import Counter
from pathlib import Path

from perfwatch.drills.drill import Culprit, Drill
from perfwatch.gauntlet import rows
from perfwatch.gauntlet.attempt import Attempt, run_gauntlet
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.gauntlet.report import row_line
from perfwatch.gauntlet.score import Row
from perfwatch.report.console import console
from perfwatch.verdict import Level

PROGRAMS = Path(__file__).resolve().parent / "lookalikes"
CONDITIONS = ("works", "sleeps", "outside", "native", "gone", "cycle")
NOT_HUNG = ("busy", "slow", "healthy")  # whether a wait that ends is called busy or slow is a matter of the next step


def main() -> int:
    """Run the programs, one row each, and print the score; 1 if a program that is not hung was called hung."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", default="", help="resources, with commas between")
    parser.add_argument("--late", type=float, default=0.0, help="seconds from the onset to the attach")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args()
    folder = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    answers = json.loads((PROGRAMS / "answers.json").read_text())
    if not options.tables:
        chosen = options.only.split(",") if options.only else sorted(answers)
        drills = [drill(resource, word, answers[resource][word]) for resource in chosen for word in CONDITIONS]
        done = {row.key for row in rows.load(folder)}
        wanted = [one for one in drills if (one.name, "loud", 0, "attach", options.late) not in done]
        run(wanted, Conditions(folder=folder, late_seconds=options.late, limit_seconds=150.0), options.jobs)
    return report(rows.load(folder))


def drill(resource: str, word: str, answer: dict[str, str | None]) -> Drill:
    """One program with one word."""
    culprit = Culprit(role="any", function=answer["culprit"]) if answer["culprit"] else None
    return Drill(
        name=f"{resource}-{word}",
        program=str(PROGRAMS / f"{resource}.py"),
        arguments=(word,),
        summary=str(answer["why"]),
        state=str(answer["state"]),
        causes=(),
        culprit=culprit,
    )


def run(drills: list[Drill], conditions: Conditions, jobs: int) -> None:
    """Run them, and write a row for each as it comes."""
    screen = console(sys.stdout)
    attempts = [Attempt(one, "loud", 0) for one in drills]
    for number, row in enumerate(run_gauntlet(attempts, conditions, jobs, threading.Event()), 1):
        rows.append(conditions.folder, row)
        screen.print(f"{number}/{len(drills)} {verdict_on(row)}  {row_line(row)}", soft_wrap=True, highlight=False)


def verdict_on(row: Row) -> str:
    """In a word: right, abstained, missed, false hung, or broken."""
    if row.broken or row.state is None:
        return "broken"
    if row.state == row.expected_state or (row.expected_state == "busy" and row.state in NOT_HUNG):
        return "right"
    if row.state in ("inconclusive", "gone"):  # it went on before a verdict was due
        return "abstained"
    return "false hung" if row.state == "hung" else "missed" if row.expected_state == "hung" else "wrong"


def report(done: list[Row]) -> int:
    """Print a table of resources and conditions, and the sums."""
    said = {row.drill: verdict_on(row) for row in done}
    resources = sorted({name.rpartition("-")[0] for name in said})
    print(f"\n{'':12}" + "".join(f"{word:>12}" for word in CONDITIONS))
    for resource in resources:
        print(f"{resource:12}" + "".join(f"{said.get(f'{resource}-{word}', ''):>12}" for word in CONDITIONS))
    counted = Counter(said.values())
    named = [row.culprit_right for row in done if row.culprit_right is not None and verdict_on(row) == "right"]
    sure = [row for row in done if verdict_on(row) in ("wrong", "false hung", "missed")]
    confident = sum((row.confidence or 0.0) >= Level.HIGH for row in sure)
    print(
        f"\nstate right {counted['right']} of {len(said)}; " + ", ".join(f"{n} {word}" for word, n in counted.items())
    )
    print(f"culprit right {sum(named)} of {len(named)}; confidently wrong {confident}")
    return 1 if counted["false hung"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
