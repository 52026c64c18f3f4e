"""One drill, once: start it, wait until it reports the onset of its fault, ask perfwatch, end it, return a ``Row``.

perfwatch is asked at once, or ``late_seconds`` after the onset.
"""

import shlex
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from perfwatch.drills.drill import Culprit, Drill
from perfwatch.gauntlet import asking
from perfwatch.gauntlet.conditions import LOOK_SECONDS, Conditions
from perfwatch.gauntlet.program import BrokenDrillError, Program, command_of
from perfwatch.gauntlet.score import Row
from perfwatch.verdict import Verdict

Todo = TypeVar("Todo")
Done = TypeVar("Done")
ONSET_SECONDS = 180.0  # importing torch and a torchrun rendezvous on a loaded machine
CALM_SECONDS = 20.0  # under ``run`` silence is an answer: a drill that is not accused for so long is judged then


@dataclass(frozen=True)
class Attempt:
    """One drill, once."""

    drill: Drill
    strength: str  # "": the program takes none
    repeat: int
    environment: tuple[tuple[str, str], ...] = ()  # besides our own
    prints_onset: bool = False  # on a line of its output: it is no drill of ours


def plan(drills: Iterable[Drill], repeat: int, strengths: Collection[str] = ()) -> list[Attempt]:
    """Every attempt, whole rounds first, so that an interrupted gauntlet has seen every drill."""
    chosen = list(drills)
    return [
        Attempt(drill, strength, number)
        for number in range(repeat)
        for drill in chosen
        for strength in drill.strengths or ("loud",)
        if not strengths or strength in strengths
    ]


def blank_row(attempt: Attempt, conditions: Conditions) -> Row:
    """What is known of a row before anything has run."""
    drill = attempt.drill
    return Row(
        drill=drill.name,
        strength=attempt.strength,
        repeat=attempt.repeat,
        mode=conditions.mode_for(drill),
        late_seconds=conditions.late_seconds,
        expected_state=drill.state,
        expected_causes=drill.causes,
        lookalike_of=drill.lookalike_of,
        end=drill.ends.get(attempt.strength, ""),
    )


def run_attempt(
    attempt: Attempt,
    conditions: Conditions,
    interrupted: Callable[[], bool] = bool,
    say: Callable[[str], None] | None = None,
) -> tuple[Row, Verdict | None]:
    """Run one drill once, from start to end; with ``say``, tell what happens and let perfwatch's stderr through."""
    drill, row = attempt.drill, blank_row(attempt, conditions)
    folder = (
        conditions.folder / f"{drill.name}-{attempt.strength}-{row.mode}-{conditions.late_seconds:g}-{attempt.repeat}"
    )
    shutil.rmtree(folder, ignore_errors=True)  # an unfinished attempt of an interrupted gauntlet
    folder.mkdir(parents=True)
    session = folder / "session"
    row = msgspec.structs.replace(row, session=str(session))
    command = command_of(drill, attempt.strength, conditions.python)
    if row.mode == "run":
        command = asking.run_command(conditions, session, command)
    if say:
        say(f"{drill.name} ({attempt.strength}): {drill.summary}\n$ {shlex.join(command)} &")
    with Program(command, folder, dict(attempt.environment), attempt.prints_onset) as program:
        try:
            onset = program.wait_for_onset(ONSET_SECONDS, interrupted)
        except BrokenDrillError as error:
            return msgspec.structs.replace(row, broken=str(error)), None
        while (remaining := onset.at + conditions.late_seconds - time.monotonic()) > 0 and not interrupted():
            time.sleep(min(remaining, LOOK_SECONDS))
        if say:
            say(f"process {onset.pid} says that its fault begins now")
        root = program.pid if row.mode == "attach" else program.child() or program.pid
        if row.mode == "run":
            limit = conditions.limit_seconds if drill.state in ("hung", "slow", "gone") else CALM_SECONDS
            settled = {"gone": _ended, "hung": _stops}.get(drill.state, _accuses)
            answer = asking.follow(conditions, program, session, settled, limit, interrupted)
        else:
            traced = program.traced()
            if say:
                say(f"$ perfwatch attach {program.pid}")
            answer = asking.attach(conditions, program.pid, session, interrupted, say is not None)
            if left := program.traced() - traced:
                answer = asking.Answer(answer.seconds, answer.exit_code, fault=f"left a tracer on {sorted(left)}")
        onset_pids = {said.pid for said in program.onsets}
    row = msgspec.structs.replace(row, seconds=answer.seconds, exit_code=answer.exit_code, fault=answer.fault)
    return (row if answer.verdict is None else judged(row, drill, answer.verdict, root, onset_pids)), answer.verdict


def run_gauntlet(
    attempts: Iterable[Attempt], conditions: Conditions, jobs: int, interrupted: threading.Event
) -> Iterator[Row]:
    """Run the attempts, ``jobs`` at a time; give each row as it comes. However it ends, nothing is left running."""

    def one(attempt: Attempt) -> Row:
        return run_attempt(attempt, conditions, interrupted.is_set)[0]

    yield from run_at_once(attempts, one, jobs, interrupted)


def run_at_once(
    todo: Iterable[Todo], one: Callable[[Todo], Done], jobs: int, interrupted: threading.Event
) -> Iterator[Done]:
    """Do what is to be done, ``jobs`` at a time; give each result as it comes. ``one`` ends what it runs when it is interrupted."""
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        futures = [pool.submit(one, each) for each in todo]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            interrupted.set()  # does nothing to what has finished
            pool.shutdown(cancel_futures=True)


def judged(row: Row, drill: Drill, verdict: Verdict, root_pid: int, onset_pids: Collection[int]) -> Row:
    """Fill in what perfwatch said, and whether it named the right one."""
    decided = verdict.timeline.decided
    named = None
    expected = (drill.culprit_from_start if row.mode == "run" else None) or drill.culprit
    if expected is not None and verdict.state != "inconclusive":
        named = names(expected, verdict, root_pid, onset_pids)
    return msgspec.structs.replace(
        row,
        state=verdict.state,
        cause=verdict.cause,
        confidence=verdict.confidence,
        summary=verdict.summary,
        culprit_right=named,
        decided_seconds=None if decided is None else decided - verdict.timeline.attached,
    )


def names(expected: Culprit, verdict: Verdict, root_pid: int, onset_pids: Collection[int]) -> bool:
    """True if the first culprit of a verdict, the one that a user looks at, is the expected one.

    The process that said "onset" is the one at fault; where the main process said it for another, role alone decides.
    """
    if not verdict.culprits:
        return False
    first = verdict.culprits[0]
    if expected.function is not None:
        function = (first.frame or "").split(" (")[0].split(".")[-1]
        if function != expected.function:
            return False
    if expected.rank is not None and first.rank != expected.rank:
        return False
    others = {pid for pid in onset_pids if pid not in (root_pid, first.pid)}
    match expected.role:
        case "main":
            return first.worker_pid is None
        case "worker":
            return first.worker_pid is not None and (not others or first.worker_pid in others)
        case "child":
            return first.worker_pid is not None or first.pid != root_pid
        case "thread":
            return first.tid is not None and first.tid not in (first.pid, first.worker_pid)
        case _:
            return True


def _ended(verdict: Verdict) -> bool:
    """How a program ends is known when it has: what was said of it while it lived is not asked for."""
    return verdict.state == "gone"


def _stops(verdict: Verdict) -> bool:
    """A hang is asked for: what made the healthy steps before it slow is another matter."""
    return verdict.state in ("hung", "gone")


def _accuses(verdict: Verdict) -> bool:
    return verdict.state in ("hung", "slow", "gone")
