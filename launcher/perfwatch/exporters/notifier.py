"""The process that posts to the webhook: each message a few times at most, each try under a deadline, then it is given up."""

import time
from dataclasses import dataclass
from typing import Any

from perfwatch.processes.channel import Channel, Message
from perfwatch.processes.helper import Helper
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.probe import Unavailable

MOST_RETRY_AFTER_SECONDS = 60.0


@dataclass(frozen=True)
class Policy:
    """How hard to try: before each try so many seconds of waiting; after the watch has ended, for so long in all."""

    waits_seconds: tuple[float, ...] = (0.0, 2.0, 10.0, 30.0)
    deadline_seconds: float = 10.0  # of one try, name look-up and all
    last_seconds: float = 20.0


class Notifier:
    """Posts what it is given, in order.

    Args:
        url: where to; it is kept in memory alone, and never said: it may be a secret.
        policy: how hard to try.
    """

    def __init__(self, url: str, policy: Policy | None = None) -> None:
        policy = policy or Policy()
        self.posted = self.failed = 0
        self._helper = Helper("perfwatch-notify", lambda channel: _Post(channel, url, policy).serve(), keep=True)

    def post(self, content: dict[str, Any]) -> None:
        """Hand over; never waits."""
        self._helper.send({"post": content})

    def fileno(self) -> int:
        """For poll(): readable when there is news."""
        return self._helper.fileno()

    def news(self) -> list[str]:
        """Sentences for the user: each reason once."""
        said = []
        for message in self._helper.hear():
            self.posted += message.get("posted", 0)
            self.failed += message.get("failed", 0)
            said += [message["say"]] if "say" in message else []
        return said

    def close(self) -> None:
        """Nothing more comes: what was handed over is still tried, without us."""
        self._helper.close(kill=False)


class _Post:
    """Runs in the helper."""

    def __init__(self, channel: Channel, url: str, policy: Policy) -> None:
        self._channel, self._url, self._policy = channel, url, policy
        self._caller = KillableChild()
        self._queue: list[Message] = []
        self._ends: float | None = None  # once the watch has ended
        self._said: set[str] = set()

    def serve(self) -> None:
        while True:
            self._listen(None if not self._queue else 0.0)
            if self._queue:
                self._deliver(self._queue.pop(0)["post"])
            elif self._ends is not None:
                self._caller.close()
                return

    def _listen(self, seconds: float | None) -> None:
        if self._ends is None:
            self._queue += [message for message in self._channel.receive(seconds) if "post" in message]
            if self._channel.closed:
                self._ends = time.monotonic() + self._policy.last_seconds

    def _deliver(self, content: dict[str, Any]) -> None:
        why, asked = "", 0.0
        for wait in self._policy.waits_seconds:
            self._wait(max(wait, asked) if why else wait)
            left = float("inf") if self._ends is None else self._ends - time.monotonic()
            if left <= 0.0:
                break
            why, again, asked = self._try(content, min(left, self._policy.deadline_seconds))
            if not why:
                self._channel.send({"posted": 1})
                return
            if not again:
                break
        self._channel.send({"failed": 1})
        if why not in self._said:
            self._said.add(why)
            self._channel.send({"say": f"a change of the verdict was not posted: {why}"})

    @property
    def _late(self) -> str:
        return f"the webhook did not answer within {self._policy.deadline_seconds:g} s"

    def _try(self, content: dict[str, Any], seconds: float) -> tuple[str, bool, float]:
        """Why it was not taken (empty: it was), whether to try again, and for how long the other side asks to wait."""
        try:
            status, asked = self._caller.call(send, self._url, content, seconds, deadline_seconds=seconds)
        except Unavailable:
            return self._late, True, 0.0
        except Exception as error:  # refused, no such name, a certificate that nobody signed
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):  # whose clock is first: the child's, or that for the child
                return self._late, True, 0.0
            return (
                f"the webhook cannot be reached: {getattr(reason, 'strerror', None) or type(reason).__name__}",
                True,
                0.0,
            )
        if 200 <= status < 300:
            return "", False, 0.0
        again = status >= 500 or status in (408, 429)
        return f"the webhook answered {status}", again, min(asked, MOST_RETRY_AFTER_SECONDS)

    def _wait(self, seconds: float) -> None:
        """Between two tries; what is handed over meanwhile is taken, and when the watch ends the waiting is cut short."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0.0:
            if self._ends is not None:
                time.sleep(max(0.0, min(left, self._ends - time.monotonic())))
                return
            self._listen(left)


def send(url: str, content: dict[str, Any], seconds: float) -> tuple[int, float]:
    """POST it once; the status, and the seconds of a Retry-After. Runs in a killable child of the helper.

    A redirect is an answer like another: it is not followed, for the URL may be a secret.
    """
    import json
    import urllib.error
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    request = urllib.request.Request(
        url, json.dumps(content).encode(), {"Content-Type": "application/json", "User-Agent": "perfwatch"}
    )
    try:
        with urllib.request.build_opener(Stay).open(request, timeout=seconds) as answer:
            return answer.status, 0.0
    except urllib.error.HTTPError as error:
        asked = error.headers.get("Retry-After", "") if error.headers else ""
        return error.code, float(asked) if asked.isdecimal() else 0.0
    except urllib.error.URLError as error:
        if isinstance(error.reason, OSError):
            raise OSError(error.reason.errno, error.reason.strerror or type(error.reason).__name__) from None
        raise OSError(None, str(error.reason)) from None
