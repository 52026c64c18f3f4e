"""What a watch tells to other programs, and in which order."""

from typing import Any

from perfwatch.exporters.exporters import Outlets
from perfwatch.exporters.snapshot import Snapshot
from perfwatch.watching.news import News
from tests.sessions import session, verdict


class Heard:
    """Metrics and notifier in one: remembers what it was given, in order."""

    posted = failed = 0

    def __init__(self) -> None:
        self.order: list[str] = []

    def put(self, _: Snapshot) -> None:
        """Metrics."""
        self.order.append("metrics")

    def post(self, _: dict[str, Any]) -> None:
        """A notification."""
        self.order.append("post")

    def news(self) -> list[str]:
        """Nothing went wrong."""
        return []

    def close(self) -> None:
        """Nothing to close."""


def test_who_is_told_of_a_change_finds_it_in_the_metrics() -> None:
    """They are made anew before the post, however young the last ones are."""
    heard = Heard()
    outlets = Outlets(session(root_pids=(1,)), None, None, metrics=heard, notifier=heard, clock=lambda: 100.0)
    outlets.tick()
    outlets.tick()
    outlets.news(News(kind="verdict", at=1.0, text="", verdict=verdict(state="hung", cause="stuck_worker")))
    outlets.tick()

    assert heard.order == ["metrics", "metrics", "post"]
