"""``--heartbeat``: a ping for a dead-man's switch. It stops when the watch does, or when nothing is seen any more.

The other side (healthchecks.io, a Push monitor of Uptime Kuma, Alertmanager's Watchdog receiver) raises the alarm when no ping comes.
"""

import time
from collections.abc import Callable

from perfwatch.processes.channel import Channel
from perfwatch.processes.helper import HelperClient
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.probe import Unavailable

EVERY_SECONDS = 60.0
DEADLINE_SECONDS = 10.0


class Heartbeat(HelperClient):
    """Pings at most once a minute.

    Args:
        url: where to; kept in memory alone.
        clock: monotonic seconds.
        every_seconds: how often.
    """

    def __init__(
        self, url: str, clock: Callable[[], float] = time.monotonic, every_seconds: float = EVERY_SECONDS
    ) -> None:
        self._clock, self._every, self._due = clock, every_seconds, float("-inf")
        super().__init__("perfwatch-beat", lambda channel: _serve(channel, url))

    def beat(self) -> None:
        """The watch sees what it is to see. Never waits."""
        now = self._clock()
        if now >= self._due:
            self._due = now + self._every
            self._helper.send({"beat": True})


def _serve(channel: Channel, url: str) -> None:
    """Runs in the helper. Pings that came due while one was on its way are one."""
    child, said = KillableChild(), set()
    while not channel.closed:
        if not channel.receive(None):
            continue
        why = why_not(lambda: child.call(ping, url, deadline_seconds=DEADLINE_SECONDS))
        if why and why not in said:
            said.add(why)
            channel.send({"say": f"a heartbeat did not arrive: {why}"})
    child.close()


def why_not(ask: Callable[[], int]) -> str:
    """Why a request was not taken, in words; empty where it was. ``ask`` returns the status of the answer."""
    try:
        status = ask()
    except Unavailable:
        return "it does not answer"
    except Exception as error:  # refused, no such name, an unsigned certificate
        return getattr(getattr(error, "reason", error), "strerror", None) or type(error).__name__
    return "" if 200 <= status < 300 else f"it answered {status}"


def ping(url: str) -> int:
    """GET it once; the status."""
    import urllib.error
    import urllib.request

    request = urllib.request.Request(url, headers={"User-Agent": "perfwatch"})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
