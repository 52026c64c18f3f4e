"""The options that ``run``, ``attach --watch`` and ``daemon`` share."""

import os
from pathlib import Path
from typing import Annotated

from perfwatch.errors import UsageError, install_command
from perfwatch.exporters.wanted import (
    NOTIFY_VARIABLE,
    PROMETHEUS,
    MetricsWanted,
    Wanted,
    can_serve_metrics,
    is_secret_url,
    notify_variable,
    parse_metrics,
    parse_socket,
    parse_url,
    read_secret,
)
from perfwatch.options import Option, typed

OUTLETS = "Metrics and notifications"

MetricsPort = Annotated[
    str | None,
    Option(
        "--metrics-port",
        panel=OUTLETS,
        metavar="[ADDRESS:]PORT",
        help="Serve Prometheus metrics here; on this machine only, unless an address is given.",
    ),
]
MetricsSocket = Annotated[
    Path | None,
    Option(
        "--metrics-socket",
        panel=OUTLETS,
        metavar="PATH",
        help="Serve them on a unix socket that only this user can open.",
    ),
]
MetricsToken = Annotated[
    str | None,
    Option("--metrics-token", panel=OUTLETS, metavar="@FILE", help="Answer only scrapers that send this bearer token."),
]
MetricsCommand = Annotated[
    bool, Option("--metrics-command", panel=OUTLETS, help="Serve the job's command line too, as a label.")
]
Notify = Annotated[
    str | None,
    Option(
        "--notify",
        "-n",
        variable=False,
        panel=OUTLETS,
        metavar="@FILE|URL",
        help="Post each change of the verdict here once (JSON, as Slack takes it); or $PERFWATCH_NOTIFY.",
    ),
]
_EVERYBODY_READS = "a webhook's URL is a secret, and every user of this machine can read a command line"
_FILE_ADVICE = (
    "(umask 077; cat > webhook)    # paste the URL, then Ctrl-D; then --notify @webhook, or set $PERFWATCH_NOTIFY"
)


def wanted(
    metrics_port: str | None = None,
    metrics_socket: Path | None = None,
    metrics_token: str | None = None,
    metrics_command: bool = False,
    notify: str | None = None,
) -> Wanted:
    """What was typed, or stands in ``$PERFWATCH_NOTIFY``, which is taken out of the environment: no job inherits it.

    Raises:
        UsageError: it makes no sense.
    """
    variable = notify_variable(os.environ)
    os.environ.pop(NOTIFY_VARIABLE, None)
    url = _url("--notify", notify) if notify is not None else _url(f"${NOTIFY_VARIABLE}", variable)
    if notify is not None and url is not None and not notify.startswith("@") and is_secret_url(url) and typed("notify"):
        _take_off_the_command_line(notify)
    return Wanted(_metrics(metrics_port, metrics_socket, metrics_token, metrics_command), url)


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


def _url(option: str, text: str | None) -> str | None:
    try:
        return None if text is None else parse_url(text)
    except (ValueError, OSError) as error:  # what was typed is not repeated: it may be a secret
        raise UsageError(
            f"{option}: {getattr(error, 'strerror', None) or error}",
            "a URL, or @FILE that holds one: --notify @webhook",
        ) from None


def _take_off_the_command_line(text: str) -> None:
    """Before any process of ours copies it. Root's is refused: sudo has written it to its log already."""
    from perfwatch.processes import linux

    if os.geteuid() == 0 or not linux.hide_argument(text):
        raise UsageError(f"--notify: {_EVERYBODY_READS}", _FILE_ADVICE)
