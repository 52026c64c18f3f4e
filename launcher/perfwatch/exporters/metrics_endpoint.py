"""The HTTP server of the metrics: on a port or a unix socket, for every client or for those with a token."""

import hmac
import os
import socket
import socketserver
import stat
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler

from perfwatch.exporters.wanted import MetricsWanted, remove_socket

REQUEST_SECONDS = 10.0  # a scraper that dribbles is hung up on
MOST_CONNECTIONS = 64  # at once; a node has a few scrapers, and each is answered within milliseconds


class _Connections(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Threads for so many scrapers at once: the oldest gives way to one more, and each has so long in all.

    Every user of the machine can connect, and no token is asked for before a request was read.
    """

    daemon_threads = True

    def __init__(self, place: object, handler: type[MetricsHandler]) -> None:
        self._ends: dict[socket.socket, float] = {}  # oldest first
        self._lock = threading.Lock()
        super().__init__(place, handler)  # type: ignore[arg-type]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Make room, and begin a thread for it."""
        with self._lock:
            if len(self._ends) >= MOST_CONNECTIONS:
                self._hang_up(next(iter(self._ends)))
            self._ends[request] = time.monotonic() + REQUEST_SECONDS
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """It is answered, or its scraper has gone."""
        with self._lock:
            self._ends.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Twice a second."""
        now = time.monotonic()
        with self._lock:
            for request in [request for request, ends in self._ends.items() if ends <= now]:
                self._hang_up(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that has hung up: it is no news, and stderr is the job's."""

    def _hang_up(self, request: socket.socket) -> None:
        """Its thread reads the end of the request then, and closes it."""
        del self._ends[request]
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class _Server(_Connections):
    """No name of ours is looked up, as ``http.server`` does: a name server may hang."""

    allow_reuse_address = True


class _UnixServer(_Connections):
    address_family = socket.AF_UNIX


def serve_metrics(wanted: MetricsWanted, registry: CollectorRegistry) -> str:
    """Start to serve, in a thread; where, as a scraper writes it.

    Raises:
        OSError: the place is taken, or not ours.
    """
    handler = _handler(registry, wanted.token)
    server = _on_port(wanted, handler) if wanted.socket is None else _on_socket(wanted.socket, handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if wanted.socket is not None:
        return str(wanted.socket)
    address = f"[{wanted.address}]" if ":" in wanted.address else wanted.address
    return f"http://{address}:{server.socket.getsockname()[1]}/metrics"


def _on_port(wanted: MetricsWanted, handler: type[MetricsHandler]) -> socketserver.TCPServer:
    found = socket.getaddrinfo(wanted.address, wanted.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, place = found[0]
    made: socketserver.TCPServer = type("_Server", (_Server,), {"address_family": family})(place[:2], handler)
    return made


def _on_socket(path: Path, handler: type[MetricsHandler]) -> socketserver.TCPServer:
    """For this user alone; in a folder that gives its group to what is made in it (setgid), for that group too.

    The mode is right from the start: a socket that is changed later can be opened before.
    """
    if _is_abandoned(path):
        remove_socket(path)
    before = os.umask(0o117 if path.parent.stat().st_mode & stat.S_ISGID else 0o177)
    try:
        return _UnixServer(str(path), handler)
    finally:
        os.umask(before)


def _is_abandoned(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _handler(registry: CollectorRegistry, token: str) -> type[MetricsHandler]:
    expected = f"Bearer {token}".encode()

    class Handler(MetricsHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:  # noqa: N802 (the name that http.server calls)
            sent = self.headers.get("Authorization", "").encode("utf-8", "replace")
            if token and not hmac.compare_digest(sent, expected):
                self.send_response(HTTPStatus.UNAUTHORIZED)
                self.send_header("WWW-Authenticate", "Bearer")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            super().do_GET()

    Handler.registry = registry
    return Handler
