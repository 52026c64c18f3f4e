"""A notification in the form that its receiver takes: Slack, Teams, Discord, PagerDuty, Alertmanager, ntfy, or plain JSON.

``form_of`` tells the form by the scheme of the URL (``teams+https://...``) or by a well-known host. Every other scheme is for the
apprise package, where it is installed: ``mailtos://...`` and a hundred more. What a job wrote is plain text in each form: no
markdown, no mention, no link. Sources: the API pages of each service, and Alertmanager's OpenAPI v2.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

PROBLEM, RESOLVED = "trigger", "resolve"
LONGEST_DISCORD, LONGEST_SUMMARY = 1900, 1000
STAYS_SECONDS = 7 * 86400  # an alert without news; Alertmanager would forget it after five minutes


@dataclass(frozen=True)
class Post:
    """One HTTP request: POST ``body`` to ``url``."""

    url: str
    body: bytes


def plain(content: dict[str, Any]) -> str:
    """The text without Slack's escapes."""
    text = str(content.get("text", ""))
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def event_of(content: dict[str, Any]) -> str:
    """``trigger`` for a problem, ``resolve`` where it is over or the job has ended well."""
    facts = content.get("perfwatch", {})
    well = facts.get("state") in ("healthy", "busy") or facts.get("cause") == "finished"
    return RESOLVED if well else PROBLEM


def key_of(content: dict[str, Any]) -> str:
    """The same for all news of one job, so that they are one incident, also after the watch has been started anew."""
    import hashlib
    import json

    facts = content.get("perfwatch", {})
    what = json.dumps([facts.get("host"), facts.get("root_pid"), facts.get("command")])
    return f"perfwatch-{hashlib.sha256(what.encode()).hexdigest()[:32]}"


def _slack(url: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"text": content.get("text", "")}


def _teams(url: str, content: dict[str, Any]) -> dict[str, Any]:
    """An adaptive card; a TextRun has no markdown."""
    runs = [
        {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": line}]} for line in plain(content).split("\n")
    ]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": runs,
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _discord(url: str, content: dict[str, Any]) -> dict[str, Any]:
    text = plain(content)[:LONGEST_DISCORD].replace("`", "'")
    return {"content": f"```\n{text}\n```", "allowed_mentions": {"parse": []}}


def _pagerduty(url: str, content: dict[str, Any]) -> dict[str, Any]:
    """Events API v2."""
    facts = content.get("perfwatch", {})
    event = event_of(content)
    made: dict[str, Any] = {
        "routing_key": next(iter(parse_qs(urlsplit(url).query).get("routing_key", [])), ""),
        "event_action": event,
        "dedup_key": key_of(content),
    }
    if event == PROBLEM:
        made["client"] = "perfwatch"
        made["payload"] = {
            "summary": plain(content).partition("\n")[0][:LONGEST_SUMMARY],
            "source": facts.get("host") or "unknown",
            "severity": "warning" if facts.get("state") == "slow" else "critical",
            "component": (facts.get("job") or {}).get("user") or "training",
            "class": facts.get("cause") or facts.get("state") or "unknown",
            "custom_details": facts,
        }
    return made


def _alertmanager(url: str, content: dict[str, Any]) -> list[dict[str, Any]]:
    """API v2. The labels are the same until it is over, as Alertmanager tells alerts apart by them."""
    facts = content.get("perfwatch", {})
    job = facts.get("job") or {}
    routed = {
        name: str(job[name]) for name in ("user", "slurm_job_id", "slurm_job_name", "namespace", "pod") if job.get(name)
    }
    alert: dict[str, Any] = {
        "labels": {
            "alertname": "Perfwatch",
            "key": key_of(content),
            "instance": facts.get("host") or "unknown",
            **routed,
        },
        "annotations": {
            "summary": plain(content).partition("\n")[0],
            "description": plain(content),
            "cause": facts.get("cause") or "",
        },
    }
    # Without an end it is over when Alertmanager hears no more of it, five minutes later.
    alert["endsAt"] = _moment(facts.get("at"), 0.0 if event_of(content) == RESOLVED else STAYS_SECONDS)
    return [alert]


def _ntfy(url: str, content: dict[str, Any]) -> dict[str, Any]:
    """Published as JSON, at the root of the server."""
    first, _, rest = plain(content).partition("\n")
    urgent = event_of(content) == PROBLEM
    return {
        "topic": urlsplit(url).path.strip("/"),
        "title": first,
        "message": rest or first,
        "priority": 4 if urgent else 3,
        "tags": ["rotating_light" if urgent else "white_check_mark"],
    }


def _moment(at: object, later: float) -> str:
    from datetime import datetime, timedelta, timezone

    try:
        moment = datetime.fromisoformat(str(at).replace("Z", "+00:00"))
    except ValueError:
        moment = datetime.now(timezone.utc)
    return (moment + timedelta(seconds=later)).isoformat().replace("+00:00", "Z")


FORMS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "json": lambda url, content: content,
    "slack": _slack,
    "teams": _teams,
    "discord": _discord,
    "pagerduty": _pagerduty,
    "alertmanager": _alertmanager,
    "ntfy": _ntfy,
}
_HOSTS = (
    ("hooks.slack.com", "slack"),
    ("webhook.office.com", "teams"),
    ("logic.azure.com", "teams"),
    ("api.powerplatform.com", "teams"),
    ("discord.com", "discord"),
    ("discordapp.com", "discord"),
    ("events.pagerduty.com", "pagerduty"),
    ("events.eu.pagerduty.com", "pagerduty"),
    ("ntfy.sh", "ntfy"),
)


def form_of(url: str) -> tuple[str, str]:
    """The form of a URL and the http(s) URL in it; ``apprise`` and the URL for any other scheme."""
    scheme, separator, rest = url.partition("://")
    form, plus, inner = scheme.partition("+")
    if plus and form in FORMS and inner in ("http", "https"):
        return form, f"{inner}://{rest}"
    if scheme not in ("http", "https") or not separator:
        return "apprise", url
    host = urlsplit(url).hostname or ""
    return next((form for known, form in _HOSTS if host == known or host.endswith(f".{known}")), "json"), url


def post_of(url: str, content: dict[str, Any]) -> Post:
    """What to send where."""
    import json

    form, address = form_of(url)
    parts = urlsplit(address)
    body = json.dumps(FORMS[form](address, content)).encode()
    if form == "pagerduty":  # the key is in the body
        parts = parts._replace(query="")
    if form == "alertmanager" and not parts.path.endswith("/api/v2/alerts"):
        parts = parts._replace(path=f"{parts.path.rstrip('/')}/api/v2/alerts")
    if form == "ntfy":
        parts = parts._replace(path="/")
    return Post(urlunsplit(parts), body)


def apprise_knows(url: str) -> bool:
    """True if the apprise package is installed and has a service for this URL."""
    if importlib.util.find_spec("apprise") is None:
        return False
    return bool(importlib.import_module("apprise").Apprise().add(url))


def through_apprise(url: str, content: dict[str, Any]) -> bool:
    """Hand it to the apprise package; True if the service took it."""
    apprise: Any = importlib.import_module("apprise")
    service = apprise.Apprise()
    first, _, rest = plain(content).partition("\n")
    kind = apprise.NotifyType.FAILURE if event_of(content) == PROBLEM else apprise.NotifyType.SUCCESS
    return bool(service.add(url)) and bool(
        service.notify(title=first, body=rest or first, notify_type=kind, body_format="text")
    )
