"""The options that ``run``, ``attach --watch`` and ``daemon`` share."""

from typing import Annotated

import typer

from perfwatch.errors import UsageError
from perfwatch.outlets.wanted import Wanted, parse_metrics, parse_url

MetricsPort = Annotated[
    str | None,
    typer.Option(
        "--metrics-port",
        metavar="[ADDRESS:]PORT",
        help="Serve Prometheus metrics here; on this machine only, unless an address is given.",
    ),
]
Notify = Annotated[
    str | None,
    typer.Option(
        "--notify", metavar="URL|@FILE", help="Post each change of the verdict here once (JSON, as Slack takes it)."
    ),
]


def wanted(metrics_port: str | None, notify: str | None) -> Wanted:
    """What was typed.

    Raises:
        UsageError: it makes no sense.
    """
    try:
        metrics = None if metrics_port is None else parse_metrics(metrics_port)
    except ValueError as error:
        raise UsageError(
            f"--metrics-port {metrics_port}: {error}",
            "give a port, or an address and a port: --metrics-port 0.0.0.0:9123",
        ) from None
    try:
        url = None if notify is None else parse_url(notify)
    except (ValueError, OSError) as error:  # what was typed is not repeated: it may be a secret
        raise UsageError(
            f"--notify: {error}", "give a URL, or @FILE with one in it: --notify @/etc/perfwatch/webhook"
        ) from None
    return Wanted(metrics, url)
