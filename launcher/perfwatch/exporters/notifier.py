"""The process that posts to the webhook: each message a few times at most, each try under a deadline, then it is given up."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfwatch.processes.channel import Channel, Message
from perfwatch.processes.helper import HelperClient
from perfwatch.text import duration
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.probe import Unavailable

MOST_RETRY_AFTER_SECONDS = 60.0
NOT_TAKEN = 503  # said of a service of apprise, which does not tell why
SPOOL_SECONDS = 300.0  # until what could not be posted is tried again
MOST_SPOOLED, OLDEST_SPOOLED_SECONDS = 32, 86400.0


@dataclass(frozen=True)
class Policy:
    """How hard to try: before each try so many seconds of waiting; after the watch has ended, for so long in all."""

    waits_seconds: tuple[float, ...] = (0.0, 2.0, 10.0, 30.0)
    deadline_seconds: float = 10.0  # of one try, name look-up and all
    last_seconds: float = 20.0


class Notifier(HelperClient):
    """Posts what it is given, in order.

    Args:
        url: where to; it is kept in memory alone, and never said: it may be a secret.
        policy: how hard to try.
        spool: a folder that keeps what could not be posted, for a day, also over a restart; None: it is given up.
    """

    def __init__(self, url: str, policy: Policy | None = None, spool: Path | None = None) -> None:
        policy = policy or Policy()
        self.posted = self.failed = 0
        super().__init__("perfwatch-notify", lambda channel: _Post(channel, url, policy, spool).serve(), finishes=True)

    def post(self, content: dict[str, Any]) -> None:
        """Hand over; never waits."""
        self._helper.send({"post": content})

    def _heard(self, message: Message) -> None:
        self.posted += message.get("posted", 0)
        self.failed += message.get("failed", 0)


class _Post:
    """Runs in the helper."""

    def __init__(self, channel: Channel, url: str, policy: Policy, spool: Path | None) -> None:
        self._channel, self._url, self._policy, self._spool = channel, url, policy, spool
        self._again = 0.0  # when what was kept is tried again
        self._caller = KillableChild()
        self._queue: list[Message] = []
        self._ends: float | None = None  # once the watch has ended
        self._said: set[str] = set()

    def serve(self) -> None:
        while True:
            left = max(0.0, self._again - time.monotonic()) if self._spool is not None and self._ends is None else None
            self._listen(left if not self._queue else 0.0)
            if self._queue:
                self._deliver(self._queue.pop(0)["post"])
            elif self._spool is not None and self._ends is None and time.monotonic() >= self._again:
                self._try_kept(self._spool)
            elif self._ends is not None:
                self._caller.close()
                return

    def _listen(self, seconds: float | None) -> None:
        if self._ends is None:
            self._queue += [message for message in self._channel.receive(seconds) if "post" in message]
            if self._channel.closed:
                self._ends = time.monotonic() + self._policy.last_seconds

    def _deliver(self, content: dict[str, Any]) -> None:
        why, asked, again = "", 0.0, True
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
        why = why or "the watch has ended"
        kept = self._spool is not None and again and self._keep(self._spool, content)
        self._channel.send({"failed": 0 if kept else 1})
        why = f"{why}; it is kept and tried again every {duration(SPOOL_SECONDS)}" if kept else why
        if why not in self._said:
            self._said.add(why)
            self._channel.send({"say": f"a change of the verdict was not posted: {why}"})

    def _keep(self, spool: Path, content: dict[str, Any]) -> bool:
        """For later; the oldest give way."""
        try:
            spool.mkdir(mode=0o700, exist_ok=True)
            kept = sorted(spool.iterdir())
            for old in kept[: max(0, len(kept) - MOST_SPOOLED + 1)]:
                old.unlink()
            path = spool / f"{time.time_ns():020}"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(json.dumps(content).encode())
        except OSError:
            return False
        return True

    def _try_kept(self, spool: Path) -> None:
        """One try each, the oldest first; with the first that fails it is enough for now."""
        self._again = time.monotonic() + SPOOL_SECONDS
        try:
            kept = sorted(path for path in spool.iterdir() if path.name.isdecimal())
        except OSError:
            return
        for path in kept:
            try:
                content = json.loads(path.read_bytes())
                age = time.time() - int(path.name) / 1e9
                why, again, _ = (
                    self._try(content, self._policy.deadline_seconds)
                    if age < OLDEST_SPOOLED_SECONDS
                    else ("", False, 0.0)
                )
                if why and again:
                    return
                path.unlink()
            except (OSError, ValueError):
                continue
            if age < OLDEST_SPOOLED_SECONDS and not why:
                self._channel.send({"posted": 1})

    @property
    def _late(self) -> str:
        return f"the webhook did not answer within {self._policy.deadline_seconds:g} s"

    def _try(self, content: dict[str, Any], seconds: float) -> tuple[str, bool, float]:
        """Why it was not taken (empty: it was), whether to try again, and for how long the other side asks to wait."""
        try:
            status, asked = self._caller.call(send, self._url, content, seconds, deadline_seconds=seconds)
        except Unavailable:
            return self._late, True, 0.0
        except Exception as error:  # refused, no such name, an unsigned certificate
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
    from perfwatch.exporters.receivers import form_of, post_of, through_apprise

    if form_of(url)[0] == "apprise":
        return (200, 0.0) if through_apprise(url, content) else (NOT_TAKEN, 0.0)
    made = post_of(url, content)
    return post_json(made.url, made.body, {}, seconds)


def post_json(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> tuple[int, float]:
    """The status, and the seconds of a Retry-After. A redirect is not followed. Raises OSError."""
    import urllib.error
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    own = {"Content-Type": "application/json", "User-Agent": "perfwatch"}
    request = urllib.request.Request(url, body, own | dict(headers))
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
