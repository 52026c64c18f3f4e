"""Hold the levers against what the pairs measured: for each pair the lever named first, its predicted range, its measured gain.

    python scripts/headroom/score.py FOLDER [NAME ...]

FOLDER holds what ``all_pairs.py`` left, unpacked. Goals: of the pairs, the largest lever is named first in 22 of 24; the measured
gain of the first lever lies in its range in 80 %; a tuned program is told no lever worth more than 5 %.
"""

import json
import lzma
import sys
import tempfile
from pathlib import Path
from typing import Any

from perfwatch.headroom.advice import Headroom, advise, middle
from perfwatch.headroom.step import Steps, read

LINES = "--no-lines" not in sys.argv
NOISE = 0.02  # of a step: two levers that differ by less are equal
MOST_OF_A_TUNED, NO_GAIN = 1.05, 1.02


def main(folder: Path, chosen: set[str]) -> None:
    """A row for each program, then the three sums."""
    first = within = pairs = tuned = quiet = 0
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        name = result["name"]
        if chosen and name not in chosen:
            continue
        seconds = result["median_seconds"]
        kind = "off" if result["off"] else "on"
        if kind not in seconds or not (folder / f"{name}-{kind}.json.xz").exists():
            print(f"{name:26} not measured: {result.get('failed')}")
            continue
        found = headroom(folder, name, kind, seconds[kind])
        told = "; ".join(f"{one.lever} {one.times[0]:.2f}-{one.times[1]:.2f} {one.where}" for one in found.levers)
        if not result["off"]:
            tuned += 1
            loud = [one.lever for one in found.levers if middle(one) > MOST_OF_A_TUNED]
            quiet += not loud
            print(f"{name:26} tuned   {'ok ' if not loud else 'NO '} {told}")
            continue
        gains = {one: seconds["off"] / seconds[one] for one in (*result["off"], *result["instead"]) if one in seconds}
        if not gains:
            gains = {result["off"][0]: seconds["off"] / seconds["on"]}
        best = max(gains.values())
        if best < NO_GAIN:  # what was expected to help did not: nothing of it may be told
            tuned += 1
            loud = [one.lever for one in found.levers if one.lever in gains and middle(one) > MOST_OF_A_TUNED]
            quiet += not loud
            print(f"{name:26} no gain {'ok ' if not loud else 'NO '} {told}")
            continue
        pairs += 1
        largest = [one for one, gain in gains.items() if gain >= best * (1 - NOISE)]
        lever = found.levers[0] if found.levers else None
        hit = lever is not None and lever.lever in largest
        inside = False
        if lever is not None and lever.lever in gains:
            inside = lever.times[0] * (1 - NOISE) <= gains[lever.lever] <= lever.times[1] * (1 + NOISE)
        first += hit
        within += inside
        measured = ", ".join(f"{one} {gain:.2f}" for one, gain in sorted(gains.items(), key=lambda item: -item[1]))
        print(flush=True, end="")
        print(f"{name:26} {'first' if hit else 'NOT  '} {'in ' if inside else 'OUT'} measured {measured} | told {told}")
    print(
        f"largest lever first {first} of {pairs}; measured gain in the range {within} of {pairs}; tuned and quiet {quiet} of {tuned}"
    )


def headroom(folder: Path, name: str, kind: str, usual_seconds: float) -> Headroom:
    """What is told of one variant, with the lines of its second window."""
    stacks = folder / f"{name}-{kind}-stacks.json.xz"
    lines = steps(stacks) if LINES and stacks.exists() else None
    return advise(steps(folder / f"{name}-{kind}.json.xz", usual_seconds), folder / name, lines)


def steps(path: Path, usual_seconds: float | None = None) -> Steps:
    """The steps of a packed trace."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(lzma.decompress(path.read_bytes()))
        file.flush()
        found: Any = read(Path(file.name), usual_seconds)
        return found  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(Path(sys.argv[1]), set(sys.argv[2:]) - {"--no-lines"})
