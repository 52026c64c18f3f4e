"""Judge every recorded case by the wait graph alone, and compare its state with the accepted one.

.venv/bin/python scripts/shadow.py                 the matrix, every false and every missed hang
.venv/bin/python scripts/shadow.py --show NAME     the graph of the cases whose names contain NAME
.venv/bin/python scripts/shadow.py --prefixes 12   the verdicts at so many moments of each case
"""

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from perfwatch.gauntlet import recorded
from perfwatch.gauntlet.recorded import Expected
from perfwatch.recording.recording import Recording
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import diagnose
from perfwatch.triage.ends.gone import ending
from perfwatch.triage.graph.decide import State, states_of, wait_graph_of
from perfwatch.triage.history import History
from perfwatch.triage.words.frames import show

RECORDINGS = Path(__file__).resolve().parent.parent / "tests" / "cases"
MOVES = {"slow": "moving", "healthy": "moving"}  # the graph does not tell these apart
STATES = ("hung", "busy", "moving", "inconclusive", "gone")


def cases(only: str = "") -> Iterator[tuple[str, Recording, Expected]]:
    """Name, recording until its moment, and what was accepted."""
    for path in recorded.cases(RECORDINGS):
        name = str(path.relative_to(RECORDINGS))
        if only in name:
            expected = recorded.expected_of(path)
            yield name, recorded.load_case(path).until(expected.at), expected


def case_of(recording: Recording, at: float) -> Case:
    """As ``diagnose`` makes it."""
    return Case(History(recording.records, at), recording.session, recording.events)


def decide(case: Case) -> State:
    """The state of a job: of its ranks, the one that decides."""
    if ending(case) is not None:
        return State("gone")
    order = ("hung", "inconclusive", "moving", "busy", "unknown")
    found = min(
        states_of(case), key=lambda one: (order.index(one.state), -one.silence.seconds), default=State("inconclusive")
    )
    return State("inconclusive", found.pid) if found.state == "unknown" else found


def described(found: State) -> str:
    """One line about what decided."""
    task, resource = found.sinks[0] if found.sinks else (None, None)
    sink = f"{task.activity.value if task else '-'}/{resource.kind.name if resource else '-'}"
    fate = f"{found.fate.prospect.name}/{found.fate.basis.name} {found.fate.why}" if found.fate else "-"
    silent = f"{found.silence.seconds:.1f}/{found.needs_seconds:.0f} s {found.silence.source.name}"
    return f"{sink} {fate} silent {silent}"


def matrix() -> None:
    """States expected and found, and the false and missed hangs."""
    began, counted = time.monotonic(), Counter[tuple[str, str]]()
    wrong: dict[str, list[str]] = defaultdict(list)
    judging = 0.0
    for name, recording, expected in cases():
        want = MOVES.get(expected.state, expected.state)
        case = case_of(recording, expected.at)
        since = time.monotonic()
        found = decide(case)
        judging += time.monotonic() - since
        counted[want, found.state] += 1
        if want != found.state and "hung" in (want, found.state):
            title = "false hung" if found.state == "hung" else "missed hung"
            wrong[title].append(f"{name} [{expected.state}/{expected.cause}] {found.state}: {described(found)}")
    print(f"{'':14}" + "".join(f"{one:>14}" for one in STATES))
    for want in STATES:
        print(f"{want:14}" + "".join(f"{counted[want, got]:14}" for got in STATES))
    right = sum(number for (want, got), number in counted.items() if want == got)
    print(
        f"right {right} of {counted.total()}; false hung {len(wrong['false hung'])}, missed {len(wrong['missed hung'])}"
    )
    print(f"{time.monotonic() - began:.1f} s, of which judging {judging:.1f} s")
    for title, lines in wrong.items():
        print(f"\n{title}: {len(lines)}", *lines, sep="\n  ")


def prefixes(number: int) -> None:
    """At each of so many moments: cases that are called hung and are not, and hangs that are called sooner or later than today."""
    false, sooner, later, verdicts = [], 0, 0, 0
    for name, recording, expected in cases():
        now, graph = [], []
        for part in range(1, number + 1):
            at = expected.at * part / number
            until = recording.until(at)
            graph.append(decide(case_of(until, at)).state)
            now.append(diagnose(until, at).state)
            verdicts += 1
        if expected.state == "hung":
            first = [one.index("hung") if "hung" in one else number for one in (graph, now)]
            sooner, later = sooner + (first[0] < first[1]), later + (first[0] > first[1])
        elif "hung" in graph and "hung" not in now:
            false.append(f"{name} at {graph.index('hung') + 1}/{number}")
    print(f"{verdicts} verdicts: hung sooner than the rules {sooner}, later or never {later}")
    print(f"false hung at a moment, and never by the rules: {len(false)}", *false, sep="\n  ")


def shown(only: str, at: float | None) -> None:
    """Tasks, what they wait for, and who claims it."""
    for name, recording, expected in cases(only):
        moment = expected.at if at is None else at
        case = case_of(recording.until(moment), moment)
        found = decide(case)
        print(f"{name} at {moment}: {expected.state}/{expected.cause}; hang timeout {case.patience_seconds}")
        print(f"    {found.state} of {found.pid}: {described(found)}")
        if found.state == "gone":
            continue
        built = wait_graph_of(case)
        for key, task in built.graph.tasks.items():
            fate, node = built.graph.fates[key], built.nodes.get(key)
            place = "" if node is None else f"{show(node.frame)} {node.wait.call if node.wait else ''}"
            silent = "-" if task.silence is None else f"{task.silence.seconds:.1f} s {task.silence.source.name}"
            print(
                f"  {key} {task.activity.value} {fate.prospect.name}/{fate.basis.name} {fate.why} silent {silent} {place}"
            )
            for one in task.waits:
                claims = ", ".join(f"{c.role.name}:{c.basis.name}:{c.task}" for c in built.graph.claims[one].values())
                print(f"      {one.kind.name} {one.needs.value} complete={one.complete} {one.why} [{claims}]"[:400])


def main() -> int:
    """Print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", metavar="NAME")
    parser.add_argument("--at", type=float, metavar="SECONDS", help="with --show: at another moment")
    parser.add_argument("--prefixes", type=int, metavar="N")
    options = parser.parse_args()
    if options.show:
        shown(options.show, options.at)
    elif options.prefixes:
        prefixes(options.prefixes)
    else:
        matrix()
    return 0


if __name__ == "__main__":
    sys.exit(main())
