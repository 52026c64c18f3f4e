"""Which capture a signal or a verdict asks for, and how often a verdict may. Pure but for the clock that is handed in."""

from collections.abc import Callable
from dataclasses import dataclass, field

from perfwatch.captures.capture import Capture, Request, Scene
from perfwatch.errors import UsageError

# By state of a verdict: what shows most of it without hanging as well, best first.
RULED: dict[str, tuple[str, ...]] = {"slow": ("nsys", "torch"), "hung": ("stacks", "torch")}
COOLDOWN_SECONDS = 600.0  # between two captures that a verdict asked for
MOST_BY_RULE = 3  # in one session
TOGETHER_SECONDS = 2.0  # triggers so close to each other are one


def signalled(what: str, scene: Scene) -> Capture | None:
    """The armed capture that a signal of this meaning ("timeline", "kernels") asks for."""
    from perfwatch.captures.catalogue import CAPTURES

    return next((one for one in CAPTURES if one.TRIGGERED_BY == what and one.NAME in scene.armed), None)


def ruled(state: str, scene: Scene) -> tuple[Capture, ...]:
    """The captures that help with a verdict of this state, best first: those that the job is armed for, then the others.

    An unarmed nsys can sample the machine alone, and shows no kernel.
    """
    from perfwatch.captures.catalogue import named

    found = [one for name in RULED.get(state, ()) if (one := named(name)) is not None]
    return tuple(sorted(found, key=lambda one: bool(one.TRIGGERED_BY) and one.NAME not in scene.armed))


def states(text: str) -> tuple[str, ...]:
    """``--capture-on slow,hung`` in parts. Raises UsageError for a state that no capture helps with."""
    wanted = tuple(word.strip() for word in text.split(",") if word.strip())
    wrong = [word for word in wanted if word not in RULED]
    if wrong:
        raise UsageError(f"--capture-on {text}: {wrong[0]} is not one of {', '.join(RULED)}", "--capture-on slow,hung")
    return wanted


@dataclass
class Limits:
    """Keeps triggers from becoming a load.

    Args:
        clock: monotonic seconds.
    """

    clock: Callable[[], float]
    by_rule: int = 0
    _ruled_at: float = field(default=float("-inf"))
    _triggered_at: float = field(default=float("-inf"))

    def together(self) -> bool:
        """True if a trigger belongs to the one before it; counts it as the newest either way."""
        now = self.clock()
        with_it = now - self._triggered_at < TOGETHER_SECONDS
        self._triggered_at = now
        return with_it

    def allow_rule(self) -> bool:
        """True if a verdict may ask for a capture now; counts it if so."""
        now = self.clock()
        if self.by_rule >= MOST_BY_RULE or now - self._ruled_at < COOLDOWN_SECONDS:
            return False
        self.by_rule, self._ruled_at = self.by_rule + 1, now
        return True


def request_for(capture: Capture, scene: Scene, asked_by: str) -> Request:
    """The capture's default window; one of time where the job makes no steps."""
    seconds = 2.0 if scene.may_be_hung and capture.TRIGGERED_BY else None
    return Request(kind=capture.NAME, seconds=seconds, asked_by=asked_by)
