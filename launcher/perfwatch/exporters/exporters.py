"""Everything through which one watch speaks to other programs, opened as the user wants it; each may fail without harm."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from perfwatch.exporters.announcer import Announcer
from perfwatch.exporters.gauges import Gauges
from perfwatch.exporters.metrics import MetricsServer
from perfwatch.exporters.notification import notification
from perfwatch.exporters.notifier import Notifier
from perfwatch.exporters.snapshot import Snapshot
from perfwatch.exporters.wanted import Wanted
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


class Posting(Protocol):
    """Takes what is to be posted: ``Notifier``, or the way to one in another process."""

    posted: int
    failed: int

    def post(self, content: dict[str, Any]) -> None: ...  # noqa: D102
    def news(self) -> list[str]: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Outlets:
    """Metrics and notifications of one watched job.

    Args:
        session: the job.
        folder: of its recording; None where nothing is recorded.
        recorder: what records; ``sink`` passes everything on to it.
        say: takes sentences for the user.
        metrics: takes snapshots; None: nobody asks.
        notifier: takes changes; None: nobody wants to know.
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
        refresh_seconds: float = REFRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._folder, self._say, self._clock = session, folder, say, clock
        self._announcer = Announcer(clock)
        self._metrics, self._notifier, self._refresh_seconds = metrics, notifier, refresh_seconds
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
        change = self._announcer.due() if self._notifier is not None else None
        refresh = change is not None or self._clock() - self._refreshed_at >= self._refresh_seconds
        if self._metrics is not None and refresh:  # whoever is told of a change may look at once
            self._refreshed_at = self._clock()
            self._gauges.lost_lines = lost_lines
            self._metrics.put(self._gauges.snapshot(*self._counts()))
            self._tell(self._metrics.news())
        if self._notifier is not None:
            if change is not None:
                folder = str(self._folder) if self._folder is not None else ""
                self._notifier.post(notification(change, self._session, folder))
            self._tell(self._notifier.news())

    def ended(self, verdict: Verdict | None) -> None:
        """The watch is over: the last verdict is posted too. What is handed over is tried without us."""
        if verdict is not None:
            self._announcer.hear(verdict)
        self.tick()
        if self._metrics is not None:
            self._metrics.close()
        if self._notifier is not None:
            self._notifier.close()

    def _counts(self) -> tuple[int, int]:
        return (self._notifier.posted, self._notifier.failed) if self._notifier is not None else (0, 0)

    def _tell(self, sentences: list[str]) -> None:
        for sentence in sentences:
            self._say(sentence)


def open_metrics(wanted: Wanted, say: Callable[[str], None]) -> MetricsServer | None:
    """The server, if one was asked for and its process can be started."""
    metrics = wanted.metrics
    return None if metrics is None else _opened("metrics are served", lambda: MetricsServer(metrics), say)


def open_notifier(wanted: Wanted, say: Callable[[str], None]) -> Notifier | None:
    """What posts, if that was asked for and its process can be started."""
    url = wanted.url
    return None if url is None else _opened("changes are posted", lambda: Notifier(url), say)


def _opened(what: str, start: Callable[[], T], say: Callable[[str], None]) -> T | None:
    try:
        return start()
    except OSError as error:  # no process for it: ulimit -u, pids.max
        say(f"no {what}: a helper process cannot be started: {error.strerror}")
        return None
