"""A webhook that does as it is told: answer, fail, redirect, or never say a word."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Empty, Queue
from typing import Any

PATIENCE_SECONDS = 30.0  # a deadline for broken code, never a wait


class Webhook:
    """``answers``: status of each post, the last one for all that follow; 0 never answers. ``url``: where it listens."""

    def __init__(self) -> None:
        self.answers = [200]
        self.tried: Queue[dict[str, Any]] = Queue()  # every try, whatever was answered
        self.asked: list[tuple[str, dict[str, str]]] = []  # path and headers of each
        self._released = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.asked.append((self.path, dict(self.headers)))
                status = hook.answers.pop(0) if len(hook.answers) > 1 else hook.answers[0]
                hook.tried.put(content)
                if status == 0:
                    hook._released.wait(PATIENCE_SECONDS)
                    return
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

            def do_GET(self) -> None:
                hook.tried.put({"GET": self.path})
                self.send_response(hook.answers[0])
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/services/T0/SECRET"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def next(self) -> dict[str, Any]:
        """The next try."""
        return self.tried.get(timeout=PATIENCE_SECONDS)

    @property
    def quiet(self) -> bool:
        """Whether nothing more has come."""
        try:
            self.tried.get_nowait()
        except Empty:
            return True
        return False

    def close(self) -> None:
        """Let go of whoever still waits."""
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
