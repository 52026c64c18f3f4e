"""``attach --watch`` for days: metrics and a webhook of a job that was already there."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import pytest

from tests.end_to_end.conftest import NOBODY, PATIENCE_SECONDS, PERFWATCH, StartJob, needs_root, until
from tests.sessions import record
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


@needs_root()
def test_a_change_of_the_verdict_starts_the_operators_command_as_the_user_of_the_job(
    job: StartJob, tmp_path: Path
) -> None:
    """The verdict is on its standard input, and what came of it in the watcher's output; the variable says the same as the option."""
    one, said = job(*NOBODY), tmp_path / "said"
    got = Path(tempfile.mkdtemp(dir="/tmp", prefix="on-verdict-"))
    got.chmod(0o777)
    command = f"sh -c 'id -u >{got}/uid; cat >{got}/verdict; echo done'"
    with said.open("w") as file:
        watching = subprocess.Popen(
            [*PERFWATCH, "attach", str(one.pid), "--watch", "--session", str(tmp_path / "session")],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**os.environ, "PERFWATCH_ON_VERDICT": command},
        )  # fmt: skip
    try:
        until(lambda: any(path.stat().st_size for path in (tmp_path / "session").glob("readings*.jsonl")))
        one.stop()
        until(lambda: "--on-verdict sh (hung, action None): exit code 0: done" in said.read_text())
        found, uid = json.loads((got / "verdict").read_text()), (got / "uid").read_text().strip()
    finally:
        os.kill(one.pid, signal.SIGCONT)
        watching.kill()
        watching.wait()
        shutil.rmtree(got)

    assert (found["schema"], found["cause"], found["job"]["uid"], uid) == (
        "perfwatch.verdict/2",
        "stopped",
        65534,
        "65534",
    )
    assert one.finish() == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--on-verdict", "/nowhere/act"), "there is no program /nowhere/act"),
        (("--on-verdict", "sh '"), "no closing quotation"),
        (("--on-verdict-user", "root"), "no command is to be run"),
        (("--on-verdict", "true", "--on-verdict-user", "nobody-of-that-name"), "there is no such user"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused_at_the_start(
    job: StartJob, options: tuple[str, ...], why: str
) -> None:
    """Not when the first verdict comes, at night."""
    pid = str(job().pid)
    done = subprocess.run([*PERFWATCH, "attach", pid, "--watch", *options], capture_output=True, text=True, timeout=60)

    assert done.returncode == 2
    assert why in done.stderr


def test_a_recording_starts_nothing(tmp_path: Path) -> None:
    """No command that reads one takes the option, and the variable is ignored."""
    folder, command = record(tmp_path / "s"), f"touch {tmp_path}/ran"
    typed = subprocess.run(
        [*PERFWATCH, "replay", str(folder), "--on-verdict", command], capture_output=True, text=True, timeout=60
    )
    subprocess.run(
        [*PERFWATCH, "replay", str(folder)],
        capture_output=True,
        timeout=60,
        env={**os.environ, "PERFWATCH_ON_VERDICT": command},
    )

    assert (typed.returncode, "no option --on-verdict" in typed.stderr) == (2, True)
    assert not (tmp_path / "ran").exists()
