"""What the user wants to leave the process: ``--metrics-port`` and ``--notify``, as typed. Light: the launcher holds it."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
HIGHEST_PORT = 65535
LARGEST_URL_FILE_BYTES = 4096


@dataclass(frozen=True)
class Wanted:
    """``metrics``: address and port to serve metrics on (port 0: any free one). ``url``: where changes are posted to."""

    metrics: tuple[str, int] | None = None
    url: str | None = None

    def __bool__(self) -> bool:
        return self.metrics is not None or self.url is not None


def parse_metrics(text: str) -> tuple[str, int]:
    """``9123``, ``0.0.0.0:9123`` or ``[::]:9123``. Raises ValueError."""
    address, _, port = text.rpartition(":")
    number = int(port)
    if not 0 <= number <= HIGHEST_PORT:
        raise ValueError(f"a port is a number up to {HIGHEST_PORT}")
    return address.strip("[]") or LOOPBACK, number


def parse_url(text: str) -> str:
    """A URL, or ``@FILE`` that holds one (a command line is seen by everybody on the machine).

    Raises:
        ValueError: it is no http or https URL.
        OSError: the file cannot be read.
    """
    if text.startswith("@"):
        with Path(text[1:]).open("rb") as file:
            text = file.read(LARGEST_URL_FILE_BYTES).decode("utf-8", "replace").strip()
    if not text.startswith(("http://", "https://")) or any(letter.isspace() for letter in text):
        raise ValueError("it is no http or https URL")
    if not urlsplit(text).hostname:
        raise ValueError("it names no host")
    return text
