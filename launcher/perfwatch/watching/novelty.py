"""Which readings of a thread are recorded: each change, and about once a second a confirmation that nothing changed."""

from collections.abc import Callable

from perfwatch_probes.readings import Thread

CONFIRM_SECONDS = 0.95  # a thread in which nothing changes is recorded once a second: two sightings make a verdict


class Novelty:
    """Remembers what was last recorded of each thread.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[tuple[int, int], tuple[object, float]] = {}  # what was recorded, and when

    def is_news(self, thread: Thread) -> bool:
        """True if it changed, or the last line about it is old enough to be confirmed."""
        now = self._clock()
        wait = (thread.wait.call, thread.wait.fd) if thread.wait else None
        news = (thread.state, thread.run_seconds, thread.voluntary_switches, thread.write_calls, wait)
        before, at = self._last.get((thread.pid, thread.tid), (None, 0.0))
        if news == before and now - at < CONFIRM_SECONDS:
            return False
        self._last[thread.pid, thread.tid] = (news, now)
        return True

    def forget(self, seconds: float) -> None:
        """Drop those of which nothing was recorded for so long: they ended, or will be news again."""
        oldest = self._clock() - seconds
        self._last = {key: one for key, one in self._last.items() if one[1] >= oldest}
