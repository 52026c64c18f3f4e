"""What leaves the process for other programs: ``--metrics-...`` and ``--notify``, as typed. Light: the launcher holds it."""

import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
HIGHEST_PORT = 65535
LONGEST_SOCKET_BYTES = 107  # sun_path of unix(7)
LARGEST_SECRET_FILE_BYTES = 4096
NOTIFY_VARIABLE = "PERFWATCH_NOTIFY"


PROMETHEUS = "prometheus-client>=0.20"


def can_serve_metrics() -> bool:
    """True if the package that writes Prometheus' formats is installed."""
    return find_spec("prometheus_client") is not None


@dataclass(frozen=True)
class MetricsWanted:
    """Where metrics are served, and what they show.

    Attributes:
        address: where to listen.
        port: 0 takes a free one.
        socket: a unix socket instead.
        token: what a scraper must send; empty: it need send none.
        command: True if the label ``command`` is served.
    """

    address: str = LOOPBACK
    port: int = 0
    socket: Path | None = None
    token: str = ""
    command: bool = False


@dataclass(frozen=True)
class Wanted:
    """``metrics``: how they are served. ``url``: where changes are posted to."""

    metrics: MetricsWanted | None = None
    url: str | None = None

    def __bool__(self) -> bool:
        return self.metrics is not None or self.url is not None


def parse_metrics(text: str) -> tuple[str, int]:
    """``9123``, ``0.0.0.0:9123`` or ``[::]:9123``. Raises ValueError."""
    address, _, port = text.rpartition(":")
    number = int(port) if port.isascii() and port.isdecimal() else -1
    if not 0 <= number <= HIGHEST_PORT:
        raise ValueError(f"a port is a number up to {HIGHEST_PORT}")
    return address.strip("[]") or LOOPBACK, number


def parse_socket(path: Path) -> Path:
    """A path where a socket can be made.

    Another user who can write in its folder could put a socket of their own there, or read ours.

    Raises:
        ValueError: something else is there, or others can write in its folder.
        OSError: its folder cannot be read.
    """
    path = path.absolute()
    if len(os.fsencode(path)) > LONGEST_SOCKET_BYTES:
        raise ValueError(f"a socket's path has {LONGEST_SOCKET_BYTES} bytes at most")
    folder = path.parent.stat()
    if folder.st_uid not in (0, os.geteuid()) or folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(f"other users can write in {path.parent}")
    if os.path.lexists(path) and not stat.S_ISSOCK(path.lstat().st_mode):
        raise ValueError("something else is there")
    return path


def remove_socket(path: Path) -> None:
    """Remove a socket of ours; what else is there stays."""
    with contextlib.suppress(OSError):
        seen = path.lstat()
        if stat.S_ISSOCK(seen.st_mode) and seen.st_uid == os.geteuid():
            path.unlink()


def read_secret(text: str) -> str:
    """The content of ``@FILE``: a command line is seen by every user of the machine.

    Raises:
        ValueError: it is no ``@FILE``, or the file holds none or several words.
        OSError: the file cannot be read.
    """
    if not text.startswith("@"):
        raise ValueError("every user of this machine can read a command line")
    with Path(text[1:]).open("rb") as file:
        secret = file.read(LARGEST_SECRET_FILE_BYTES).decode("utf-8", "replace").strip()
    if not secret or any(letter.isspace() for letter in secret):
        raise ValueError("the file must hold one word")
    return secret


def parse_url(text: str) -> str:
    """A URL, or ``@FILE`` that holds one.

    Raises:
        ValueError: it is no http or https URL.
        OSError: the file cannot be read.
    """
    if text.startswith("@"):
        text = read_secret(text)
    if not text.startswith(("http://", "https://")) or any(letter.isspace() for letter in text):
        raise ValueError("not an http(s) URL")
    if not urlsplit(text).hostname:
        raise ValueError("it names no host")
    return text


def is_secret_url(text: str) -> bool:
    """True if a URL may let whoever knows it post: it has more than a host and a port."""
    parts = urlsplit(text)
    return bool(parts.path.strip("/") or parts.query or parts.username or parts.password)


def notify_variable(environment: Mapping[str, str]) -> str | None:
    """What ``$PERFWATCH_NOTIFY`` says; None where it says nothing."""
    return environment.get(NOTIFY_VARIABLE) or None
