"""Make a recorded case for the tests: run a drill, attach, keep what triage read, write down what it said.

    .venv/bin/python scripts/record_case.py stuck_worker --strength quiet
    .venv/bin/python scripts/record_case.py busy_final_save --for hung_at_exit --late 30

The case goes to tests/triage/recordings/CAUSE/fires/, or to lookalike/ of the cause that the drill must not be called.
A verdict that is wrong is not kept, unless --keep-wrong says so: mend the rule, then scripts/accept.
"""

import argparse
import platform
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from perfwatch.drills.drill import STRENGTHS, Drill
from perfwatch.gauntlet import recorded
from perfwatch.gauntlet.attempt import Attempt, run_attempt
from perfwatch.gauntlet.choice import choose
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.recording import Recording, load
from perfwatch.triage.diagnose import diagnose

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "tests" / "triage" / "recordings"


def main() -> int:
    """Record the case that the command line asks for; 0 when it was kept."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="perfwatch-record-") as folder:
        conditions = Conditions(folder=Path(folder), late_seconds=options.late, patience_seconds=options.patience)
        choice = choose([options.drill], [])
        if not choice.drills:
            print(f"cannot run here: {choice.skipped}", file=sys.stderr)
            return 1
        drill = choice.drills[0]
        strength = options.strength or (drill.strengths or ("loud",))[0]
        row, verdict = run_attempt(Attempt(drill, strength, 0), conditions, say=print)
        if verdict is None:
            print(row.fault or row.broken, file=sys.stderr)
            return 1
        print(f"{verdict.state}/{verdict.cause} ({verdict.confidence:.2f}): {verdict.summary}")
        if not row.right and not options.keep_wrong:
            print(f"wrong: it is {drill.state}/{drill.causes}; not kept", file=sys.stderr)
            return 1
        recording = load(Path(row.session))
        case = _folder(drill, options.cause) / (drill.name if strength == "loud" else f"{drill.name}-{strength}")
        records = recorded.trimmed(recording, verdict.timeline.decided or recording.end)
        recorded.store(case, recording, records, _provenance(options), _names(recording, folder))
    again = load(case)
    said = recorded.Expected.of(diagnose(again))
    if (said.state, said.cause) != (verdict.state, verdict.cause):
        print(f"replayed as {said}, live it was {verdict.state}/{verdict.cause}: triage is not pure", file=sys.stderr)
        return 1
    recorded.accept(case, said)
    size = sum(file.stat().st_size for file in case.iterdir())
    print(f"{case.relative_to(ROOT)}: {len(again.records)} records, {size / 1024:.0f} KiB, {said}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drill")
    parser.add_argument("--strength", choices=STRENGTHS)
    parser.add_argument("--for", dest="cause", help="the cause whose rule this case is for")
    parser.add_argument("--late", type=float, default=0.0, help="attach so many seconds after the onset")
    parser.add_argument("--patience", type=float, help="passed on to perfwatch attach")
    parser.add_argument("--keep-wrong", action="store_true")
    return parser.parse_args()


def _folder(drill: Drill, cause: str | None) -> Path:
    """``fires`` of the cause that the drill has, else ``lookalike`` of the one that it must not be called."""
    if cause is None:
        cause = drill.lookalike_of or drill.causes[0]
    return RECORDINGS / cause / ("fires" if cause in drill.causes else "lookalike")


def _provenance(options: argparse.Namespace) -> dict[str, str]:
    made = {"recorded_by": f"scripts/record_case.py {' '.join(sys.argv[1:])}", "python": platform.python_version()}
    try:
        made["torch"] = version("torch")
    except PackageNotFoundError:
        pass  # a drill without torch
    return made


def _names(recording: Recording, folder: str) -> dict[str, str]:
    """Paths and names of this machine, longest first, and what stands for them in a case."""
    return {
        sys.prefix: "/home/user/venv",
        str(ROOT): "/home/user/perfwatch",
        sys.base_prefix: "/usr",
        folder: "/tmp/drill",
        recording.session.machine.name: "node-a",
        recording.session.machine.boot_id: "",
    }


if __name__ == "__main__":
    sys.exit(main())
