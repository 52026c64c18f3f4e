"""An outcome in words, for a terminal and for the session's events."""

import os
import time
from collections.abc import Callable

from perfwatch.captures.capture import Outcome
from perfwatch.text import duration

AGAIN_SECONDS = 15.0


class Progress:
    """Says what a capture does: each part of it once, and now and then how long that has taken.

    Args:
        tell: takes a line.
        clock: monotonic seconds.
    """

    def __init__(self, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell, self._clock = tell, clock
        self._said, self._began, self._at = "", 0.0, 0.0

    def now(self, said: str) -> None:
        """What the capture does now; empty: nothing yet."""
        at = self._clock()
        if said and said != self._said:
            self._said, self._began, self._at = said, at, at
            self._tell(said)
        elif said and at - self._at >= AGAIN_SECONDS:
            self._at = at
            self._tell(f"{said}, for {duration(at - self._began)} so far")


def told(outcome: Outcome) -> list[str]:
    """What came of a capture, a line each."""
    if outcome.error:
        return [f"{outcome.kind}: {outcome.error}", *(f"  {line}" for line in outcome.advice.splitlines())]
    if not outcome.files:
        notes = [f"note: {note}" for note in outcome.notes]
        return [*outcome.summary.splitlines(), *notes, *filter(None, (outcome.cost,)), headline(outcome)]
    lines = [headline(outcome)]
    lines += [f"  {file.path}" + (f" ({file.opens_with})" if file.opens_with else "") for file in outcome.files]
    lines += [f"  note: {note}" for note in outcome.notes]
    lines += [f"  {line}" for line in outcome.summary.splitlines()]
    if outcome.cost:
        lines.append(f"  {outcome.cost}")
    return lines


def headline(outcome: Outcome) -> str:
    """The same in a line."""
    if outcome.error:
        return f"{outcome.kind}: {outcome.error}"
    took = duration(outcome.total_seconds)
    if not outcome.files:
        return f"{outcome.kind}: sampled in {took}"
    window = f" of a window of {duration(outcome.window_seconds, 3)}" if outcome.window_seconds is not None else ""
    names = [os.path.basename(file.path) for file in outcome.files]
    what = names[0] if len(names) == 1 else f"{len(names)} files"
    size = sum(file.size_bytes for file in outcome.files)
    much = f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{size / 2**10:.0f} KiB"
    return f"{outcome.kind}: wrote {what} ({much}){window} in {took}"
