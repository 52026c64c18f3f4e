"""Ask perfwatch about a running drill as a user would: command line, JSON, exit code."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from perfwatch.errors import EXIT_CODES
from perfwatch.gauntlet.conditions import LOOK_SECONDS, Conditions
from perfwatch.gauntlet.program import Program
from perfwatch.recording.recording import Event
from perfwatch.verdict import Verdict

FAULT_CHARACTERS = 500
OUTCOME_SECONDS = 10.0


@dataclass(frozen=True)
class Answer:
    """What came back. Exactly one of ``verdict`` and ``fault`` is set."""

    seconds: float
    exit_code: int | None
    verdict: Verdict | None = None
    fault: str | None = None


def attach(
    conditions: Conditions, pid: int, session: Path, interrupted: Callable[[], bool], show: bool = False
) -> Answer:
    """``perfwatch attach PID --json``; what it says on stderr is shown, or kept beside the session."""
    arguments = (
        "attach",
        str(pid),
        "--json",
        "--json-version",
        "1",
        "--session",
        str(session),
        *conditions.patience_option,
    )
    answer = _ask(conditions, arguments, session.parent, interrupted, show)
    recorded = last_verdict(session)  # the same, with full paths and the text of lines
    return answer if answer.verdict is None or recorded is None else replace(answer, verdict=recorded)


def run_command(conditions: Conditions, session: Path, command: Sequence[str]) -> list[str]:
    """The command that starts a drill under ``perfwatch run``."""
    return [*conditions.perfwatch, "run", "--session", str(session), *conditions.patience_option, "--", *command]


def follow(
    conditions: Conditions,
    program: Program,
    session: Path,
    settled: Callable[[Verdict], bool],
    limit_seconds: float,
    interrupted: Callable[[], bool],
) -> Answer:
    """Watch a session of ``perfwatch run`` until a verdict is ``settled``, the program ends, or the limit passes."""
    begun = time.monotonic()
    while time.monotonic() - begun < limit_seconds and not interrupted():
        verdict = last_verdict(session)
        if verdict is not None and settled(verdict):
            return Answer(time.monotonic() - begun, None, verdict)
        if program.ended(LOOK_SECONDS):
            await_outcome(session, interrupted)
            break
    seconds = time.monotonic() - begun
    final = ("--final",) if program.ended(0.0) else ()
    arguments = ("replay", str(session), "--json", "--json-version", "1", *final)
    return replace(_ask(conditions, arguments, session.parent, interrupted), seconds=seconds)


def await_outcome(session: Path, interrupted: Callable[[], bool]) -> None:
    """The watcher of a run may still write what it saw of the end: ``run`` itself waits for that a moment only."""
    ends = time.monotonic() + OUTCOME_SECONDS
    while time.monotonic() < ends and not interrupted():
        if any(one.kind == "outcome" for one in _events(session)):
            return
        time.sleep(LOOK_SECONDS)


def last_verdict(session: Path) -> Verdict | None:
    """The newest verdict among the events of a session that may still be written; a torn last line is left."""
    return next((one.verdict for one in _events(session) if one.verdict is not None), None)


def _events(session: Path) -> Iterator[Event]:
    """Those that can be read, the newest first; none before the session has begun."""
    try:
        lines = (session / "events.jsonl").read_bytes().splitlines()
    except OSError:
        return
    for line in reversed(lines):
        try:
            yield msgspec.json.decode(line, type=Event)
        except msgspec.DecodeError:
            continue


def _ask(
    conditions: Conditions,
    arguments: Sequence[str],
    folder: Path,
    interrupted: Callable[[], bool],
    show: bool = False,
) -> Answer:
    said = folder / f"{arguments[0]}.stderr"
    begun = time.monotonic()
    with said.open("wb") as errors:
        process = subprocess.Popen(
            (*conditions.perfwatch, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if show else errors,
            start_new_session=True,
        )
    while True:
        try:
            output, _ = process.communicate(timeout=LOOK_SECONDS)
            break
        except subprocess.TimeoutExpired:
            if interrupted() or time.monotonic() - begun > conditions.limit_seconds:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                seconds = time.monotonic() - begun
                return Answer(seconds, None, fault=f"{arguments[0]}: no verdict within {seconds:.0f} s")
    seconds = time.monotonic() - begun
    if process.returncode in EXIT_CODES.values():
        try:
            return Answer(seconds, process.returncode, verdict=msgspec.json.decode(output, type=Verdict))
        except msgspec.DecodeError as error:
            return Answer(seconds, process.returncode, fault=f"{arguments[0]}: not a verdict: {error}")
    words = said.read_text(errors="replace").strip()[-FAULT_CHARACTERS:]
    return Answer(seconds, process.returncode, fault=f"{arguments[0]}: exit code {process.returncode}: {words}")
