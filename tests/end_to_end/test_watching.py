"""``attach --watch`` for days: metrics and a webhook of a job that was already there."""

import os
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.end_to_end.conftest import PATIENCE_SECONDS, PERFWATCH, StartJob, until
from tests.webhook import Webhook

pytestmark = [pytest.mark.live, pytest.mark.end_to_end]
METRICS_AT = "metrics are served on "


def test_a_stopped_job_shows_in_its_metrics_and_is_posted_once(job: StartJob, webhook: Webhook, tmp_path: Path) -> None:
    """From calm to hung; the watcher leaves when it is told to, and the job is as it was."""
    one, said = job(), tmp_path / "said"
    (tmp_path / "webhook").write_text(webhook.url)
    notify = ("--notify", f"@{tmp_path / 'webhook'}")
    options = ("--watch", "--metrics-port", "0", *notify, "--session", str(tmp_path / "session"))
    with said.open("w") as file:
        watching = subprocess.Popen(
            [*PERFWATCH, "attach", str(one.pid), *options], stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        until(lambda: METRICS_AT in said.read_text())
        address = said.read_text().partition(METRICS_AT)[2].split()[0]
        one.stop()
        news = webhook.next()
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
    assert webhook.quiet
    assert one.finish() == 0
