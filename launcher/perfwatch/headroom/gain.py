"""What a lever would bring, as a range: Amdahl's law over three resources of a step.

A step takes max(card, host) + rest: the card works, the host launches ahead of it, and in the rest each waits for the other (a value
that is read, data, a copy that nothing overlaps). A lever takes seconds from one of them. So work taken from the card brings nothing
beyond the point at which the host is too slow, and fewer launches bring nothing to a card that is busy all the time.
"""

from dataclasses import dataclass

from perfwatch.headroom.step import Steps


@dataclass(frozen=True)
class Saved:
    """Seconds a step that a lever takes from the card, from the host, and from what each waits for the other."""

    card: float = 0.0
    host: float = 0.0
    rest: float = 0.0


@dataclass(frozen=True)
class Budget:
    """A step in seconds. ``host``: at most; ``host_least``: at least, for the profiler's own time is in what a trace shows."""

    seconds: float
    card: float
    host: float
    host_least: float = 0.0

    @property
    def rest(self) -> float:
        """In which card and host wait for each other."""
        return max(0.0, self.seconds - max(self.card, self.host))

    def times(self, saved: Saved, *, host: float | None = None) -> float:
        """How many times as fast a step is without what is saved.

        Args:
            host: seconds of it at least, for the most that a lever brings: in the rest the card waits, and the host works in
                that time; so with a faster card the step is the host's alone, not the host's and the rest.
        """
        needs = self.host if host is None else host
        rest = max(0.0, self.seconds - max(self.card, needs))
        card, works = max(0.0, self.card - saved.card), max(0.0, needs - saved.host)
        rest = max(0.0, rest - saved.rest)
        left = max(card, works) + rest if host is None else max(card + rest, works)
        return self.seconds / max(left, 0.02 * self.seconds)


def budget(steps: Steps) -> Budget:
    """The budget of a step."""
    least, most = steps.host_seconds
    return Budget(steps.seconds, min(steps.busy_seconds, steps.seconds), most, least)


def times_range(budget: Budget, least: Saved, most: Saved) -> tuple[float, float]:
    """Speed-up at least and at most."""
    low, high = budget.times(least), budget.times(most, host=budget.host_least)
    return (low, high) if low <= high else (high, low)
