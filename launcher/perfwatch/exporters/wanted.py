"""What leaves the process for other programs: ``--metrics-...``, ``--notify``, ``--on-verdict``. Light: the launcher holds it."""

import contextlib
import os
import shlex
import shutil
import stat
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from perfwatch.exporters.receivers import apprise_knows, form_of

LOOPBACK = "127.0.0.1"
HIGHEST_PORT = 65535
OTLP_PATH = "/v1/metrics"
LONGEST_SOCKET_BYTES = 107  # sun_path of unix(7)
LARGEST_SECRET_FILE_BYTES = 4096
KINDS_OF_NEWS = ("hung", "slow", "crashed", "finished", "recovered")
DEFAULT_NEWS = ("hung", "slow", "crashed", "recovered")  # a good end is what everybody expects


PROMETHEUS = "prometheus-client>=0.20"
APPRISE = "apprise>=1.9"


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
class CollectorWanted:
    """Where metrics are posted to, with which headers; ``host``: what may be said of it."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def host(self) -> str:
        """Without path and query, which may be secrets."""
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True)
class CommandWanted:
    """What a change of the verdict starts: ``words``, as user ``uid`` (None: as the job's), for so long at most."""

    words: tuple[str, ...]
    uid: int | None = None
    deadline_seconds: float = 60.0


@dataclass(frozen=True)
class Wanted:
    """What was asked for.

    Attributes:
        metrics: how they are served.
        url: where changes are posted to.
        command: what a change starts.
        news: the kinds of change that are posted, of ``KINDS_OF_NEWS``.
        heartbeat: what is pinged while the watch sees what it is to see.
        collector: where metrics are posted to.
    """

    metrics: MetricsWanted | None = None
    url: str | None = None
    command: CommandWanted | None = None
    news: tuple[str, ...] = DEFAULT_NEWS
    heartbeat: str | None = None
    collector: CollectorWanted | None = None

    def __bool__(self) -> bool:
        return self.wants_snapshots or any(one is not None for one in (self.url, self.command, self.heartbeat))

    @property
    def wants_snapshots(self) -> bool:
        """True if metrics are to be served or posted."""
        return self.metrics is not None or self.collector is not None


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
    """A URL of a receiver, or ``@FILE`` that holds one.

    Raises:
        ValueError: nothing here posts to it.
        OSError: the file cannot be read.
    """
    text = read_secret(text) if text.startswith("@") else text
    form, address = form_of(text)
    if form == "apprise" and "://" in text and apprise_knows(text):
        return text
    parse_http_url(address)
    return text


def parse_http_url(text: str) -> str:
    """An http or https URL, or ``@FILE`` that holds one. Raises as ``parse_url``."""
    if text.startswith("@"):
        text = read_secret(text)
    if not text.startswith(("http://", "https://")) or any(letter.isspace() for letter in text):
        raise ValueError("not an http(s) URL")
    if not urlsplit(text).hostname:
        raise ValueError("it names no host")
    return text


def parse_endpoint(text: str) -> str:
    """Where to post metrics, of an endpoint as OpenTelemetry's settings have it, ``http://HOST:4318``. Raises as ``parse_url``."""
    parts = urlsplit(parse_http_url(text))
    if parts.username is not None or parts.query:
        raise ValueError("credentials belong in $OTEL_EXPORTER_OTLP_HEADERS")
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(OTLP_PATH) else path + OTLP_PATH))


def parse_headers(text: str) -> tuple[tuple[str, str], ...]:
    """``$OTEL_EXPORTER_OTLP_HEADERS``: ``name=value,name=value``, percent-encoded; what is no header is left out."""
    pairs = (one.partition("=") for one in text.split(","))
    found = ((name.strip(), unquote(value.strip())) for name, _, value in pairs)
    return tuple((name, value) for name, value in found if _is_word(name) and value.isascii() and value.isprintable())


def _is_word(text: str) -> bool:
    return bool(text) and all(letter.isalnum() or letter in "-_" for letter in text) and text.isascii()


def parse_command(text: str) -> tuple[str, ...]:
    """The words of a command line, parted as a shell does; no shell reads it later. Raises ValueError."""
    words = tuple(shlex.split(text))
    if not words:
        raise ValueError("it names no command")
    if shutil.which(words[0]) is None:
        raise ValueError(f"there is no program {words[0]}")
    return words


def is_secret_url(text: str) -> bool:
    """True if a URL may let any process that knows it post: it has more than a host and a port."""
    parts = urlsplit(text)
    return bool(parts.path.strip("/") or parts.query or parts.username or parts.password)
