"""Everything through which one watch speaks to other programs, opened as the user wants it; each may fail without harm."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from perfwatch.exporters.announcer import Announcer
from perfwatch.exporters.collector import CollectorClient
from perfwatch.exporters.gauges import Gauges
from perfwatch.exporters.heartbeat import Heartbeat
from perfwatch.exporters.metrics import MetricsServer
from perfwatch.exporters.notification import notification
from perfwatch.exporters.notifier import Notifier
from perfwatch.exporters.on_verdict import Actor, content_of, is_own
from perfwatch.exporters.snapshot import NodeSnapshot, Snapshot
from perfwatch.exporters.wanted import DEFAULT_NEWS, Wanted
from perfwatch.recording.recording import Sink
from perfwatch.recording.session import Session
from perfwatch.verdict import Verdict
from perfwatch.watching.news import News

REFRESH_SECONDS = 1.0

T = TypeVar("T")


class Outlet(Protocol):
    """What a watch tells while it goes on. No call waits or raises."""

    @property
    def sink(self) -> Sink | None: ...  # noqa: D102
    def news(self, news: News) -> None: ...  # noqa: D102
    def tick(self, lost_lines: int = 0) -> None: ...  # noqa: D102
    def ended(self, verdict: Verdict | None) -> None: ...  # noqa: D102


# Of a job, the folder of its recording, and what records.
Open = Callable[[Session, Path | None, Sink | None], Outlet]


class Metrics(Protocol):
    """Takes snapshots: ``MetricsServer``, or the way to one in another process."""

    def put(self, snapshot: Snapshot) -> None: ...  # noqa: D102
    def news(self) -> list[str]: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class NodeMetrics(Metrics, Protocol):
    """Takes the snapshots of all jobs of a node."""

    def put_node(self, node: NodeSnapshot) -> None: ...  # noqa: D102
    def drop(self, session: str) -> None: ...  # noqa: D102


class Everywhere:
    """Gives each snapshot to the server of the metrics and to the collector."""

    def __init__(self, takers: Sequence[NodeMetrics]) -> None:
        self._takers = takers

    def put(self, snapshot: Snapshot) -> None:
        """Replace what is known of a session."""
        for one in self._takers:
            one.put(snapshot)

    def put_node(self, node: NodeSnapshot) -> None:
        """Replace what is known of the node."""
        for one in self._takers:
            one.put_node(node)

    def drop(self, session: str) -> None:
        """A session is over."""
        for one in self._takers:
            one.drop(session)

    def news(self) -> list[str]:
        """Sentences for the user."""
        return [sentence for one in self._takers for sentence in one.news()]

    def close(self) -> None:
        """No more."""
        for one in self._takers:
            one.close()


class Posting(Protocol):
    """Takes what is to be posted: ``Notifier``, or the way to one in another process."""

    posted: int
    failed: int

    def post(self, content: dict[str, Any]) -> None: ...  # noqa: D102
    def news(self) -> list[str]: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Acting(Protocol):
    """Takes verdicts upon which something is to be done: ``Actor``, or the way to one in another process."""

    def act(self, content: dict[str, Any], own: bool) -> None: ...  # noqa: D102
    def news(self) -> list[str]: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Outlets:
    """Metrics, notifications and actions of one watched job.

    Args:
        session: the job.
        folder: of its recording; None where nothing is recorded.
        recorder: what records; ``sink`` passes everything on to it.
        say: takes sentences for the user.
        metrics: takes snapshots; None: no metrics are asked for.
        notifier: takes changes; None: no notifications are asked for.
        actor: takes verdicts; None: no command is to be run.
        wanted_news: the kinds of change that are posted.
        heartbeat: is beaten in each round; None: none is asked for.
        refresh_seconds: how often a snapshot is made.
        clock: monotonic seconds.

    Attributes:
        sink: stands in for the recorder.
    """

    def __init__(
        self,
        session: Session,
        folder: Path | None,
        recorder: Sink | None,
        say: Callable[[str], None] = lambda _: None,
        metrics: Metrics | None = None,
        notifier: Posting | None = None,
        actor: Acting | None = None,
        wanted_news: Sequence[str] = DEFAULT_NEWS,
        heartbeat: Heartbeat | None = None,
        refresh_seconds: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._folder, self._say, self._clock = session, folder, say, clock
        self._announcer = Announcer(clock)
        self._metrics, self._notifier, self._actor = metrics, notifier, actor
        self._own = actor is not None and is_own(session)
        self._refresh_seconds, self._wanted_news, self._heartbeat = refresh_seconds, wanted_news, heartbeat
        name = folder.name if folder is not None else f"pid-{session.root_pids[0] if session.root_pids else 0}"
        self._gauges = Gauges(recorder, session, name)
        self.sink: Sink | None = self._gauges if metrics is not None else recorder
        self._refreshed_at = float("-inf")

    def news(self, news: News) -> None:
        """The watch has told something."""
        if news.verdict is not None and news.kind in ("verdict", "retraction"):
            self._announcer.hear(news.verdict)

    def tick(self, lost_lines: int = 0) -> None:
        """Called in each round of the loop: hand over what is due. Never waits."""
        change = self._announcer.due() if self._notifier is not None or self._actor is not None else None
        refresh = change is not None or self._clock() - self._refreshed_at >= self._refresh_seconds
        if self._metrics is not None and refresh:  # a receiver of a change may look at once
            self._refreshed_at = self._clock()
            self._gauges.lost_lines = lost_lines
            self._metrics.put(self._gauges.snapshot(*self._counts()))
            self._tell(self._metrics.news())
        if self._notifier is not None:
            if change is not None and change.kind in self._wanted_news:
                folder = str(self._folder) if self._folder is not None else ""
                self._notifier.post(notification(change, self._session, folder))
            self._tell(self._notifier.news())
        if self._actor is not None:
            if change is not None:
                self._actor.act(content_of(change.verdict), self._own)
            self._tell(self._actor.news())
        if self._heartbeat is not None:
            self._heartbeat.beat()
            self._tell(self._heartbeat.news())

    def ended(self, verdict: Verdict | None) -> None:
        """The watch is over: the last verdict is posted too. What is handed over is tried without us."""
        if verdict is not None:
            self._announcer.hear(verdict)
        self._refreshed_at = float("-inf")  # the last state is shown, however short ago another one was
        self.tick()
        for one in (self._metrics, self._notifier, self._actor, self._heartbeat):
            if one is not None:
                one.close()

    def _counts(self) -> tuple[int, int]:
        return (self._notifier.posted, self._notifier.failed) if self._notifier is not None else (0, 0)

    def _tell(self, sentences: list[str]) -> None:
        for sentence in sentences:
            self._say(sentence)


def opened_outlets(
    wanted: Wanted, session: Session, folder: Path | None, recorder: Sink | None, say: Callable[[str], None]
) -> Outlets:
    """What was asked for, as far as processes can be started for it."""
    notifier, actor, heartbeat = open_notifier(wanted, say), open_actor(wanted, say), open_heartbeat(wanted, say)
    metrics = open_metrics(wanted, say)
    return Outlets(session, folder, recorder, say, metrics, notifier, actor, wanted.news, heartbeat)


def open_metrics(wanted: Wanted, say: Callable[[str], None]) -> NodeMetrics | None:
    """What serves metrics and what posts them, as far as it was asked for and its process can be started."""
    metrics, collector = wanted.metrics, wanted.collector
    takers: list[NodeMetrics | None] = []
    if metrics is not None:
        takers.append(_opened("metrics are served", lambda: MetricsServer(metrics), say))
    if collector is not None:
        takers.append(_opened("metrics are posted", lambda: CollectorClient(collector), say))
    opened = [one for one in takers if one is not None]
    return Everywhere(opened) if opened else None


def open_notifier(wanted: Wanted, say: Callable[[str], None], spool: Path | None = None) -> Notifier | None:
    """What posts, if that was asked for and its process can be started. spool: a folder for what could not be posted."""
    url = wanted.url
    return None if url is None else _opened("changes are posted", lambda: Notifier(url, spool=spool), say)


def open_heartbeat(wanted: Wanted, say: Callable[[str], None]) -> Heartbeat | None:
    """What pings, if that was asked for and its process can be started."""
    url = wanted.heartbeat
    return None if url is None else _opened("heartbeats are sent", lambda: Heartbeat(url), say)


def open_actor(wanted: Wanted, say: Callable[[str], None]) -> Actor | None:
    """What runs the operator's command, if that was asked for and its process can be started."""
    command = wanted.command
    return None if command is None else _opened("verdicts are acted on", lambda: Actor(command), say)


def _opened(what: str, start: Callable[[], T], say: Callable[[str], None]) -> T | None:
    try:
        return start()
    except OSError as error:  # no process for it: ulimit -u, pids.max
        say(f"no {what}: a helper process cannot be started: {error.strerror}")
        return None
