"""Is a training called hung that only pauses? Pauses of many kinds and lengths, each in a run that goes on afterwards.

Each is judged at every second: as it was, and as if its steps had been regular for ten minutes before, which is when a run gets less
time before it is called hung. Any ``hung`` is false.

    .venv/bin/python scripts/stalls.py -o results --count 1000 --at-once 2     run and judge
    .venv/bin/python scripts/stalls.py -o results --again                      judge the recorded sessions by the rules of now
"""

import argparse
import math
import os
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import msgspec

from perfwatch.errors import SessionUnreadable
from perfwatch.gauntlet import rows
from perfwatch.gauntlet.attempt import run_at_once
from perfwatch.recording.recording import Record, Recording, load
from perfwatch.triage.diagnose import diagnose
from perfwatch_probes.readings import Steps

PROGRAM = Path(__file__).parent / "stalls" / "training.py"
SECONDS = (8.0, 58.0)  # of a pause
REGULAR_SECONDS, STEP_SECONDS, MARGIN_SECONDS = 600, 0.04, 90.0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One pause, and when it was called hung, by its cause; ``regular``: with regular steps for long before."""

    number: int
    kind: str
    seconds: float
    session: str
    fault: str = ""
    hung: tuple[tuple[float, str, float], ...] = ()  # at which second of the session, cause, confidence
    regular: tuple[tuple[float, str, float], ...] = ()


def main() -> int:
    """Run, print what was called hung and the sum; 1 if any was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for rows and sessions")
    parser.add_argument("--count", type=int, default=0, help="pauses; one of each kind if not given")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--limit", type=float, default=math.inf, help="start none after so many seconds")
    parser.add_argument("--keep", choices=("hung", "all"), default="hung", help="which sessions stay")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    folder: Path = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if options.again:
        return report([judged(row) for row in rows.load_as(folder, Row)])
    kinds = subprocess.run([sys.executable, str(PROGRAM)], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    chance, count = random.Random(0), options.count or len(kinds)
    lengths = [(number, kinds[number % len(kinds)], round(chance.uniform(*SECONDS), 1)) for number in range(count)]
    done = {row.number for row in rows.load_as(folder, Row)}
    interrupted = threading.Event()
    timer = threading.Timer(min(options.limit, threading.TIMEOUT_MAX), interrupted.set)
    timer.daemon = True
    timer.start()

    def one(what: tuple[int, str, float]) -> Row | None:
        return None if interrupted.is_set() else judged(paused(folder, *what))

    for row in run_at_once((each for each in lengths if each[0] not in done), one, options.at_once, interrupted):
        if row is not None:
            rows.append(folder, row)
            say(row)
            if options.keep == "hung" and not (row.hung or row.regular or row.fault):
                shutil.rmtree(row.session, ignore_errors=True)
    return report(rows.load_as(folder, Row))


def paused(folder: Path, number: int, kind: str, seconds: float) -> Row:
    """Run one under ``perfwatch run``."""
    session = folder / f"{number:04}"
    shutil.rmtree(session, ignore_errors=True)
    command = [sys.executable, "-m", "perfwatch", "run", "--session", str(session), "--", sys.executable, str(PROGRAM)]
    with open(folder / f"{number:04}.log", "wb") as log:
        try:
            code = subprocess.run(
                [*command, kind, str(seconds)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                timeout=seconds * 3 + MARGIN_SECONDS, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = -1
    fault = "" if code == 0 else f"ended with {code}"
    return Row(number=number, kind=kind, seconds=seconds, session=str(session), fault=fault)


def judged(row: Row) -> Row:
    """The row with what the rules of now say at each second."""
    try:
        recording = load(Path(row.session))
    except SessionUnreadable as error:
        return msgspec.structs.replace(row, fault=row.fault or str(error))
    return msgspec.structs.replace(
        row, hung=tuple(called_hung(recording, 0.0)), regular=tuple(called_hung(regular(recording), REGULAR_SECONDS))
    )


def called_hung(recording: Recording, since: float) -> Iterator[tuple[float, str, float]]:
    """Each change to hung, at a second of the session as it was."""
    before = None
    for second in range(5, math.ceil(recording.end - since)):
        at = since + second
        verdict = diagnose(recording.until(at), at)
        if verdict.state == "hung" and verdict.cause != before:
            yield float(second), verdict.cause or "", verdict.confidence
        before = verdict.cause if verdict.state == "hung" else None


def regular(recording: Recording) -> Recording:
    """The recording with ten minutes of regular steps before it."""
    made = round(REGULAR_SECONDS / STEP_SECONDS)
    ranks = {(one.reading.pid, one.reading.tid) for one in recording.records if isinstance(one.reading, Steps)}
    each = round(1 / STEP_SECONDS)
    before = [
        Record(float(second), Steps(pid=pid, tid=tid, count=second * each, step_ago_seconds=0.01, interval_seconds=(STEP_SECONDS,) * each))
        for second in range(1, REGULAR_SECONDS)
        for pid, tid in sorted(ranks)
    ]  # fmt: skip
    later = [
        Record(
            one.at + REGULAR_SECONDS,
            msgspec.structs.replace(one.reading, count=one.reading.count + made)
            if isinstance(one.reading, Steps)
            else one.reading,
            one.known_at + REGULAR_SECONDS if one.known_at else 0.0,
        )
        for one in recording.records
    ]
    events = tuple(msgspec.structs.replace(one, at=one.at + REGULAR_SECONDS) for one in recording.events)
    return replace(recording, records=(*before, *later), events=events)


def say(row: Row) -> None:
    """One line, if there is something to say."""
    for name, found in (("hung", row.hung), ("hung, had its steps been regular", row.regular)):
        for at, cause, confidence in islice(found, 2):
            print(f"{row.kind} of {row.seconds:.0f} s: {name} after {at:.0f} s, {cause} {confidence:.2f}", flush=True)
    if row.fault:
        print(f"{row.kind} of {row.seconds:.0f} s: {row.fault}", flush=True)


def report(done: Sequence[Row]) -> int:
    """Print the sums, by kind, and the bound of the rate (95 %, exact)."""
    counted = [row for row in done if not row.fault]
    print(f"\n{len(counted)} pauses of {len({row.kind for row in counted})} kinds, {len(done) - len(counted)} broken")
    for name, false in (
        ("as they were", [row for row in counted if row.hung]),
        ("with regular steps before", [row for row in counted if row.regular]),
    ):
        bound = 1 - 0.05 ** (1 / max(1, len(counted))) if not false else math.nan
        print(f"called hung, {name}: {len(false)}" + (f" (rate below {bound:.2%})" if not false else ""))
        for kind, count in Counter(row.kind for row in false).most_common():
            print(f"  {kind} {count} of {sum(row.kind == kind for row in counted)}")
    return int(any(row.hung or row.regular for row in counted))


if __name__ == "__main__":
    sys.exit(main())
