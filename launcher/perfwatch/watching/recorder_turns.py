"""When to query the ranks' flight recorders: twice, so that the answers can be compared, then not for a long time.

Each query makes torch write a line of level E to the job's standard error.
"""

from collections.abc import Callable

REST_SECONDS = 1.0  # ranks must be seen at rest again, so long after they first were
APART_SECONDS = 4.0  # between the two questions: a rank looks at its pipe once a second, and writes within another
PAIR = 2
PAUSE_SECONDS = 60.0  # before the next pair


class RecorderTurns:
    """Counts the questions.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rests_since: float | None = None
        self._looked_at: float | None = None
        self._asked: list[float] = []  # of the newest pair

    def due(self, rests: Callable[[], bool], told: bool) -> bool:
        """True if to ask now. ``rests`` is called at most once a second; told: a hang was told, and has not moved since."""
        now = self._clock()
        if told:
            self._rests_since = None
            return False
        if self._asked and now - self._asked[-1] >= PAUSE_SECONDS:
            self._asked.clear()
        if len(self._asked) >= PAIR or (self._asked and now - self._asked[-1] < APART_SECONDS):
            return False
        if self._looked_at is not None and now - self._looked_at < REST_SECONDS:
            return False
        self._looked_at = now
        if not rests():
            self._rests_since = None
            return False
        self._rests_since = now if self._rests_since is None else self._rests_since
        return now - self._rests_since >= REST_SECONDS

    def asked(self) -> None:
        """The ranks were asked."""
        self._asked.append(self._clock())

    def unheard(self) -> None:
        """No rank was there to be asked: nothing was written anywhere."""
        del self._asked[-1:]
