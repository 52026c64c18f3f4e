"""Every drill on several GPUs of this host: is perfwatch right, whom does it blame, how soon; and a recording of each.

    scripts/nccl_check -o results                             each NCCL drill once, attached and under run
    scripts/nccl_check -o results --repeat 10                 ten times each: an hour on two cards
    scripts/nccl_check -o results --at-once 6 --mode attach   six programs on the same cards, which only hangs can bear
    scripts/nccl_check -o results --mode run --seconds 300    what fits into five minutes
    scripts/nccl_check -o results --ranks 4                   the drills of two cards on four
    scripts/nccl_check -o results --share-cards --only ...    those of four cards on fewer: as several hosts, over sockets
    scripts/nccl_check -o results --tables                    only the tables and the recordings, here or anywhere
    scripts/nccl_check -o results --again                     the same, every session judged again by the rules of now

Rows, sessions and what the programs printed lie in the folder; the cases in its ``cases``. One drill at a time
by default: they share the cards. NVLink multicast stays off (NCCL_NVLS_ENABLE=0). Under ``run`` the job is armed: it has a RAS port of its
own and a flight recorder that can be asked; attached, it is as a user would have started it.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_check import causes, costs, judged_again, loaded, record

from perfwatch.drills import DRILLS
from perfwatch.drills.drill import Drill
from perfwatch.gauntlet import rows
from perfwatch.gauntlet.attempt import plan, run_gauntlet
from perfwatch.gauntlet.choice import choose
from perfwatch.gauntlet.conditions import Conditions
from perfwatch.gauntlet.score import Row
from perfwatch.triage.history import quantile

NEEDS = ("two_gpus", "four_gpus")
AT_ONCE = 2  # one on the cards, and one that imports torch meanwhile
LONGEST_SECONDS = 100.0  # for one answer: patience, and a little more


def main() -> int:
    """Run, print, record; 0 when no verdict was confidently wrong and none called a look-alike hung."""
    options = _options()
    folder = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    if options.share_cards:
        os.environ["PERFWATCH_DRILL_SHARE_CARDS"] = "1"
    if not (options.tables or options.again):
        run(folder, options)
    done = rows.load(folder)
    if options.again:
        done = [judged_again(folder, row) for row in done]
    causes(done)
    table(done)
    recordings = loaded(folder, done)
    costs(recordings)
    if not options.no_recordings:
        record(folder, done, recordings)
    return 1 if any(row.confidently_wrong for row in done) else 0


def run(folder: Path, options: argparse.Namespace) -> None:
    """Attempt after attempt, whole rounds first, until all are done or the time is up; the next one's imports overlap."""
    began = time.monotonic()
    ends = began + options.seconds
    named = options.only.split(",") if options.only else [one.name for one in DRILLS if set(NEEDS) & set(one.needs)]
    choice = choose(named, [])
    drills = [replace(one, ranks=options.ranks) if options.ranks and one.ranks > 1 else one for one in choice.drills]
    for name, reason in choice.skipped.items():
        print(f"left out: {name}: {reason}", file=sys.stderr)
    modes = options.mode.split(",")
    conditions = Conditions(folder=folder, mode=modes[0], limit_seconds=LONGEST_SECONDS)
    with tempfile.TemporaryDirectory(prefix="perfwatch-nccl-") as scratch:
        for mode in modes:
            if mode == "attach" and options.at_once == 1:
                os.environ["PERFWATCH_DRILL_TURN"] = f"{scratch}/turn"
            else:
                os.environ.pop("PERFWATCH_DRILL_TURN", None)  # who watches it would see it wait
            now = replace(conditions, mode=mode)
            attempts = rows.left_to_do(plan(drills, options.repeat), now, rows.load(folder))
            up = threading.Event()
            clock = threading.Timer(max(0.0, ends - time.monotonic()), up.set)
            clock.start()
            for row in run_gauntlet(attempts, now, _at_once(mode, options.at_once), up):
                if up.is_set():
                    break  # what was interrupted says nothing
                note(folder, row, time.monotonic() - began)
            clock.cancel()


def _at_once(mode: str, asked: int) -> int:
    return AT_ONCE if mode == "attach" and asked == 1 else asked


def note(folder: Path, row: Row, seconds: float) -> None:
    """Keep a row and say it."""
    rows.append(folder, row)
    mark = "right" if row.right else "WRONG"
    print(
        f"{seconds:5.0f} s {mark} {row.drill} ({row.mode}) {row.state}/{row.cause} {row.confidence} "
        f"after {row.seconds or 0.0:.1f} s, culprit {row.culprit_right}: {row.broken or row.fault or row.summary}",
        flush=True,
    )


def table(done: Sequence[Row]) -> None:
    """Print, for each drill and way of asking: how often right, the culprit right, and how soon after the onset."""
    known = {drill.name: drill for drill in DRILLS}
    print(f"\n{'drill':34} {'mode':7} {'n':>3} {'right':>6} {'culprit':>8} {'p50 s':>7} {'p95 s':>7} {'max s':>7}")
    for name, mode in sorted({(row.drill, row.mode) for row in done}):
        print(_line(name, mode, [row for row in done if (row.drill, row.mode) == (name, mode)], known.get(name)))
    hung = [row for row in done if row.expected_state == "hung" and row.broken is None]
    print(_line("all that hang", "", hung, None))
    alike = [row for row in done if row.expected_state != "hung" and row.broken is None]
    print(f"called hung and is not: {sum(row.state == 'hung' for row in alike)} of {len(alike)}")


def _line(name: str, mode: str, mine: Sequence[Row], drill: Drill | None) -> str:
    named = [row.culprit_right for row in mine if row.culprit_right is not None]
    blamed = f"{sum(named)}/{len(named)}" if named and (drill is None or drill.culprit is not None) else "-"
    times = _times(mine)
    quantiles = "".join(f" {quantile(times, share) or 0.0:7.1f}" for share in (0.5, 0.95, 1.0)) if times else ""
    return f"{name:34} {mode:7} {len(mine):3} {sum(row.right for row in mine):6} {blamed:>8}{quantiles}"


def _times(mine: Iterable[Row]) -> list[float]:
    return [row.seconds for row in mine if row.right and row.seconds is not None]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for rows, sessions and recordings")
    parser.add_argument("--only", default="", help="these drills or causes, separated by commas")
    parser.add_argument("--mode", default="attach,run", help="attach, run, or both, separated by a comma")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--ranks", type=int, help="so many ranks, each with a card, in place of the drills' own number")
    parser.add_argument("--share-cards", action="store_true", help="several ranks on a card, as if on several hosts")
    parser.add_argument("--at-once", type=int, default=1, help="so many programs share the cards")
    parser.add_argument("--seconds", type=float, default=86400.0, help="be done after so many seconds")
    parser.add_argument("--tables", action="store_true", help="run nothing: tables and recordings of what is there")
    parser.add_argument("--again", action="store_true", help="run nothing: judge what is there again")
    parser.add_argument("--no-recordings", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
