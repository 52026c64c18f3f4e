"""``attach --watch`` for days: metrics and a webhook of a job that was already there."""

import json
import os
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from tests.end_to_end.conftest import PATIENCE_SECONDS, PERFWATCH, StartJob, until

pytestmark = pytest.mark.end_to_end
METRICS_AT = "metrics are served on "


@pytest.fixture
def posts() -> Iterator[tuple[str, "Queue[dict[str, Any]]"]]:
    """The address of a webhook, and what was posted there."""
    found: Queue[dict[str, Any]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", found
    server.shutdown()
    server.server_close()


def test_a_stopped_job_shows_in_its_metrics_and_is_posted_once(
    job: StartJob, posts: "tuple[str, Queue[dict[str, Any]]]", tmp_path: Path
) -> None:
    """From calm to hung; the watcher leaves when it is told to, and the job is as it was."""
    one, (url, posted), said = job(), posts, tmp_path / "said"
    options = ("--watch", "--metrics-port", "0", "--notify", url, "--session", str(tmp_path / "session"))
    with said.open("w") as file:
        watching = subprocess.Popen(
            [*PERFWATCH, "attach", str(one.pid), *options], stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        until(lambda: METRICS_AT in said.read_text())
        address = said.read_text().partition(METRICS_AT)[2].split()[0]
        one.stop()
        news = posted.get(timeout=PATIENCE_SECONDS)
        with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as answer:
            metrics = answer.read().decode()
        watching.send_signal(signal.SIGINT)
        watching.wait(PATIENCE_SECONDS)
    finally:
        os.kill(one.pid, signal.SIGCONT)
        watching.kill()
        watching.wait()

    assert (news["perfwatch"]["state"], news["perfwatch"]["cause"]) == ("hung", "stopped")
    assert 'perfwatch_state{session="session",state="hung"} 1.0' in metrics.splitlines()
    assert posted.empty()
    assert one.finish() == 0
