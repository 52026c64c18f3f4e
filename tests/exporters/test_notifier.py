"""The webhook's process: it tries a few times, gives up, says why, and never makes the watch wait."""

import select
import socket
import time
from collections.abc import Iterator

import pytest

from perfwatch.exporters.announcer import Change
from perfwatch.exporters.notification import notification
from perfwatch.exporters.notifier import Notifier, Policy
from tests.sessions import session, verdict
from tests.webhook import PATIENCE_SECONDS, Webhook

pytestmark = pytest.mark.live

QUICK = Policy(waits_seconds=(0.0, 0.01, 0.02), deadline_seconds=0.3, last_seconds=2.0)
PATIENT = Policy(waits_seconds=(0.0, 0.01, 0.02), deadline_seconds=PATIENCE_SECONDS, last_seconds=PATIENCE_SECONDS)
FOLDER = "/var/tmp/perfwatch/s"


@pytest.fixture
def notifiers() -> Iterator[list[Notifier]]:
    """Those that a test opens, closed at its end."""
    opened: list[Notifier] = []
    yield opened
    for one in opened:
        one.close()


def outcome(notifier: Notifier) -> list[str]:
    """What it says, once it has posted or given up."""
    said: list[str] = []
    ends = time.monotonic() + PATIENCE_SECONDS
    while not notifier.posted and not (notifier.failed and said) and time.monotonic() < ends:
        select.select([notifier], [], [], PATIENCE_SECONDS)
        said += notifier.news()
    return said


def test_a_change_arrives_as_slack_takes_it(webhook: Webhook, notifiers: list[Notifier]) -> None:
    """One post, with a text for people and the facts for programs."""
    notifiers.append(Notifier(webhook.url, PATIENT))
    notifiers[0].post(notification(Change(verdict(), ("healthy", "balanced")), session(), FOLDER))
    found = webhook.next()

    assert found["text"].startswith(
        "perfwatch on node-a: HUNG stuck_worker, confidence certain (was healthy)\nworker 758 has"
    )
    assert found["perfwatch"]["schema"] == "perfwatch.notification/1"
    assert found["perfwatch"]["before"] == {"state": "healthy", "cause": "balanced"}
    assert found["perfwatch"]["session"] == FOLDER
    assert outcome(notifiers[0]) == []
    assert notifiers[0].posted == 1
    assert webhook.quiet


def test_nothing_that_the_job_chose_calls_everybody_or_tells_a_secret() -> None:
    """Slack reads <!channel>; a summary holds names of files."""
    change = Change(verdict(summary="stuck at <!channel>.py, api_key=SECRET1abc\x1b[2J"), None)
    found = notification(change, session(command=("python", "--token", "SECRET2abc")), FOLDER)

    assert "&lt;!channel&gt;" in found["text"]
    assert "SECRET" not in str(found)
    assert "\x1b" not in found["text"]


@pytest.mark.parametrize("first", [500, 503, 429])
def test_a_failure_of_the_moment_is_tried_again(webhook: Webhook, notifiers: list[Notifier], first: int) -> None:
    """And is no failure when it then works."""
    webhook.answers = [first, 200]
    notifiers.append(Notifier(webhook.url, PATIENT))
    notifiers[0].post({"text": "x"})

    assert outcome(notifiers[0]) == []
    assert (notifiers[0].posted, notifiers[0].failed) == (1, 0)


@pytest.mark.parametrize(
    ("answer", "tries", "says"), [(500, 3, "answered 500"), (404, 1, "answered 404"), (302, 1, "answered 302")]
)
def test_it_gives_up_and_says_so_once_without_the_url(
    webhook: Webhook, notifiers: list[Notifier], answer: int, tries: int, says: str
) -> None:
    """A wrong address is not tried again; a redirect is not followed with what we have to say."""
    webhook.answers = [answer]
    notifiers.append(Notifier(webhook.url, PATIENT))
    notifiers[0].post({"text": "x"})
    said = outcome(notifiers[0])

    assert len(said) == 1
    assert says in said[0]
    assert "SECRET" not in said[0]
    assert [webhook.next() for _ in range(tries)]
    assert webhook.quiet


def test_a_webhook_that_hangs_costs_its_deadline_and_nobody_else_anything(
    webhook: Webhook, notifiers: list[Notifier]
) -> None:
    """A thousand messages are handed over meanwhile, at once."""
    webhook.answers = [0]
    notifiers.append(Notifier(webhook.url, QUICK))
    began = time.monotonic()
    for _ in range(1000):
        notifiers[0].post({"text": "x" * 1000})
    handed_over = time.monotonic() - began
    said = outcome(notifiers[0])

    assert handed_over < 5.0
    assert "did not answer within 0.3 s" in said[0]


def test_a_webhook_that_refuses_is_said_to_be_unreachable(notifiers: list[Notifier]) -> None:
    """Nobody listens there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    notifiers.append(Notifier(f"http://127.0.0.1:{port}/SECRET", QUICK))
    notifiers[0].post({"text": "x"})
    said = outcome(notifiers[0])

    assert said == ["a change of the verdict was not posted: the webhook cannot be reached: Connection refused"]


def test_what_was_handed_over_is_posted_after_the_watch_has_ended(webhook: Webhook) -> None:
    """The crash is the last thing that a watch tells."""
    notifier = Notifier(webhook.url, PATIENT)
    notifier.post({"text": "crashed"})
    notifier.close()

    assert webhook.next() == {"text": "crashed"}
