"""``attach`` where py-spy, the disk, the home or the terminal are not as they should be: a verdict all the same."""

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from perfwatch.report.json import json_schema
from perfwatch.verdict import OWNERS
from tests.end_to_end.conftest import NOBODY, PERFWATCH, Attach, StartJob, needs_root, until
from tests.sessions import content_of

pytestmark = [pytest.mark.live, pytest.mark.end_to_end]
SECRETS = ("hunter2hunter2", "sk-abcdefghijklmnopqrstuvwxyz123456", "AKIAIOSFODNN7EXAMPLE", "ghp_0123456789abcdefghij")
Attaching = Callable[..., "subprocess.Popen[str]"]
IN_NAMESPACE = ("unshare", "-m", "sh", "-c")


def script(folder: Path, text: str) -> dict[str, str]:
    """The environment in which this shell script is py-spy."""
    file = folder / "py-spy"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return {"PERFWATCH_PY_SPY": str(file)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("exec sleep 1000", "gave no answer within", marks=pytest.mark.alone),  # before the verdict, else
        ("echo 'Error: the moon is full' >&2; exit 1", "the moon is full"),
        ("echo \"error: unexpected argument '--nonblocking' found\" >&2; exit 2", "too old"),
        ("echo 'not json'", ""),
        ("kill -SEGV $$", "py-spy failed"),
    ],
)
def test_a_sick_py_spy_costs_the_stacks_only(
    job: StartJob, attach: Attach, tmp_path: Path, text: str, says: str
) -> None:
    """Hanging, failing, too old, raving or crashing: the verdict comes from the kernel, and ``missing`` names it."""
    trainer = job()
    trainer.stop()

    answer = attach(trainer.pid, env=script(tmp_path, text))

    assert (answer.code, answer.verdict["cause"]) == (30, "stopped")
    if says:
        assert says in answer.missing["stacks"]


def test_a_missing_py_spy_costs_the_stacks_only(job: StartJob, attach: Attach, tmp_path: Path) -> None:
    """``missing`` says how to get it."""
    trainer = job()
    trainer.stop()

    answer = attach(trainer.pid, env={"PERFWATCH_PY_SPY": str(tmp_path / "nowhere")})
    [missing] = [one for one in answer.verdict["not_observed"] if one["source"] == "stacks"]

    assert answer.code == 30
    assert str(tmp_path / "nowhere") in missing["reason"]
    assert missing["advice"] == "pip install 'py-spy>=0.4'"


def test_json_is_one_object_of_the_schema(job: StartJob, attach: Attach) -> None:
    """Nothing else on stdout, and every field that the schema promises."""
    trainer = job(workers=1)
    trainer.stop()

    answer = attach(trainer.pid)

    assert answer.out.count("\n") == 1
    jsonschema.validate(answer.verdict, json.loads(json_schema()))
    assert answer.verdict["usually_fixed_by"] in OWNERS
    assert answer.verdict["observer_cost"]["target_paused_ms"] == 0.0


@pytest.mark.parametrize(
    ("options", "said"), [((), "the verdict takes up to 25 s"), (("--watch",), "Ctrl-C prints the verdict and ends")]
)
def test_a_terminal_is_told_at_once_how_long_it_takes(
    job: StartJob, options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    """Who waits before an empty screen takes perfwatch for hung; a program that asks reads the verdict alone."""
    terminal, stderr = os.openpty()
    command = [*PERFWATCH, "attach", str(job().pid), "--session", str(tmp_path / "s"), *options]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr) as look:
        first = os.read(terminal, 1000).decode()
        look.kill()
    os.close(terminal)
    os.close(stderr)

    assert said in first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_leaves_gets_what_is_known(job: StartJob, attaching: Attaching, number: signal.Signals) -> None:
    """Ctrl-C, or timeout(1), while a suspicion runs: one verdict, its exit code, no traceback."""
    trainer = job()
    trainer.say("h")
    assert trainer.line() == "hangs"
    look = attaching(trainer.pid, "--json", "--watch")
    look.send_signal(number)

    out, err = look.communicate(timeout=60)

    assert json.loads(out)["schema"] == "perfwatch.verdict/2"
    assert look.returncode in (0, 10, 20, 30, 50)
    assert "Traceback" not in err


def test_a_second_ctrl_c_ends_it_at_once(job: StartJob, attaching: Attaching, tmp_path: Path) -> None:
    """Also in the middle of a py-spy that hangs."""
    trainer = job()
    look = attaching(trainer.pid, "--watch", env={**os.environ, **script(tmp_path, "exec sleep 1000")})
    look.send_signal(signal.SIGINT)
    look.send_signal(signal.SIGINT)

    _, err = look.communicate(timeout=60)

    assert look.returncode in (0, 10, 20, 30, 50, 130)
    assert "Traceback" not in err


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-", ">&-"])
def test_streams_that_are_closed_from_the_start(job: StartJob, attach: Attach, closed: str) -> None:
    """As some daemons start their children: our own pipes do not end up in their place."""
    trainer = job()
    trainer.stop()

    answer = attach(trainer.pid, before=("sh", "-c", f'exec "$@" {closed}', "sh"))

    assert answer.code == 30
    assert (answer.verdict.get("cause"), answer.complaints) == (None if closed == ">&-" else "stopped", [])


@needs_root()
def test_a_home_that_cannot_be_written(job: StartJob, attach: Attach, tmp_path: Path) -> None:
    """The recording goes to /var/tmp."""
    trainer = job()
    trainer.stop()
    read_only = f'mount --bind {tmp_path} {tmp_path} && mount -o remount,bind,ro {tmp_path} && exec "$@"'
    environment = {"PERFWATCH_DIR": "", "XDG_STATE_HOME": "", "HOME": str(tmp_path)}

    answer = attach(trainer.pid, before=(*IN_NAMESPACE, read_only, "sh"), env=environment, json_=False)

    assert answer.code == 30
    assert f"recorded in /var/tmp/perfwatch-{os.getuid()}/" in answer.out


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null/x"])
def test_no_place_for_the_recording(job: StartJob, attach: Attach, folder: str) -> None:
    """The diagnosis is printed, the loss and the remedy are told on stderr."""
    trainer = job()
    trainer.stop()

    answer = attach(trainer.pid, "--session", folder)

    assert (answer.code, answer.verdict["cause"]) == (30, "stopped")
    assert "nothing was recorded" in answer.err
    assert "--session DIR or PERFWATCH_DIR=DIR" in answer.err


@needs_root()
def test_a_full_disk(job: StartJob, attach: Attach, tmp_path: Path) -> None:
    """The disk fills up in the middle of the recording: the same verdict, and how much was lost."""
    trainer = job()
    trainer.stop()
    small = f'mount -t tmpfs -o size=20k none {tmp_path} && exec "$@"'

    answer = attach(trainer.pid, before=(*IN_NAMESPACE, small, "sh"), env={"PERFWATCH_DIR": str(tmp_path)})

    assert (answer.code, answer.verdict["cause"]) == (30, "stopped")
    assert "lines of the recording were lost: No space left on device" in answer.err


@needs_root()
@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs /dev/fuse")
def test_a_session_folder_that_hangs(job: StartJob, attach: Attach, tmp_path: Path) -> None:
    """A file system that never answers: passed over within seconds, the verdict appears, the loss is told."""
    trainer = job()
    trainer.stop()
    mount = (
        "import ctypes, os, sys\n"
        "device = os.open('/dev/fuse', os.O_RDWR)\n"
        "os.set_inheritable(device, True)\n"  # held open for as long as perfwatch runs, and never read
        "options = f'fd={device},rootmode=40000,user_id=0,group_id=0'.encode()\n"
        "assert ctypes.CDLL(None).mount(b'x', sys.argv[1].encode(), b'fuse.dead', 0, options) == 0\n"
        "os.execvp(sys.argv[2], sys.argv[2:])\n"
    )
    before = ("unshare", "-m", sys.executable, "-c", mount, str(tmp_path))

    answer = attach(trainer.pid, "--session", str(tmp_path / "session"), before=before)

    assert (answer.code, answer.verdict["cause"]) == (30, "stopped")
    assert "nothing was recorded" in answer.err
    assert "did not answer within 2 s" in answer.err


@needs_root()
def test_a_missing_cgroup_mount(job: StartJob, attach: Attach) -> None:
    """Less is known, and that is said; the verdict stands."""
    trainer = job()
    trainer.stop()
    without = 'while umount -R -l /sys/fs/cgroup 2>/dev/null; do :; done; exec "$@"'

    answer = attach(trainer.pid, before=(*IN_NAMESPACE, without, "sh"))

    assert (answer.code, answer.verdict["cause"]) == (30, "stopped")
    assert "cgroup" in answer.missing


def test_secrets_of_the_job_are_nowhere(job: StartJob, attach: Attach, tmp_path: Path) -> None:
    """Not on the screen, not in the session, not in the bundle: neither from the environment nor the command line."""
    password, key, access, token = SECRETS
    trainer = job(
        workers=1,
        extra=(f"--api-key={key}", "--password", password, f"https://me:{password}@example.org/data"),
        env={**os.environ, "MY_TOKEN": token, "AWS_ACCESS_KEY_ID": access, "DB_PASSWORD": password},
    )
    trainer.stop()
    session = tmp_path / "session"
    answer = attach(trainer.pid, "--session", str(session))
    bundle = tmp_path / "bundle.tar.gz"
    made = subprocess.run(
        [*PERFWATCH, "bundle", str(session), "--output", str(bundle)], capture_output=True, text=True, timeout=60
    )
    assert made.returncode == 0, made.stderr
    texts = [answer.out, answer.err, *(content_of(file).decode() for file in session.rglob("*") if file.is_file())]
    with tarfile.open(bundle) as archive:
        files = [archive.extractfile(member) for member in archive if member.isfile()]
        texts += [file.read().decode() for file in files if file is not None]

    assert len(files) >= 3
    assert [secret for secret in SECRETS for text in texts if secret in text] == []
    assert any("trainer.py" in text for text in texts)


def test_a_job_that_run_watches_is_asked_about_at_its_watcher(job: StartJob, attach: Attach, tmp_path: Path) -> None:
    """No second look, no second recording: the answer comes from the watcher, for any process of the job."""
    trainer = job(*PERFWATCH, "run", "-q", "--session", str(tmp_path / "run"), "--", workers=1)
    until(lambda: (tmp_path / "run" / "events.jsonl").exists() or (tmp_path / "run" / "session.json").exists())
    trainer.stop()

    answers = [attach(pid, json_=False) for pid in (trainer.pid, trainer.workers[0], trainer.process.pid)]

    assert [answer.code for answer in answers] == [30] * 3
    assert all(f"recorded in {tmp_path / 'run'}" in answer.out for answer in answers)
    os.kill(trainer.pid, signal.SIGCONT)


def test_a_job_whose_watcher_was_killed_is_looked_at(job: StartJob, attach: Attach, tmp_path: Path) -> None:
    """The launcher is gone, the job lives: an attach of its own, with a recording of its own."""
    trainer = job(*PERFWATCH, "run", "-q", "--session", str(tmp_path / "run"), "--")
    until(lambda: (tmp_path / "run" / "session.json").exists())
    trainer.process.kill()
    trainer.process.wait()
    trainer.stop()

    answer = attach(trainer.pid, json_=False)

    assert answer.code == 30
    assert str(tmp_path / "sessions") in answer.out
    os.kill(trainer.pid, signal.SIGKILL)


@needs_root()
def test_nobody_attaches_to_their_own_job(job: StartJob, attach: Attach, tmp_path: Path) -> None:
    """An ordinary user with an ordinary job needs no privilege."""
    trainer = job(*NOBODY)
    trainer.stop()

    answer = attach(trainer.pid, before=NOBODY, env={"PERFWATCH_DIR": "", "HOME": "/nonexistent"})

    assert (answer.code, answer.verdict["cause"]) == (30, "stopped")
    assert "stacks" not in answer.missing or "denied" not in answer.missing["stacks"]
