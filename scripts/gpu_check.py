"""Every drill on a GPU: is perfwatch right, what does looking cost, and a recording of each.

    scripts/gpu_check -o results                       every drill at every strength: half an hour on one card
    scripts/gpu_check -o results --resume              go on after an interruption; print the tables again
    scripts/gpu_check -o results --strength loud --only stuck_kernel,gpu_bound
    scripts/gpu_check -o results --tables              only the tables and the recordings, here or on a machine without a GPU
    scripts/gpu_check -o results --again               the same, every session judged again by the rules of now

Rows, sessions and what the programs printed lie in the folder; the cases in its ``cases``, in the form
of ``tests/cases``. One drill at a time: they share the card.
"""

import argparse
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from record_case import ROUNDING_SECONDS, keep, provenance

from perfwatch.drills import DRILLS
from perfwatch.drills.drill import Drill
from perfwatch.errors import SessionUnreadable
from perfwatch.gauntlet import recorded, rows, show
from perfwatch.gauntlet.attempt import judged
from perfwatch.gauntlet.choice import Choice, choose
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.gauntlet.report import GauntletReport
from perfwatch.gauntlet.score import Row, score
from perfwatch.recording.recording import Recording, load
from perfwatch.report.console import console
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.gpu import GpuProbe
from perfwatch_probes.readings import GpuSample, ProbeCall

PATIENCE_SECONDS = 20.0  # what time may heal gets less than a minute of the card
Recordings = dict[tuple[str, str, int, str, float], Recording]  # by the key of the row
COUNTED = "counted_products"  # the drill that prints its own TFLOP/s, after a monotonic time
COUNT = re.compile(r"^(\d+\.\d+) (\d+\.\d+) TFLOP/s$", re.MULTILINE)


def main() -> int:
    """Run, print, record; 0 when nothing was confidently wrong."""
    options = _options()
    folder = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    choice = _choice(options)
    conditions = Conditions(folder=folder, mode=options.mode, patience_seconds=PATIENCE_SECONDS, limit_seconds=120.0)
    status = 0
    if not (options.tables or options.again):
        if not choice.drills:
            print("\n".join(sorted(set(choice.skipped.values()))), file=sys.stderr)
            return 2
        status = show.gauntlet(choice, conditions, 1, 1, options.resume, keep=True, as_json=False)
    done = rows.load(folder)
    if options.again:
        done = [judged_again(folder, row) for row in done]
    if options.tables or options.again:
        console(sys.stdout).print(GauntletReport(score(done), {}, f"rows of {folder.name}"))
    causes(done)
    recordings = loaded(folder, done)
    costs(recordings)
    flops(folder, done, recordings)
    if not options.no_recordings:
        record(folder, done, recordings)
    return status


def loaded(folder: Path, done: Sequence[Row]) -> Recordings:
    """The sessions of the rows, as far as they can be read."""
    return {row.key: recording for row in done if (recording := _recording(folder, row)) is not None}


def causes(done: Sequence[Row]) -> None:
    """Print what was true (left) and what was said, with how often; right ones too."""
    print("\nwhat is true -> what was said")
    counted: dict[tuple[str, str], list[str]] = {}
    for row in done:
        counted.setdefault((row.expected_label, row.given_label), []).append(f"{row.drill}/{row.strength}")
    for (expected, given), who in sorted(counted.items()):
        wrong = "" if expected == given else "   " + ", ".join(sorted(who))
        print(f"  {expected:26} -> {given:26} {len(who):3}{wrong}")


def costs(recordings: Recordings) -> None:
    """Print what looking cost: the GPU probe by its own account, the watcher by the verdict's."""
    used = seconds = looks = 0.0
    for recording in recordings.values():
        calls = [one.reading for one in recording.records if isinstance(one.reading, ProbeCall)]
        used += sum(call.cpu_seconds or 0.0 for call in calls if call.probe == GpuProbe.NAME)
        looks += len({one.at for one in recording.records if isinstance(one.reading, GpuSample)})
        seconds += recording.end
    if looks:
        print(
            f"\nGPU probe: {used / seconds:.2%} of a core, {looks / seconds:.1f} looks a second at all cards, "
            f"{1e6 * used / looks:,.0f} us of CPU a look"
        )
    verdicts = [verdict for recording in recordings.values() if (verdict := _last(recording)) is not None]
    if verdicts:
        cpu = statistics.median(verdict.observer_cost.cpu_seconds for verdict in verdicts)
        print(f"watcher: {cpu:.2f} s of CPU a verdict (median of {len(verdicts)})")


def flops(folder: Path, done: Sequence[Row], recordings: Recordings) -> None:
    """Hold the tensor TFLOP/s that perfwatch gives against those that the loop counts, over the same time."""
    for row in done:
        if row.drill != COUNTED or row.key not in recordings:
            continue
        recording = recordings[row.key]
        at = _decided(recording)
        verdict = diagnose(recording.until(at), at)
        text = (folder / Path(row.session).parent.name / "output.txt").read_text(errors="replace")
        own = [float(rate) for _, rate in COUNT.findall(text)]
        if verdict.efficiency is None or not own:
            continue
        for card in verdict.efficiency.cards:
            if card.tensor_tflops is not None:
                counted = statistics.median(own)
                print(
                    f"\n{row.drill} ({row.strength}): counts {counted:.0f} TFLOP/s itself, perfwatch says "
                    f"{card.tensor_tflops.p50:.0f} ({card.tensor_tflops.p50 / counted - 1:+.1%})"
                )


def record(folder: Path, done: Sequence[Row], recordings: Recordings) -> None:
    """Write a whole recording of every verdict that was right."""
    known = {drill.name: drill for drill in DRILLS}
    for row in done:
        recording, drill = recordings.get(row.key), known.get(row.drill)
        if recording is None or drill is None or not row.right:
            continue
        at = _decided(recording)
        name = row.drill if row.strength == "loud" else f"{row.drill}-{row.strength}"
        made = provenance(drill, row.strength, row.late_seconds, recording)
        for cause, kind in places(drill, row.cause):
            case = folder / "cases" / cause / kind / name
            again = keep(recording, at, case, made, _names(recording, drill, row))
            size = recorded.case_file(case).stat().st_size
            note = "" if again.cause == row.cause else f"  replayed as {again.state}/{again.cause}, live {row.cause}"
            print(f"{case.relative_to(folder)}: {size / 1024:.0f} KiB{note}", flush=True)


def places(drill: Drill, said: str | None) -> list[tuple[str, str]]:
    """Where recordings of a drill belong: to the cause that was said, if it is a right one, and to the one not to be said."""
    own = drill.name.split("-")[0]
    found = [(said, "fires")] if own in drill.causes and said is not None and said in drill.causes else []
    return [*found, *([(drill.lookalike_of, "lookalike")] if drill.lookalike_of else [])]


def judged_again(folder: Path, row: Row) -> Row:
    """The row as it would be with the rules of now, judged when the live verdict was decided."""
    recording = _recording(folder, row)
    drill = next((drill for drill in DRILLS if drill.name == row.drill), None)
    if recording is None or drill is None or row.broken is not None:
        return row
    at = _decided(recording)
    return judged(row, drill, diagnose(recording.until(at), at), recording.session.root_pids[0], ())


def _decided(recording: Recording) -> float:
    """When the last live verdict was decided; its end, where there is none or the job had ended by then."""
    verdict = _last(recording)
    if verdict is None or verdict.timeline.decided is None or verdict.state == "gone":
        return recording.end
    return verdict.timeline.decided + ROUNDING_SECONDS


def _names(recording: Recording, drill: Drill, row: Row) -> dict[str, str]:
    """Paths of the machine that recorded, which need not be this one, and what stands for them in a case."""
    names = {str(Path(row.session).parents[1]): "/tmp/drill"}
    for word in recording.session.command:
        if word.endswith(f"/drills/programs/{drill.program}"):
            names[str(Path(word).parents[2])] = "/home/user/perfwatch"
        elif Path(word).name.startswith("python") and Path(word).is_absolute():
            names[str(Path(word).parents[1])] = "/home/user/venv"
    return names


def _recording(folder: Path, row: Row) -> Recording | None:
    try:
        return load(folder / Path(row.session).parent.name / "session")  # the folder may have moved since
    except SessionUnreadable:
        return None


def _last(recording: Recording) -> Verdict | None:
    return next((event.verdict for event in reversed(recording.events) if event.verdict is not None), None)


def _choice(options: argparse.Namespace) -> Choice:
    strengths = options.strength.split(",") if options.strength else []
    named = options.only.split(",") if options.only else [drill.name for drill in DRILLS if "gpu" in drill.needs]
    return choose(named, strengths)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for rows, sessions and recordings")
    parser.add_argument("--only", default="", help="these drills or causes, separated by commas")
    parser.add_argument("--strength", default="", help="loud, quiet, masked; several separated by commas")
    parser.add_argument("--mode", choices=("attach", "run"), default="attach")
    parser.add_argument("--resume", action="store_true", help="leave out what has a row already")
    parser.add_argument("--tables", action="store_true", help="run nothing: tables and recordings of what is there")
    parser.add_argument("--again", action="store_true", help="run nothing: judge what is there again")
    parser.add_argument("--no-recordings", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
