"""One job under watch, in a process of its own: whatever its sick processes do to their observer stays there."""

import io
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from perfwatch.daemon.scanner import Found
from perfwatch.errors import PerfwatchError
from perfwatch.exporters.exporters import Outlets
from perfwatch.exporters.snapshot import Snapshot
from perfwatch.exporters.wanted import DEFAULT_NEWS
from perfwatch.processes.channel import Channel, Message
from perfwatch.processes.helper import Helper
from perfwatch.recording.recording import Sink
from perfwatch.recording.session import Session
from perfwatch.verdict import confidence_word
from perfwatch.watching.news import News

REFRESH_SECONDS = 5.0  # scrapers come every 15 s
LATE_SECONDS = 60.0
SILENT_SECONDS = 180.0  # the loop beats every few seconds; one that does not is stuck itself


@dataclass(frozen=True)
class Terms:
    """What each watch of the node is told: where recordings go, how large one may be, and for how long waits are given time."""

    home: Path
    budget_bytes: int
    patience_seconds: float
    metrics: bool
    notify: bool
    act: bool
    news: tuple[str, ...] = DEFAULT_NEWS


class Ward:
    """The watched job, seen from the node.

    Args:
        found: the job.
        terms: how it is watched.
        now: monotonic seconds.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, found: Found, terms: Terms, now: float) -> None:
        self.found = found
        self.began = self._beat = now
        self.session = ""  # its folder, once there is one
        self.roots: set[int] = {found.root.pid}
        self.leaving = False
        self.helper = Helper("perfwatch-watch", lambda channel: _watch(channel, found.trainers[0], terms))

    def hear(self, now: float) -> list[Message]:
        """What its watch has said since."""
        messages = self.helper.hear()
        if messages:
            self._beat = now
        for message in messages:
            self.session = message.get("session", self.session)
            self.roots |= set(message.get("roots", ()))
        return messages

    def stuck(self, now: float) -> bool:
        """True if its loop has stopped turning."""
        return now - self._beat > SILENT_SECONDS

    def late(self, now: float) -> bool:
        """True if nothing has come from it for too long: it may be blind."""
        return now - self._beat > LATE_SECONDS

    def leave(self) -> None:
        """Ask it to complete its recording and end."""
        self.leaving = True
        self.helper.ask_to_leave()


class _Voice(io.TextIOBase):
    """Where a watch says what it says to people: to the node."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def write(self, text: str) -> int:
        if text.strip():
            self._channel.send({"say": text.strip().removeprefix("perfwatch: ")})
        return len(text)


class _Snapshots:
    """The way to the node's metrics; without metrics, a beat that says that the loop turns."""

    def __init__(self, channel: Channel, wanted: bool) -> None:
        self._channel, self._wanted = channel, wanted

    def put(self, snapshot: Snapshot) -> None:
        self._channel.send({"snapshot": msgspec.to_builtins(snapshot)} if self._wanted else {"beat": True})

    def news(self) -> list[str]:
        return []

    def close(self) -> None:
        pass  # the node shows the last word for a while


class _Posts:
    """The way to the node's webhook."""

    posted = failed = 0

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def post(self, content: dict[str, Any]) -> None:
        self._channel.send({"post": content})

    def news(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


class _Acts:
    """The way to the node's command."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def act(self, content: dict[str, Any], own: bool) -> None:
        self._channel.send({"act": content, "own": own})

    def news(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


def _news(news: News) -> Message:
    """A change as the node logs it: a suspicion has the state and the cause of what is suspected."""
    fields: dict[str, object] = {"watched_seconds": round(news.at, 3)}
    if news.verdict is not None:
        of, verdict = news.suspect or news.verdict, news.verdict
        fields |= {"state": of.state, "cause": of.cause, "silent_seconds": of.silent_seconds}
        fields |= {"last_step": verdict.last_step, "action": verdict.action}
        if news.suspect is None:
            fields["confidence"] = confidence_word(verdict.confidence)
        if verdict.job is not None:
            fields["job"] = {
                name: value for name, value in msgspec.to_builtins(verdict.job).items() if value is not None
            }
    return {"news": {"text": news.text, "line": news.line(), "event": news.kind, **fields}}


def _watch(channel: Channel, pid: int, terms: Terms) -> None:
    """Runs in the ward's process until the job has ended or the node asks it to leave."""
    from perfwatch.attach.attached import Attached
    from perfwatch.processes.stop_signals import Leaving

    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the helper ignores it; ``Leaving`` hears it unless it is ignored

    def opened(session: Session, folder: Path | None, recorder: Sink | None) -> Outlets:
        return Outlets(
            session,
            folder,
            recorder,
            metrics=_Snapshots(channel, terms.metrics),
            notifier=_Posts(channel) if terms.notify else None,
            actor=_Acts(channel) if terms.act else None,
            wanted_news=terms.news,
            refresh_seconds=REFRESH_SECONDS,
        )

    with Leaving() as leaving:
        try:
            attached = Attached(
                pid,
                leaving,
                session=str(terms.home),
                patience_seconds=terms.patience_seconds,
                outlets=opened,
                mode="daemon",
                budget_bytes=terms.budget_bytes,
            )
        except PerfwatchError as error:  # it ended while we came
            channel.send({"gone": error.message})
            return
        channel.send({"session": str(attached.folder or ""), "roots": list(attached.roots)})
        if attached.contained_run:
            channel.send(
                {"say": "a perfwatch run in its container counts its steps; what that one says is not taken over"}
            )
        verdict = attached.stay(cast(IO[str], _Voice(channel)), lambda news: channel.send(_news(news)))
        channel.send({"ended": {"state": verdict.state, "cause": verdict.cause, "summary": verdict.summary}})
        loss = attached.close()
        if loss:
            channel.send({"say": loss})
