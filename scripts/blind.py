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
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

import msgspec

from perfwatch.errors import SessionUnreadable
from perfwatch.gauntlet import asking
from perfwatch.gauntlet.conditions import LOOK_SECONDS, Conditions
from perfwatch.gauntlet.program import Program
from perfwatch.recording.recording import load
from perfwatch.report.console import console
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Level, Verdict

ROWS = "rows.jsonl"
ONSET = re.compile(rb"^ONSET\s*$", re.MULTILINE)
ONSET_SECONDS = 180.0
ROUNDING_SECONDS = 0.01  # of the moment of a verdict, as it is written
FUNCTION = re.compile(r"([\w<>]+)(?= \()|rank (\d+)")
CALLED_HUNG = ("hung",)


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

    @property
    def state_right(self) -> bool:
        """The state is one of those that are right."""
        return self.verdict is not None and self.verdict.state in self.answer.states

    @property
    def cause_right(self) -> bool:
        """So are state and cause."""
        causes = self.answer.causes
        return self.state_right and self.verdict is not None and (causes == ("any",) or self.verdict.cause in causes)

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
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args()
    folder = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if options.again:
        rows = [judged_again(folder, row) for row in loaded(folder)]
        for row in rows:
            say(row)
        return report(rows)
    if not options.tables:
        done = {(row.name, row.late_seconds) for row in loaded(folder)}
        wanted = [one for one in options.programs if (one.stem, options.late) not in done]
        conditions = Conditions(folder=folder, late_seconds=options.late, limit_seconds=150.0)
        with (folder / ROWS).open("ab") as file:
            for row in run(wanted, conditions, options.jobs, options.cards):
                file.write(msgspec.json.encode(row) + b"\n")
                file.flush()
                say(row)
    return report(loaded(folder))


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


def run(programs: Iterable[Path], conditions: Conditions, jobs: int, cards: int) -> Iterator[Row]:
    """Those that need both cards come one after the other, then those that need one, a card each; the others beside them."""
    answers = {one: answer_of(one) for one in programs}
    free: SimpleQueue[int] = SimpleQueue()
    for card in range(cards):
        free.put(card)
    interrupted = threading.Event()

    def both() -> list[Row]:
        return [
            one_program(one, answer, conditions, interrupted) for one, answer in answers.items() if answer.cards > 1
        ]

    def on_a_card(program: Path) -> Row:
        card = free.get()
        try:
            return one_program(program, answers[program], conditions, interrupted, card)
        finally:
            free.put(card)

    with ThreadPoolExecutor(jobs) as pool, ThreadPoolExecutor(max(cards, 1)) as carded:
        futures = [
            pool.submit(one_program, one, answer, conditions, interrupted)
            for one, answer in answers.items()
            if not answer.cards
        ]
        try:
            if cards > 1:
                yield from carded.submit(both).result()
            on_one = [one for one, answer in answers.items() if answer.cards == 1] if cards else []
            futures += [carded.submit(on_a_card, one) for one in on_one]
            for future in as_completed(futures):
                yield future.result()
        finally:
            interrupted.set()
            pool.shutdown(cancel_futures=True)


def one_program(
    program: Path, answer: Answer, conditions: Conditions, interrupted: threading.Event, card: int | None = None
) -> Row:
    """Start it, wait for its onset, attach, and end it."""
    row = Row(name=program.stem, late_seconds=conditions.late_seconds, answer=answer)
    folder = conditions.folder / f"{program.stem}-{conditions.late_seconds:g}"
    folder.mkdir(parents=True, exist_ok=True)
    start = [
        "env",
        "PYTHONUNBUFFERED=1",
        *([] if card is None else [f"CUDA_VISIBLE_DEVICES={card}"]),
        conditions.python,
    ]
    if answer.ranks > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(answer.ranks)]
    with Program([*start, str(program.absolute())], folder) as running:
        begun = time.monotonic()
        while not ONSET.search((folder / "output.txt").read_bytes()):
            late = time.monotonic() - begun > ONSET_SECONDS
            if late or interrupted.is_set() or running.ended(LOOK_SECONDS):
                if ONSET.search((folder / "output.txt").read_bytes()):
                    break
                return msgspec.structs.replace(row, fault=f"broken: no onset\n{running.last_words()}")
        if interrupted.wait(conditions.late_seconds):
            return msgspec.structs.replace(row, fault="interrupted")
        said = asking.attach(conditions, running.pid, folder / "session", interrupted.is_set)
    return msgspec.structs.replace(row, verdict=said.verdict, seconds=said.seconds, fault=said.fault)


def judged_again(folder: Path, row: Row) -> Row:
    """The row as it would be with the rules of now, judged when the live verdict was given."""
    try:
        recording = load(folder / f"{row.name}-{row.late_seconds:g}" / "session")
    except SessionUnreadable:
        return row
    decided = None if row.verdict is None else row.verdict.timeline.decided
    at = recording.end if decided is None or row.abstained else decided + ROUNDING_SECONDS
    return msgspec.structs.replace(row, verdict=diagnose(recording.until(at), at))


def loaded(folder: Path) -> list[Row]:
    """The rows that are there; a torn last line is left out."""
    lines = (folder / ROWS).read_bytes().splitlines(keepends=True) if (folder / ROWS).exists() else []
    return [msgspec.json.decode(line, type=Row) for line in lines if line.endswith(b"\n")]


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


def report(rows: Sequence[Row]) -> int:
    """Print the score: state, cause, culprit, time, false hangs, and how often each level of confidence was right."""
    counted = [row for row in rows if not (row.fault or "").startswith("broken")]
    blamed = [row for row in counted if row.blame_right is not None]
    false = [row.name for row in counted if _said(row) == "hung" and "hung" not in row.answer.states]
    missed = [row.name for row in counted if row.answer.states == CALLED_HUNG and _said(row) != "hung"]
    wrong = [row for row in counted if not row.state_right and not row.abstained]
    sure = [row.name for row in wrong if row.verdict is not None and row.verdict.confidence >= Level.HIGH]
    print(f"\n{len(counted)} programs, {len(rows) - len(counted)} broken")
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
