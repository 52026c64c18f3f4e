"""How long a thread is in a state, as far as its samples tell."""

from perfwatch.triage.history import Seen
from perfwatch.triage.shares.profile import Profile
from perfwatch_probes.readings import Frame, Stack

WAITS, WORKS = "wait", "work"


def seen(*samples: tuple[float, str]) -> Profile:
    """One sample each: when, and of what."""
    stacks = [(at, Stack(pid=1, tid=1, frames=(Frame(what, "/u/t.py", 1),), samples=1)) for at, what in samples]
    return Profile(tuple(Seen(at, stack) for at, stack in stacks), samples[-1][0] - samples[0][0])


def waits(stack: Stack) -> bool:
    """What is asked for here."""
    return stack.frames[0].function == WAITS


def test_a_stretch_lasts_until_something_else_is_seen() -> None:
    """Samples that come one after the other leave no gap."""
    assert seen((1.0, WORKS), (1.2, WAITS), (1.4, WAITS), (1.6, WORKS)).runs(waits) == [(1.2, 1.6)]


def test_what_happens_while_nobody_looks_is_no_part_of_a_stretch() -> None:
    """Between two records of stacks lies a second: a wait that was seen at the end of one may have ended at once."""
    assert seen((1.0, WORKS), (1.2, WAITS), (2.4, WORKS)).runs(waits) == [(1.2, 1.2)]
