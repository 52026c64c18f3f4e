"""Make a recorded case for the tests: run a drill, attach, keep the whole session, write down the verdict.

    .venv/bin/python scripts/record_case.py stuck_worker --strength quiet
    .venv/bin/python scripts/record_case.py busy_final_save --for hung_at_exit --late 30
    .venv/bin/python scripts/record_case.py stuck_worker --trim
    .venv/bin/python scripts/record_case.py --missing

The case goes to tests/cases/CAUSE/fires/, or to lookalike/ of the cause that the drill must not be called.
With --trim only those readings are kept that the current rules need for this verdict: such a case cannot test other rules.
A verdict that is wrong is not kept, unless --keep-wrong says so: mend the rule, then scripts/accept.
"""

import argparse
import platform
import sys
import tempfile
from pathlib import Path

from perfwatch.drills.drill import STRENGTHS, Drill
from perfwatch.gauntlet import recorded
from perfwatch.gauntlet.attempt import Attempt, run_attempt
from perfwatch.gauntlet.choice import choose
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.recording.recording import Recording, load
from perfwatch.triage.rules import RULES
from perfwatch.verdict import confidence_word
from perfwatch_probes.readings import Cgroup, Gpu, Software

ROOT = Path(__file__).resolve().parent.parent
ROUNDING_SECONDS = 0.005  # a verdict says to 10 ms when it was made; what it was made of must not be cut off
CASES = ROOT / "tests" / "cases"


def main() -> int:
    """Record what the command line asks for; 0 when all of it was kept."""
    options = _options()
    if options.missing:
        wanted = _missing()
    else:
        drill = choose([options.drill], []).drills[0]
        wanted = [(drill, options.cause or drill.lookalike_of or drill.causes[0])]
    return 0 if all([record(drill, cause, options) for drill, cause in wanted]) else 1


def record(drill: Drill, cause: str, options: argparse.Namespace) -> bool:
    """Record one case for the rule of ``cause``; say why when it was not kept."""
    strength = options.strength or (drill.strengths or ("loud",))[0]
    with tempfile.TemporaryDirectory(prefix="perfwatch-record-") as folder:
        conditions = Conditions(folder=Path(folder), late_seconds=options.late, patience_seconds=options.patience)
        row, verdict = run_attempt(Attempt(drill, strength, 0), conditions)
        if verdict is None:
            return _not_kept(drill, row.fault or row.broken or "no verdict")
        said = f"{verdict.state}/{verdict.cause} ({confidence_word(verdict.confidence)}): {verdict.summary}"
        if not row.right and not options.keep_wrong:
            return _not_kept(drill, f"it is {drill.state}/{drill.causes}, said {said}")
        recording = load(Path(row.session))
        at = recording.end if verdict.timeline.decided is None else verdict.timeline.decided + ROUNDING_SECONDS
        case = _folder(drill, cause) / (drill.name if strength == "loud" else f"{drill.name}-{strength}")
        made = provenance(drill, strength, options.late, recording)
        again = keep(recording, at, case, made, {folder: "/tmp/drill"}, options.trim)
    if (again.state, again.cause) != (verdict.state, verdict.cause):
        return _not_kept(drill, f"replayed as {again}, live it was {said}: triage is not pure; see {case}")
    size = recorded.case_file(case).stat().st_size
    print(f"{case.relative_to(CASES)}: {size / 1024:.0f} KiB, {said}", flush=True)
    return True


def keep(
    recording: Recording,
    at: float,
    case: Path,
    made: dict[str, str | float],
    names: dict[str, str],
    trim: bool = False,
) -> recorded.Expected:
    """Store a recording as a case and accept its verdict ``at`` that moment.

    trim: keep only what that verdict rests on.
    """
    records = recorded.trimmed(recording, at) if trim else recording.records
    recorded.store(case, recording, records, {**made, "trimmed": trim}, {**names, **_names(recording)})
    again = recorded.judged(recorded.load_case(case), round(at, 3))
    recorded.accept(case, again)
    return again


def _missing() -> list[tuple[Drill, str]]:
    """For each cause without a case of a kind: the first drill that could give one here.

    A look-alike of a benign cause is a fault that its own drills are look-alikes of (a silent peer for ``downloading``),
    else another cause of the same state.
    """
    drills = choose([], []).drills
    wanted = []
    for cause, state in ((rule.cause.name, rule.cause.state) for rule in RULES):
        own = [drill for drill in drills if drill.causes[:1] == (cause,)]
        faults = {drill.lookalike_of for drill in own}
        alike = [drill for drill in drills if drill.lookalike_of == cause and cause not in drill.causes]
        alike += [drill for drill in drills if drill.causes and drill.causes[0] in faults and cause not in drill.causes]
        alike += [drill for drill in drills if drill.state == state and drill.causes and cause not in drill.causes]
        for kind, candidates in (("fires", own), ("lookalike", alike)):
            if candidates and not list((CASES / cause / kind).glob(f"*{recorded.SUFFIX}")):
                wanted.append((candidates[0], cause))
    return wanted


def _not_kept(drill: Drill, reason: str) -> bool:
    print(f"{drill.name} not kept: {reason}", file=sys.stderr, flush=True)
    return False


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("drill", nargs="?")
    which.add_argument("--missing", action="store_true", help="one for every cause that lacks a case of a kind")
    parser.add_argument("--strength", choices=STRENGTHS)
    parser.add_argument("--for", dest="cause", help="the cause whose rule this case is for")
    parser.add_argument("--late", type=float, default=0.0, help="attach so many seconds after the onset")
    parser.add_argument("--patience", type=float, help="passed on to perfwatch attach")
    parser.add_argument("--trim", action="store_true", help="keep only what the verdict rests on")
    parser.add_argument("--keep-wrong", action="store_true")
    return parser.parse_args()


def _folder(drill: Drill, cause: str) -> Path:
    """``fires`` of a cause that the drill has, else ``lookalike`` of one that it must not be called."""
    return CASES / cause / ("fires" if cause in drill.causes else "lookalike")


def provenance(drill: Drill, strength: str, late_seconds: float, recording: Recording) -> dict[str, str | float]:
    """What a case says of how it was made: by which drill, with what, on which cards. The recording knows best."""
    made: dict[str, str | float] = {"drill": drill.name, "strength": strength, "late_seconds": late_seconds}
    told = [one.reading for one in recording.records]
    software = next((one for one in told if isinstance(one, Software)), Software(pid=0))
    made["python"] = software.python or platform.python_version()
    if software.torch:
        made["torch"] = software.torch
    cards = sorted({one.name for one in told if isinstance(one, Gpu) and one.name})
    if cards:
        made["gpu"] = ", ".join(cards)
    return made


def _names(recording: Recording) -> dict[str, str]:
    """Paths and names of this machine, longest first, and what stands for them in a case."""
    return {
        sys.prefix: "/home/user/venv",
        str(ROOT): "/home/user/perfwatch",
        sys.base_prefix: "/usr",
        recording.session.machine.name: "node-a",
        recording.session.machine.boot_id: "",
        recording.session.machine.kernel: recording.session.machine.kernel.partition("-")[0],
        **_cards(recording),
        **{path: "/job" for path in _groups(recording)},
        str(Path.home()): "/home/user",
    }


def _groups(recording: Recording) -> set[str]:
    """A control group's path says who started the job: a container's name, a scheduler's number."""
    paths = {one.reading.path for one in recording.records if isinstance(one.reading, Cgroup)}
    return {path for path in paths if path.count("/") > 1}


def _cards(recording: Recording) -> dict[str, str]:
    """A card's identifier is that of one machine: in a case it is called by its number."""
    return {one.reading.uuid: f"GPU-{one.reading.index}" for one in recording.records if isinstance(one.reading, Gpu)}


if __name__ == "__main__":
    sys.exit(main())
