"""Is perfwatch right on programs whose authors had seen neither its rules nor its drills?

Each program says in its docstring what it is and what a right answer is: ``state``, ``cause`` and ``blame``; several that are fair
stand with commas between them. It prints ONSET when its fault, or its long phase, begins.

    .venv/bin/python scripts/blind.py -o results scripts/blind/*.py               each one once, attached at the onset
    .venv/bin/python scripts/blind.py -o results --late 60 scripts/blind/*.py     attached a minute later
    .venv/bin/python scripts/blind.py -o results --again                          judge the recorded sessions by the rules of now
    .venv/bin/python scripts/blind.py -o results --tables                         print the tables again
"""

import argparse
import re
import statistics
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec

from perfwatch.drills.drill import Drill
from perfwatch.errors import SessionUnreadable
from perfwatch.gauntlet import rows
from perfwatch.gauntlet.attempt import Attempt, run_at_once, run_attempt
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.recording.recording import load
from perfwatch.report.console import console
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Level, Verdict

ROUNDING_SECONDS = 0.01  # of the moment of a verdict, as it is written
FUNCTION = re.compile(r"([\w<>]+)(?= \()|rank (\d+)")
CALLED_HUNG, ANY = ("hung",), ("any",)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a program says about itself: the answers that are right."""

    ranks: int
    cards: int
    states: tuple[str, ...]
    causes: tuple[str, ...]
    functions: tuple[str, ...]
    blamed_ranks: tuple[int, ...]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One program, once: what is right, and what was said."""

    name: str
    late_seconds: float
    answer: Answer
    verdict: Verdict | None = None
    seconds: float = 0.0  # from the attach to the verdict
    fault: str | None = None
    session: str = ""

    @property
    def state_right(self) -> bool:
        """The state is one of those that are right."""
        return self.verdict is not None and self.verdict.state in self.answer.states

    @property
    def cause_right(self) -> bool:
        """So are state and cause."""
        causes = self.answer.causes
        return self.state_right and self.verdict is not None and (causes == ANY or self.verdict.cause in causes)

    @property
    def blame_right(self) -> bool | None:
        """State, cause and one of the culprits are right; None if the program has no culprit."""
        if not (self.answer.functions or self.answer.blamed_ranks):
            return None
        if not self.cause_right or self.verdict is None:
            return False
        named = {(one.frame or "").split(" (")[0].rpartition(".")[2] for one in self.verdict.culprits}
        ranks = {one.rank for one in self.verdict.culprits}
        return bool(named & set(self.answer.functions) or ranks & set(self.answer.blamed_ranks))

    @property
    def abstained(self) -> bool:
        """No verdict was given."""
        return self.verdict is None or self.verdict.state == "inconclusive"


def main() -> int:
    """Run, print a row for each program and the score; 1 if one was called hung and is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for rows and sessions")
    parser.add_argument("--late", type=float, default=0.0, help="seconds from the onset to the attach")
    parser.add_argument("--jobs", type=int, default=2, help="programs without a card at the same time")
    parser.add_argument("--cards", type=int, default=0, help="cards that programs may use, one program each")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs the programs")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args()
    folder = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if options.again:
        again = [judged_again(folder, row) for row in rows.load_as(folder, Row)]
        for row in again:
            say(row)
        return report(again)
    if not options.tables:
        done = {(row.name, row.late_seconds) for row in rows.load_as(folder, Row)}
        wanted = [one for one in options.programs if (one.stem, options.late) not in done]
        conditions = Conditions(folder=folder, python=options.python, late_seconds=options.late, limit_seconds=150.0)
        for row in run(wanted, conditions, options.jobs, options.cards):
            rows.append(folder, row)
            say(row)
    return report(rows.load_as(folder, Row))


def answer_of(program: Path) -> Answer:
    """What its docstring says."""
    fields = dict(re.findall(r"^(\w+): *(.*?) *$", program.read_text().split('"""')[1], re.MULTILINE))
    needs, blame = fields.get("needs", ""), FUNCTION.findall(fields.get("blame", ""))
    return Answer(
        ranks=int(fields.get("ranks", "1").split()[0]),
        cards=2 if "gpu2" in needs else int("gpu" in needs),
        states=_list(fields["state"]),
        causes=_list(fields.get("cause", "any")),
        functions=tuple(function for function, _ in blame if function),
        blamed_ranks=tuple(int(rank) for _, rank in blame if rank),
    )


def _list(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(","))


class Cards:
    """The cards that programs may use; who needs one, or both, waits until they are free."""

    def __init__(self, count: int) -> None:
        self._free, self._changed = list(range(count)), threading.Condition()

    @contextmanager
    def taken(self, count: int) -> Iterator[list[int]]:
        """So many cards, by their numbers."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._free) >= count)
            held, self._free = self._free[:count], self._free[count:]
        try:
            yield held
        finally:
            with self._changed:
                self._free = sorted((*self._free, *held))
                self._changed.notify_all()


def run(programs: Iterable[Path], conditions: Conditions, jobs: int, cards: int) -> Iterator[Row]:
    """Those that need both cards come first, then those that need one; the others beside them, so many at a time."""
    answers = {one: answer_of(one) for one in programs}
    todo = sorted(
        (one for one, answer in answers.items() if answer.cards <= cards), key=lambda one: -answers[one].cards
    )
    free, beside, interrupted = Cards(cards), threading.BoundedSemaphore(jobs), threading.Event()

    def one(program: Path) -> Row:
        answer = answers[program]
        with free.taken(answer.cards) as held, nullcontext() if answer.cards else beside:
            return one_program(program, answer, conditions, interrupted, held)

    yield from run_at_once(todo, one, len(todo), interrupted)


def one_program(
    program: Path, answer: Answer, conditions: Conditions, interrupted: threading.Event, cards: Sequence[int]
) -> Row:
    """Run it as a drill of the gauntlet is run, with what it says about itself as the right answer."""
    drill = Drill(
        name=program.stem,
        program=str(program.absolute()),
        summary="",
        state=answer.states[0],
        causes=() if answer.causes == ANY else answer.causes,
        ranks=answer.ranks,
    )
    environment = [("PYTHONUNBUFFERED", "1")]
    if len(cards) == 1:
        environment.append(("CUDA_VISIBLE_DEVICES", str(cards[0])))
    attempt = Attempt(drill, "", 0, tuple(environment), prints_onset=True)
    done, verdict = run_attempt(attempt, conditions, interrupted.is_set)
    return Row(
        name=program.stem,
        late_seconds=conditions.late_seconds,
        answer=answer,
        verdict=verdict,
        seconds=done.seconds or 0.0,
        fault=f"broken: {done.broken}" if done.broken else done.fault,
        session=done.session,
    )


def judged_again(folder: Path, row: Row) -> Row:
    """The row as it would be with the rules of now, judged when the live verdict was given."""
    try:
        recording = load(Path(row.session) if row.session else folder / f"{row.name}-{row.late_seconds:g}" / "session")
    except SessionUnreadable:
        return row
    decided = None if row.verdict is None else row.verdict.timeline.decided
    at = recording.end if decided is None or row.abstained else decided + ROUNDING_SECONDS
    return msgspec.structs.replace(row, verdict=diagnose(recording.until(at), at))


def say(row: Row) -> None:
    """One line: what was said, and what would have been right."""
    said = (
        "no verdict" if row.verdict is None else f"{row.verdict.state}/{row.verdict.cause} {row.verdict.confidence:.2f}"
    )
    word = (
        "BROKEN"
        if (row.fault or "").startswith("broken")
        else "right"
        if row.cause_right
        else "STATE"
        if not row.state_right
        else "cause"
    )
    blame = "" if row.blame_right is not False or not row.cause_right else " (not the culprit)"
    right = f"{'|'.join(row.answer.states)}/{'|'.join(row.answer.causes)}"
    summary = (row.fault or "") if row.verdict is None else row.verdict.summary
    console(sys.stdout).print(
        f"{word:6} {row.name:26} {row.seconds:5.1f} s  {said}{blame}; right: {right} | {summary[:200]}",
        soft_wrap=True,
        highlight=False,
    )


def report(done: Sequence[Row]) -> int:
    """Print the score: state, cause, culprit, time, false hangs, and how often each level of confidence was right."""
    counted = [row for row in done if not (row.fault or "").startswith("broken")]
    blamed = [row for row in counted if row.blame_right is not None]
    false = [row.name for row in counted if _said(row) == "hung" and "hung" not in row.answer.states]
    missed = [row.name for row in counted if row.answer.states == CALLED_HUNG and _said(row) != "hung"]
    wrong = [row for row in counted if not row.state_right and not row.abstained]
    sure = [row.name for row in wrong if row.verdict is not None and row.verdict.confidence >= Level.HIGH]
    print(f"\n{len(counted)} programs, {len(done) - len(counted)} broken")
    print(
        f"state {sum(row.state_right for row in counted)}, cause {sum(row.cause_right for row in counted)}, "
        f"culprit {sum(row.blame_right is True for row in blamed)} of {len(blamed)}; "
        f"abstained {sum(row.abstained for row in counted)}"
    )
    print(f"false hung {len(false)} {' '.join(false)}\nhung, not called hung {len(missed)} {' '.join(missed)}")
    print(f"confidently wrong {len(sure)} {' '.join(sure)}")
    for state in ("hung", "slow"):
        times = sorted(row.seconds for row in counted if row.state_right and _said(row) == state)
        if times:
            print(f"{state}: p50 {statistics.median(times):.1f} s, max {times[-1]:.1f} s")
    for level in Level:
        of_level = [
            row for row in counted if not row.abstained and row.verdict and Level.of(row.verdict.confidence) is level
        ]
        if of_level:
            print(f"{level.name.lower():8} {sum(row.state_right for row in of_level)} of {len(of_level)} states right")
    return 1 if false else 0


def _said(row: Row) -> str | None:
    return None if row.verdict is None else row.verdict.state


if __name__ == "__main__":
    sys.exit(main())
