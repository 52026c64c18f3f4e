"""What ``perfwatch drill`` does: list the drills, run one and show its diagnosis, or run all and show the score."""

import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from perfwatch.drills import DRILLS
from perfwatch.errors import EXIT_CODES, UsageError
from perfwatch.gauntlet import rows
from perfwatch.gauntlet.attempt import plan, run_attempt, run_gauntlet
from perfwatch.gauntlet.choice import Choice
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.gauntlet.needs import unmet
from perfwatch.gauntlet.report import GauntletReport, row_line
from perfwatch.gauntlet.score import Row, score
from perfwatch.report.console import console
from perfwatch.report.terminal import VerdictReport

SCHEMA = "perfwatch.gauntlet/1"


def catalogue(as_json: bool) -> None:
    """Print every drill: its name, what it must be called, and what it does."""
    if as_json:
        listed = [{**msgspec.to_builtins(drill), "unmet": unmet(drill.needs)} for drill in DRILLS]
        print(msgspec.json.encode(listed).decode())
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("drill", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("what it does")
    for drill in DRILLS:
        missing = unmet(drill.needs)
        reason = f" (not here: {missing})" if missing else ""
        table.add_row(drill.name, drill.state, Text(drill.summary).append(reason, style="dim"))
    screen = console(sys.stdout)
    screen.print(table)
    screen.print("\nperfwatch drill NAME runs one; perfwatch drill --all runs the gauntlet.")


def one(choice: Choice, conditions: Conditions, as_json: bool) -> int:
    """Run one drill and show perfwatch's own screen about it. Returns the exit code: 0 right, 60 wrong."""
    if not choice.drills:
        raise UsageError("; ".join(f"{name}: {reason}" for name, reason in choice.skipped.items()))
    _end_like_ctrl_c()
    attempt = plan(choice.drills[:1], 1, choice.strengths or choice.drills[0].strengths[:1])[0]
    screen = console(sys.stdout)
    row, verdict = run_attempt(attempt, conditions, say=None if as_json else partial(screen.print, soft_wrap=True))
    if as_json:
        print(msgspec.json.encode(row).decode())
    elif verdict is None:
        screen.print(row_line(row))
    else:
        screen.print(VerdictReport(verdict))
        screen.print(_ruling(row))
    return 0 if row.right else EXIT_CODES["gate_failed"]


def gauntlet(
    choice: Choice, conditions: Conditions, repeat: int, jobs: int, resume: bool, keep: bool, as_json: bool
) -> int:
    """Run them all and print the score. Returns 0, or 60 when any verdict was confidently wrong."""
    _end_like_ctrl_c()
    done = rows.load(conditions.folder) if resume else []
    if not resume:
        (conditions.folder / rows.FILE).unlink(missing_ok=True)
    attempts = rows.left_to_do(plan(choice.drills, repeat, choice.strengths), conditions, done)
    with _progress(len(attempts)) as note:
        for row in run_gauntlet(attempts, conditions, jobs, threading.Event()):
            rows.append(conditions.folder, row)
            done.append(row)
            note(row)
            if row.right and not keep:
                shutil.rmtree(row.session, ignore_errors=True)
    result = score(done)
    if as_json:
        report = {"schema": SCHEMA, "conditions": conditions, "skipped": choice.skipped, "score": result, "rows": done}
        print(msgspec.json.encode(report, enc_hook=str).decode())
    else:
        console(sys.stdout).print(GauntletReport(result, choice.skipped, _made_how(conditions, repeat, jobs)))
    return EXIT_CODES["gate_failed"] if result.confidently_wrong else 0


def _end_like_ctrl_c() -> None:
    """A gauntlet that a scheduler ends leaves as little behind as one that its user ends."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _ruling(row: Row) -> Text:
    if not row.right:
        return Text.assemble(("wrong", "bold red"), f": it is {row.expected_state}/{row.expected_label}")
    culprit = {True: ", the culprit too", False: ", but not the culprit", None: ""}[row.culprit_right]
    return Text.assemble(("correct", "bold green"), f" after {row.seconds or 0.0:.1f} s{culprit}; the drill has ended")


def _made_how(conditions: Conditions, repeat: int, jobs: int) -> str:
    patience = " ".join(conditions.patience_option) or "perfwatch's own hang timeout"
    return (
        f"{repeat} x each, --mode {conditions.mode}, attached {conditions.late_seconds:g} s after the onset, "
        f"{jobs} at a time, {patience}"
    )


@contextmanager
def _progress(total: int) -> Iterator["_Noted"]:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    screen = console(sys.stderr)
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as progress:
        yield _Noted(progress, screen, total)


class _Noted:
    """Counts finished rows: a bar on a terminal, a line each elsewhere; what is not right is said at once."""

    def __init__(self, progress: Progress, screen: Console, total: int) -> None:
        self._progress = progress
        self._screen = screen
        self._total = total
        self._count = 0
        self._task = progress.add_task("", total=total)

    def __call__(self, row: Row) -> None:
        self._count += 1
        self._progress.update(self._task, advance=1, description=row.drill)
        if not self._screen.is_terminal or not row.right:
            mark = "right" if row.right else "WRONG"
            seconds = "" if row.seconds is None else f" {row.seconds:.1f} s"
            self._screen.print(f"{self._count}/{self._total} {mark}{seconds} {row_line(row)}", soft_wrap=True)
