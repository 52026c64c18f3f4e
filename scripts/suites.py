"""Judge public collections of what jobs leave: right, wrong, abstained for each, beside the collection's own reference.

scripts/suites DIR [DIR ...]
scripts/suites DIR --wrong    and each that is not right

Folders are given; nothing is fetched. A folder is searched for the layouts of these collections:

flight_recorder/INCIDENT/   _dump_N of every rank and fault_injection.log ("Fault ranks: [9, 14]"), of NVIDIA/nvidia-resiliency-ext. Right:
                            exactly these ranks are at fault, by evidence of a group. reference.txt: the ranks that NVIDIA's analyser names.
logs/*.jsonl                one log a line, "class" and "log", of Parv-01/gpualert-eval. Right: the class. Reference: macro-F1 as published.
traces/                     X.json or X.json.gz, of HolisticTraceAnalysis and TraceLens.
                            Beside some: X.gpu_timeline.csv and X.kernel_summary.csv.
                            Right: read, or refused by its name where the name says that it is no Kineto trace; sums within 2 %.
"""

import argparse
import csv
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from perfwatch.autopsy.recording_of import gather, recording_of
from perfwatch.errors import TraceUnreadable
from perfwatch.postmortem import diagnose
from perfwatch.traces.torch_events import Event, events
from perfwatch.verdict import Verdict
from perfwatch_probes.deadline import Caller
from perfwatch_probes.guest import Guests, identity_of

# Of gpualert-eval's classes, the names that perfwatch has for them: the corpus has one class where perfwatch may tell several ends apart.
CLASSES = {
    "ram_oom": {"host_memory_refused"},
    "oom_killer": {"oom_killer", "cgroup_out_of_memory"},
    "cuda_oom": {"cuda_out_of_memory"},
    "cuda_runtime": {"cuda_assert", "cuda_illegal_access", "cuda_error"},
    "nccl": {"nccl_timeout", "nccl_error"},
    "segfault": {"segmentation_fault", "crashed_data_worker"},
    "file_not_found": {"missing_file"},
    "permission": {"permission_denied"},
    "missing_module": {"missing_module"},
    "div_zero": {"division_by_zero"},
    "nan_loss": {"nan_guard"},
    "assertion": {"failed_assertion"},
    "device_mismatch": {"device_mismatch"},
    "runtime_error": {"runtime_error", "unsupported_gpu"},
    "traceback": {"python_exception"},
}
PUBLISHED_F1 = 0.905
NEAR = 0.02  # of a sum
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass
class Score:
    """One collection."""

    name: str
    reference: str = ""
    outcomes: Counter[str] = field(default_factory=Counter)
    others: list[str] = field(default_factory=list)  # what was not right, and how
    figure: str = ""

    def count(self, name: str, outcome: str, said: str = "") -> None:
        """One more item: right, wrong or abstained."""
        self.outcomes[outcome] += 1
        if outcome != "right":
            self.others.append(f"{self.name}: {name}: {outcome}: {said}")


def judged(paths: list[Path], child: Caller) -> Verdict:
    """The verdict on some files."""
    return diagnose(recording_of(gather([str(path) for path in paths], child), ("perfwatch", "autopsy"), 0.0))


def incidents(folder: Path, child: Caller) -> Iterator[Score]:
    """Dumps of flight recorders."""
    score, theirs = Score("flight recorder: ranks at fault"), Counter[str]()
    for labels in sorted(folder.glob("**/fault_injection.log")):
        match = re.search(r"Fault ranks: \[([\d, ]*)\]", labels.read_text())
        if match is None:
            continue
        faulty = {int(one) for one in re.findall(r"\d+", match[1])}
        verdict = judged(sorted(labels.parent.glob("_dump_*")), child)
        named = {one.rank for one in verdict.culprits}
        by_group = all("group" in one.entity for one in verdict.evidence)
        outcome = "right" if named == faulty and by_group else "wrong" if named else "abstained"
        score.count(labels.parent.name, outcome, f"{sorted(map(str, named))}, not {sorted(faulty)}")
        reference = labels.parent / "reference.txt"
        if reference.exists():
            missing = {int(one) for one in re.findall(r"\d+", reference.read_text().strip().rpartition("|")[2])}
            theirs["right" if missing == faulty else "wrong"] += 1
    if theirs:
        score.reference = f"NVIDIA's analyser: {theirs['right']} right, {theirs['wrong']} wrong"
    if score.outcomes:
        yield score


def logs(folder: Path, child: Caller) -> Iterator[Score]:
    """Logs of commands that died."""
    for path in sorted(folder.glob("**/*.jsonl")):
        score = Score(f"{path.name}: sub-cause", reference=f"published macro-F1 {PUBLISHED_F1}")
        pairs: list[tuple[str, str]] = []
        with tempfile.TemporaryDirectory(prefix="perfwatch-suites-") as place:
            log = Path(place) / "job.log"
            for line in path.read_text().splitlines():
                row = json.loads(line)
                if row.get("class") not in CLASSES:
                    continue
                log.write_text(row["log"])
                verdict = judged([log], child)
                names = (name for name, ends in CLASSES.items() if verdict.sub_cause in ends)
                told = next(names, verdict.sub_cause or "nothing")
                pairs.append((row["class"], told))
                outcome = "right" if told == row["class"] else "abstained" if told == "nothing" else "wrong"
                score.count(str(row.get("id", "")), outcome, f"{told}, not {row['class']}")
        if pairs:
            score.figure = f"macro-F1 {macro_f1(pairs):.3f} over {len({one for one, _ in pairs})} classes"
            yield score


def macro_f1(pairs: list[tuple[str, str]]) -> float:
    """The mean over the true classes; pairs of what is true and what was said."""
    scores = []
    for one in {true for true, _ in pairs}:
        hits = sum(true == told == one for true, told in pairs)
        both = sum(true == one for true, _ in pairs) + sum(told == one for _, told in pairs)
        scores.append(2 * hits / both)
    return sum(scores) / len(scores)


def traces(folder: Path, child: Caller) -> Iterator[Score]:
    """Traces of profilers."""
    read, kernels, busy = (
        Score("traces: read, or refused by name"),
        Score("traces: sum of kernels"),
        Score("traces: busy time"),
    )
    kernels.reference = busy.reference = f"TraceLens, within {NEAR:.0%}"
    for path in sorted([*folder.glob("**/*.json"), *folder.glob("**/*.json.gz")]):
        base = path.name.partition(".json")[0]
        try:
            found = list(events(path))
        except TraceUnreadable as error:
            refused = "not_kineto" in base and "execution trace" in error.message
            read.count(base, "right" if refused else "wrong", error.message)
            continue
        read.count(base, "wrong" if "not_kineto" in base else "right", "read as a Kineto trace")
        summary, timeline = (path.with_name(f"{base}.{kind}.csv") for kind in ("kernel_summary", "gpu_timeline"))
        if summary.exists():
            theirs = sum(float(row["Kernel duration (µs)_sum"]) for row in csv.DictReader(summary.open(newline="")))
            ours = sum(one.dur for one in found if one.cat == "kernel")
            near(kernels, base, ours, theirs)
        if timeline.exists():
            rows = {row["type"]: float(row["time ms"]) for row in csv.DictReader(timeline.open(newline=""))}
            near(busy, base, busy_microseconds(found), 1000 * rows["busy_time"])
    yield from (one for one in (read, kernels, busy) if one.outcomes)


def near(score: Score, name: str, ours: float, theirs: float) -> None:
    """Whether two sums of microseconds agree."""
    agree = abs(ours - theirs) <= NEAR * theirs
    score.count(name, "right" if agree else "wrong", f"{ours:,.1f} us, not {theirs:,.1f} us")


def busy_microseconds(found: list[Event]) -> float:
    """While anything ran on the card."""
    total, end = 0.0, float("-inf")
    for begin, until in sorted((one.ts, one.ts + one.dur) for one in found if one.cat in DEVICE):
        if until > end:
            total += until - max(begin, end)
            end = until
    return total


def main() -> int:
    """Judge all, print the table; 1 where nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--wrong", action="store_true", help="list what is not right")
    options = parser.parse_args()
    guests = Guests()
    child = guests.child(identity_of(os.getpid()))
    scores = [
        score for folder in options.folders for judge in (incidents, logs, traces) for score in judge(folder, child)
    ]
    guests.close()
    print(f"{'collection':<36}{'right':>6}{'wrong':>6}{'abst.':>6}  {'figure':<34}reference")
    for score in scores:
        right, wrong, abstained = (score.outcomes[one] for one in ("right", "wrong", "abstained"))
        print(f"{score.name:<36}{right:>6}{wrong:>6}{abstained:>6}  {score.figure:<34}{score.reference}".rstrip())
    if options.wrong:
        print(*(line for score in scores for line in score.others), sep="\n")
    return 0 if scores else 1


if __name__ == "__main__":
    sys.exit(main())
