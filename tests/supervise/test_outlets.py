"""``run`` with metrics and a webhook: whatever these do, the job is started, fed and ended as always."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.sessions import content_of
from tests.supervise.conftest import Launch, Launched, python
from tests.webhook import Webhook

pytestmark = pytest.mark.live

CRASH = python("print('ready', flush=True); input(); raise SystemExit(3)")


def _crash_after_a_word(run: Launched) -> str:
    """Let the job crash once the watcher has said something, which it does when it watches."""
    stdin = run.process.stdin
    assert run.line() == "ready"
    assert stdin is not None
    said = run.said()
    stdin.write("\n")
    stdin.flush()
    return said


def test_a_taken_port_and_a_webhook_that_hangs_do_not_concern_the_job(launch: Launch, tmp_path: Path) -> None:
    """The port is said to be taken; the job ends as it wants to, at once, while the webhook holds its connection open."""
    with socket.socket() as taken, socket.socket() as mute:
        for one in (taken, mute):
            one.bind(("127.0.0.1", 0))
            one.listen()
        port, silent = taken.getsockname()[1], mute.getsockname()[1]
        url = f"http://127.0.0.1:{silent}/services/SECRETpath"
        (tmp_path / "webhook").write_text(url)
        options = (
            "--metrics-port",
            str(port),
            "--notify",
            f"@{tmp_path / 'webhook'}",
            "--session",
            str(tmp_path / "s"),
        )
        run = launch(*CRASH, options=options, stdin=subprocess.PIPE)
        said = _crash_after_a_word(run)
        code = run.end()
    run.rest()  # the watch lets go of it once the webhook has hung up: only then are the session's files at rest

    assert code == 3
    assert f"no metrics on 127.0.0.1:{port}: Address already in use" in said
    assert not [path for path in (tmp_path / "s").iterdir() if b"SECRETpath" in content_of(path)]


def test_the_end_of_a_job_is_posted_though_nobody_watches_any_more(
    launch: Launch, webhook: Webhook, tmp_path: Path
) -> None:
    """A crash is posted once, with the cause; its command line is on record, the webhook's address is not."""
    (tmp_path / "webhook").write_text(webhook.url)
    options = ("--metrics-port", "0", "--notify", f"@{tmp_path / 'webhook'}")
    run = launch(*CRASH, options=options, stdin=subprocess.PIPE)
    assert "metrics are served on http://127.0.0.1:" in _crash_after_a_word(run)
    assert run.end() == 3
    found = webhook.next()

    assert found["perfwatch"]["state"] == "gone"
    assert "exit code 3" in found["text"]


def test_a_good_end_is_posted_where_it_is_asked_for_and_a_heartbeat_comes_while_the_job_runs(
    launch: Launch, webhook: Webhook, tmp_path: Path
) -> None:
    """Both URLs are in files, as root must have it; the kinds of news are in a variable, as a site has it."""
    (tmp_path / "webhook").write_text(webhook.url)
    options = ("--notify", f"@{tmp_path / 'webhook'}", "--heartbeat", f"@{tmp_path / 'webhook'}")
    kinds = {"PERFWATCH_NOTIFY_ON": "finished"}
    run = launch(*python("import sys; sys.stdin.read()"), options=options, stdin=subprocess.PIPE, env=kinds)
    alive = webhook.next()
    assert run.process.stdin is not None
    run.process.stdin.close()
    code, ended = run.end(), webhook.next()

    assert alive == {"GET": "/services/T0/SECRET"}
    assert (code, ended["perfwatch"]["state"], ended["perfwatch"]["cause"]) == (0, "gone", "finished")
    assert ended["perfwatch"]["action"] == "none"
    assert ended["perfwatch"]["job"]["host"] == os.uname().nodename


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--metrics-port", "http"),
        ("--notify", "ftp://x"),
        ("--notify", "@/nowhere"),
        ("--notify", "nosuchservice+https://ftp"),
        ("--notify-on", "sometimes"),
        ("--heartbeat", "ftp://x"),
        ("--metrics-token", "ftp"),
        ("--metrics-socket", "/dev/null"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_job_starts(launch: Launch, option: str, value: str) -> None:
    """With the way out, and without repeating what may be a secret."""
    run = launch(*python("print('started')"), options=(option, value))
    code = run.end()
    output, errors = run.rest()

    assert code == 2
    assert output == ""
    assert option in errors
    assert "ftp" not in errors
