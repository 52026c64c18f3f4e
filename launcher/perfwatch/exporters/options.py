"""The options that ``run``, ``attach --watch`` and ``daemon`` share."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from perfwatch.errors import UsageError, install_command
from perfwatch.exporters.wanted import (
    APPRISE,
    DEFAULT_NEWS,
    KINDS_OF_NEWS,
    PROMETHEUS,
    CollectorWanted,
    CommandWanted,
    MetricsWanted,
    Wanted,
    can_serve_metrics,
    is_secret_url,
    parse_command,
    parse_endpoint,
    parse_headers,
    parse_http_url,
    parse_metrics,
    parse_socket,
    parse_url,
    read_secret,
)
from perfwatch.options import Option, Seconds, Together, nearest, typed

PANEL = "Metrics, notifications and actions"
NOTIFY_ON = ",".join(DEFAULT_NEWS)
ON_VERDICT_SECONDS = CommandWanted.deadline_seconds

MetricsPort = Annotated[
    str | None,
    Option(
        "--metrics-port",
        panel=PANEL,
        metavar="[ADDRESS:]PORT",
        help="Serve Prometheus metrics here; on this machine only, unless an address is given.",
    ),
]
MetricsSocket = Annotated[
    Path | None,
    Option(
        "--metrics-socket",
        panel=PANEL,
        metavar="PATH",
        help="Serve them on a unix socket that only this user can open.",
    ),
]
MetricsToken = Annotated[
    str | None,
    Option("--metrics-token", panel=PANEL, metavar="@FILE", help="Answer only scrapers that send this bearer token."),
]
MetricsCommand = Annotated[
    bool, Option("--metrics-command", panel=PANEL, help="Serve the job's command line too, as a label.")
]
Otlp = Annotated[
    str | None,
    Option(
        "--otlp",
        panel=PANEL,
        metavar="URL|@FILE",
        help="Post the metrics to this OpenTelemetry collector (OTLP/HTTP), with hw.gpu.* names; headers from "
        "$OTEL_EXPORTER_OTLP_HEADERS.",
    ),
]
Notify = Annotated[
    str | None,
    Option(
        "--notify",
        "-n",
        variable=False,
        panel=PANEL,
        metavar="@FILE|URL",
        help="Post each change of the verdict here once, in the form of Slack, Teams, Discord, PagerDuty, ntfy or "
        "Alertmanager, else as JSON; or $PERFWATCH_NOTIFY.",
    ),
]
NotifyOn = Annotated[
    str,
    Option(
        "--notify-on",
        panel=PANEL,
        metavar="KINDS",
        help=f"What is posted, of {', '.join(KINDS_OF_NEWS)}.",
    ),
]
Heartbeat = Annotated[
    str | None,
    Option(
        "--heartbeat",
        variable=False,
        panel=PANEL,
        metavar="@FILE|URL",
        help="Ping this every minute while the watch sees the job; or $PERFWATCH_HEARTBEAT.",
    ),
]
OnVerdict = Annotated[
    str | None,
    Option(
        "--on-verdict",
        panel=PANEL,
        metavar="'COMMAND'",
        help="Run this for each change of the verdict, which is on its stdin as JSON. Root runs it as the job's user.",
    ),
]
OnVerdictUser = Annotated[
    str | None,
    Option(
        "--on-verdict-user", panel=PANEL, metavar="NAME|UID", help="Run it as this user instead; only root can do so."
    ),
]
OnVerdictDeadline = Annotated[
    float,
    Option(
        "--on-verdict-deadline", panel=PANEL, metavar="TIME", kind=Seconds(1.0, 3600.0), help="End it after so long."
    ),
]
_EVERYBODY_READS = "a webhook's URL is a secret, and every user of this machine can read a command line"
_FILE_ADVICE = "(umask 077; cat > webhook)    # paste the URL, then Ctrl-D; then --notify @webhook"


def uid_of(user: str | None, option: str = "--user") -> int | None:
    """The number of a user, by name or number.

    Raises:
        UsageError: there is none of that name.
    """
    if user is None or user.isdecimal():
        return None if user is None else int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise UsageError(
            f"{option} {user}: there is no such user on this machine", "give a name or a number, see: id NAME"
        ) from None


def wanted(
    metrics_port: MetricsPort = None,
    metrics_socket: MetricsSocket = None,
    metrics_token: MetricsToken = None,
    metrics_command: MetricsCommand = False,
    otlp: Otlp = None,
    notify: Notify = None,
    notify_on: NotifyOn = NOTIFY_ON,
    heartbeat: Heartbeat = None,
    on_verdict: OnVerdict = None,
    on_verdict_user: OnVerdictUser = None,
    on_verdict_deadline: OnVerdictDeadline = ON_VERDICT_SECONDS,
) -> Wanted:
    """What was typed, or stands in a variable; those that hold a URL are taken out of the environment: no job inherits them.

    Raises:
        UsageError: it makes no sense.
    """
    url = _secret_url("notify", notify, parse_url)
    beat = _secret_url("heartbeat", heartbeat, parse_http_url)
    command = _command(on_verdict, on_verdict_user, on_verdict_deadline)
    served = _metrics(metrics_port, metrics_socket, metrics_token, metrics_command)
    return Wanted(served, url, command, _news(notify_on), beat, _collector(otlp))


AskedOutlets = Annotated[Callable[[], Wanted], Together(wanted)]


def _news(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    wrong = [word for word in words if word not in KINDS_OF_NEWS]
    if wrong or not words:
        raise UsageError(
            f"--notify-on {text}: {wrong[0] if wrong else 'nothing'} is no kind of news",
            nearest(wrong[0], KINDS_OF_NEWS) if wrong else f"for example: --notify-on {NOTIFY_ON}",
        )
    return words


def _collector(text: str | None) -> CollectorWanted | None:
    if text is None:
        return None
    try:
        return CollectorWanted(parse_endpoint(text), parse_headers(os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")))
    except (ValueError, OSError) as error:
        raise UsageError(
            f"--otlp: {getattr(error, 'strerror', None) or error}",
            "the address of a collector: --otlp http://HOST:4318",
        ) from None


def _command(text: str | None, user: str | None, deadline_seconds: float) -> CommandWanted | None:
    if text is None:
        if user is not None:
            raise UsageError("--on-verdict-user: no command is to be run", "add --on-verdict 'COMMAND'")
        return None
    if user is not None and os.geteuid() != 0:
        raise UsageError("--on-verdict-user: only root can become another user", "leave it out, or use sudo")
    try:
        return CommandWanted(parse_command(text), uid_of(user, "--on-verdict-user"), deadline_seconds)
    except ValueError as error:
        raise UsageError(
            f"--on-verdict: {str(error)[:1].lower()}{str(error)[1:]}",
            "for example: --on-verdict '/etc/perfwatch/actions/cancel-slurm-job --dry-run'",
        ) from None


def _metrics(port: str | None, socket: Path | None, token: str | None, command: bool) -> MetricsWanted | None:
    if port is None and socket is None:
        if token is not None or command:
            raise UsageError(
                f"{'--metrics-token' if token is not None else '--metrics-command'}: no metrics are served",
                "add --metrics-port 9123 or --metrics-socket PATH",
            )
        return None
    if port is not None and socket is not None:
        raise UsageError(
            "--metrics-port and --metrics-socket: metrics are served in one place", "leave one of them out"
        )
    if not can_serve_metrics():
        raise UsageError(
            "serving metrics needs the prometheus-client package, which is not installed", install_command(PROMETHEUS)
        )
    made = {"command": command, "socket": _socket(socket), "token": _token(token)}
    try:
        address, number = parse_metrics(port) if port is not None else ("", 0)
    except ValueError as error:
        raise UsageError(
            f"--metrics-port {port}: {error}",
            "give a port, or an address and a port: --metrics-port 0.0.0.0:9123",
        ) from None
    return MetricsWanted(address, number, **made)  # type: ignore[arg-type]


def _socket(path: Path | None) -> Path | None:
    try:
        return None if path is None else parse_socket(path)
    except (ValueError, OSError) as error:
        raise UsageError(
            f"--metrics-socket {path}: {getattr(error, 'strerror', None) or error}",
            "name a free path in a folder of your own: mkdir -m 0700 -p ~/.perfwatch; --metrics-socket ~/.perfwatch/metrics",
        ) from None


def _token(text: str | None) -> str:
    try:
        return "" if text is None else read_secret(text)
    except (ValueError, OSError) as error:  # what was typed is not repeated: it may be a secret
        raise UsageError(
            f"--metrics-token: {getattr(error, 'strerror', None) or error}",
            "(umask 077; openssl rand -hex 32 > token)    # then --metrics-token @token",
        ) from None


def _secret_url(name: str, text: str | None, parse: Callable[[str], str]) -> str | None:
    option, variable = f"--{name}", f"PERFWATCH_{name.upper()}"
    from_variable = os.environ.pop(variable, None) or None
    told, where = (text, option) if text is not None else (from_variable, f"${variable}")
    try:
        url = None if told is None else parse(told)
    except (ValueError, OSError) as error:  # what was typed is not repeated: it may be a secret
        raise UsageError(
            f"{where}: {getattr(error, 'strerror', None) or error}",
            f"a URL, or @FILE that holds one: {option} @webhook\nother services than these: {install_command(APPRISE)}"
            if name == "notify"
            else f"a URL, or @FILE that holds one: {option} @url",
        ) from None
    if text is not None and url is not None and not text.startswith("@") and is_secret_url(url) and typed(name):
        _take_off_the_command_line(option, text)
    return url


def _take_off_the_command_line(option: str, text: str) -> None:
    """Before any process of ours copies it. Root's is refused: sudo has written it to its log already."""
    from perfwatch.processes import linux

    if os.geteuid() == 0 or not linux.hide_argument(text):
        raise UsageError(f"{option}: {_EVERYBODY_READS}", _FILE_ADVICE.replace("--notify", option))
