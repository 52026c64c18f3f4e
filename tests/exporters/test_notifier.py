"""The webhook's process: it tries a few times, gives up, says why, and never makes the watch wait."""

import json
import select
import socket
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from perfwatch.exporters.announcer import Change
from perfwatch.exporters.heartbeat import Heartbeat
from perfwatch.exporters.notification import notification
from perfwatch.exporters.notifier import Notifier, Policy
from perfwatch.exporters.receivers import form_of, post_of
from perfwatch.exporters.wanted import parse_url
from perfwatch.verdict import JobLabels
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
    told = verdict(action="restart", job=JobLabels(user="ann", slurm_job_id="4711"))
    notifiers[0].post(notification(Change(told, ("healthy", "balanced")), session(), FOLDER))
    found = webhook.next()

    assert found["text"].startswith(
        "perfwatch on node-a: HUNG stuck_worker, confidence certain (was healthy)\nworker 758 has"
    )
    assert "job: python train.py (user ann, Slurm job 4711)\naction: end the job and start it again" in found["text"]
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


def news(state: str, cause: str | None) -> dict[str, Any]:
    """What is posted of a change, with all that a job may have written into it."""
    job = JobLabels(user="ann", slurm_job_id="4711", namespace="ml", pod="train-0")
    told = verdict(state=state, cause=cause, summary="stuck at [click](http://evil) <!channel> `x` @everyone", job=job)
    return notification(Change(told, ("healthy", "balanced")), session(), FOLDER)


HUNG, WELL = news("hung", "stuck_worker"), news("healthy", "balanced")


@pytest.mark.parametrize(
    ("url", "form", "posts_to"),
    [
        ("https://hooks.slack.com/services/T/B/X", "slack", "https://hooks.slack.com/services/T/B/X"),
        ("https://x.webhook.office.com/webhookb2/1", "teams", "https://x.webhook.office.com/webhookb2/1"),
        ("teams+https://proxy.site/1", "teams", "https://proxy.site/1"),
        ("https://discord.com/api/webhooks/1/2", "discord", "https://discord.com/api/webhooks/1/2"),
        (
            "https://events.pagerduty.com/v2/enqueue?routing_key=K",
            "pagerduty",
            "https://events.pagerduty.com/v2/enqueue",
        ),
        ("alertmanager+http://am:9093", "alertmanager", "http://am:9093/api/v2/alerts"),
        ("https://ntfy.sh/topic", "ntfy", "https://ntfy.sh/"),
        ("https://evil.example/hooks.slack.com", "json", "https://evil.example/hooks.slack.com"),
        ("http://site:8080/hook?a=b", "json", "http://site:8080/hook?a=b"),
    ],
)
def test_the_url_tells_the_form(url: str, form: str, posts_to: str) -> None:
    """By a well-known host, or by the word before the plus."""
    assert form_of(url)[0] == form
    assert post_of(url, HUNG).url == posts_to


def body(url: str, content: dict[str, Any]) -> Any:
    """What is posted."""
    return json.loads(post_of(url, content).body)


def test_pagerduty_gets_one_incident_for_a_job_and_its_end() -> None:
    """Triggered by the hang, resolved when the job moves again, by one key; another job has another one."""
    url = "https://events.pagerduty.com/v2/enqueue?routing_key=K"
    opened, closed = body(url, HUNG), body(url, WELL)
    other = body(url, notification(Change(verdict(), None), session(root_pids=(701,)), FOLDER))

    assert (opened["routing_key"], opened["event_action"], closed["event_action"]) == ("K", "trigger", "resolve")
    assert opened["dedup_key"] == closed["dedup_key"] != other["dedup_key"]
    assert (opened["payload"]["source"], opened["payload"]["severity"], opened["payload"]["class"]) == (
        "node-a", "critical", "stuck_worker",
    )  # fmt: skip
    assert opened["payload"]["summary"].startswith("perfwatch on node-a: HUNG stuck_worker")
    assert "payload" not in closed


def test_alertmanager_gets_an_alert_that_ends() -> None:
    """With the labels by which it is routed."""
    (opened,), (closed,) = body("alertmanager+http://am", HUNG), body("alertmanager+http://am", WELL)

    assert opened["labels"] == closed["labels"]
    assert (opened["labels"]["user"], opened["labels"]["slurm_job_id"]) == ("ann", "4711")
    assert closed["endsAt"] == "2026-11-20T11:51:24Z"
    assert opened["endsAt"] > closed["endsAt"]


def test_what_a_job_wrote_is_plain_text_in_every_form() -> None:
    """No mention, no link, no markup."""
    slack = body("slack+https://x", HUNG)
    teams = body("teams+https://x", HUNG)["attachments"][0]["content"]["body"]
    discord = body("discord+https://x", HUNG)
    ntfy = body("ntfy+https://x/topic", HUNG)

    assert "&lt;!channel&gt;" in slack["text"]
    assert {block["inlines"][0]["type"] for block in teams} == {"TextRun"}
    assert discord["allowed_mentions"] == {"parse": []}
    assert discord["content"].count("`") == 6
    assert (ntfy["topic"], ntfy["priority"], "markdown" in ntfy) == ("topic", 4, False)


def test_what_could_not_be_posted_is_posted_after_a_restart(
    webhook: Webhook, notifiers: list[Notifier], tmp_path: Path
) -> None:
    """It is kept in a folder that only this user can read, without the URL."""
    webhook.answers, spool = [500], tmp_path / "spool"
    notifiers.append(Notifier(webhook.url, PATIENT, spool))
    notifiers[0].post({"text": "hung"})
    ends, said = time.monotonic() + PATIENCE_SECONDS, list[str]()
    while not said and time.monotonic() < ends:
        select.select([notifiers[0]], [], [], PATIENCE_SECONDS)
        said += notifiers[0].news()
    (kept,) = spool.iterdir()
    modes, text = (spool.stat().st_mode & 0o777, kept.stat().st_mode & 0o777), kept.read_text()
    notifiers.pop().close()
    assert [webhook.next() for _ in PATIENT.waits_seconds]

    webhook.answers = [200]
    notifiers.append(Notifier(webhook.url, PATIENT, spool))

    assert webhook.next() == {"text": "hung"}
    assert outcome(notifiers[0]) == []
    assert (modes, "SECRET" in text, list(spool.iterdir())) == ((0o700, 0o600), False, [])
    assert "answered 500; it is kept and tried again every 5 min" in said[0]


def test_a_heartbeat_comes_once_a_minute_and_stops_with_the_watch(webhook: Webhook) -> None:
    """However often the loop turns."""
    now = [0.0]
    heartbeat = Heartbeat(webhook.url, clock=lambda: now[0])
    try:
        for second in range(120):
            now[0] = float(second)
            heartbeat.beat()
            if second in (0, 60):
                assert webhook.next() == {"GET": "/services/T0/SECRET"}
        assert webhook.quiet
    finally:
        heartbeat.close()


@pytest.mark.skipif(find_spec("apprise") is None, reason="needs the extra torch-perfwatch[notify]")
def test_any_other_service_is_reached_through_apprise(webhook: Webhook, notifiers: list[Notifier]) -> None:
    """With the text alone; a URL that it does not know is refused."""
    address = webhook.url.removeprefix("http://")
    assert parse_url(f"json://{address}") == f"json://{address}"
    with pytest.raises(ValueError, match="not an http"):
        parse_url("nosuchservice://x/y")
    notifiers.append(Notifier(f"json://{address}", PATIENT))
    notifiers[0].post(HUNG)
    found = webhook.next()

    assert found["title"].startswith("perfwatch on node-a: HUNG stuck_worker")
    assert found["type"] == "failure"
    assert outcome(notifiers[0]) == []
