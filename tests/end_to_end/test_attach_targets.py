"""``attach`` on every kind of process that a user may name, in whatever state it is."""

import json
import os
import pwd
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import (
    NOBODY,
    PATIENCE_SECONDS,
    PERFWATCH,
    Attach,
    StartJob,
    born,
    needs_root,
    state,
    until,
)
from tests.fleet.slurm import cluster, submit, why_not

pytestmark = [pytest.mark.live, pytest.mark.end_to_end]

POD = "1e6dd6c2-2a46-4c9b-9d0d-3f1a2b5c7d8e"
NAMESPACES = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts", "--ipc", "--net")
Typed = Callable[..., "subprocess.CompletedProcess[str]"]


def test_no_such_pid(attach: Attach) -> None:
    """Exit code 3, a sentence, the advice, and the same on stdout for whoever parses it."""
    answer = attach(4_194_305)

    assert (answer.code, json.loads(answer.out)["error"]["code"]) == (3, 3)
    assert answer.err == ("perfwatch: no process 4194305\n  perfwatch ps lists the training jobs of this machine\n")


def test_not_a_python_process(attach: Attach) -> None:
    """Exit code 3 and the name of what it is."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as cat:
        until(lambda: os.readlink(f"/proc/{cat.pid}/exe").rpartition("/")[2] in ("cat", "coreutils"))
        answer = attach(cat.pid)

    assert (answer.code, json.loads(answer.out)["error"]["code"]) == (3, 3)
    assert "(cat) is Python" in answer.err


def test_a_python_program_without_torch_is_told_as_that_soon(attach: Attach) -> None:
    """It is no training, whatever it does; and after a few seconds, for a whole hang timeout would say no more."""
    program = "import os, time; os.write(1, b'r')\nwhile True: time.sleep(0.1)"
    with subprocess.Popen([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE) as plain:
        assert plain.stdout is not None
        assert plain.stdout.read(1) == b"r"
        answer = attach(plain.pid)
        plain.kill()
    told = json.loads(answer.out)

    assert (answer.code, told["state"], told["suspect"]) == (50, "inconclusive", None)
    assert "has imported torch, and none is importing it" in told["summary"]
    assert told["timeline"]["decided"] < 25.0


def test_a_zombie(attach: Attach) -> None:
    """Its exit code is known: the verdict is gone."""
    with subprocess.Popen(["sh", "-c", "exit 3"]) as dead:
        until(lambda: state(dead.pid) == "Z")
        answer = attach(dead.pid)

    assert answer.code == 41
    assert "crashed (exit code 3)" in answer.out


def test_a_job_that_is_killed_while_we_look(job: StartJob, attaching: "Callable[..., subprocess.Popen[str]]") -> None:
    """The verdict is its end: gone, killed by signal 9, exit code 41."""
    trainer = job(workers=1)
    look = attaching(trainer.pid, "--watch")
    os.kill(trainer.pid, signal.SIGKILL)

    out, err = look.communicate(timeout=60)

    assert (look.returncode, "Traceback" in err) == (41, False)
    assert "GONE" in out
    assert "signal 9" in out or "SIGKILL" in out


def test_a_job_that_ends_well_while_we_look(job: StartJob, attaching: "Callable[..., subprocess.Popen[str]]") -> None:
    """Its parent reaps it at once, so that how it ended may never be known: gone, in any case."""
    trainer = job()
    look = attaching(trainer.pid, "--watch")
    trainer.finish()

    out, _ = look.communicate(timeout=60)

    assert look.returncode in (40, 41)
    assert "GONE" in out


def test_the_verdict_says_whose_job_it_is_and_no_secret(job: StartJob, attach: Attach) -> None:
    """From the variables on the list, and from no other."""
    said = {
        "SLURM_JOB_NAME": "gpt",
        "TORCHELASTIC_RUN_ID": "r1",
        "WANDB_RUN_ID": "1a2b",
        "WANDB_API_KEY": "0123456789abcdef",
    }
    trainer = job(env={**os.environ, **said})
    trainer.stop()

    answer = attach(trainer.pid)
    found = answer.verdict["job"]

    assert (found["slurm_job_name"], found["run_id"], found["wandb_run"]) == ("gpt", "r1", "1a2b")
    assert (found["pid"], found["host"], found["user"]) == (
        trainer.pid,
        os.uname().nodename,
        pwd.getpwuid(os.getuid()).pw_name,
    )
    assert "0123456789abcdef" not in answer.out
    assert answer.verdict["action"] is None  # whoever stopped it lets it go on


def test_a_stopped_job(job: StartJob, attach: Attach) -> None:
    """State T: hung, at once, and nobody continues it."""
    trainer = job()
    trainer.stop()

    answer = attach(trainer.pid)

    assert (answer.code, answer.verdict["cause"]) == (30, "stopped")
    assert state(trainer.pid) == "T"


def test_a_job_in_state_d(job: StartJob, attach: Attach) -> None:
    """Its memory can be read or not; we are not held up, and there is a verdict."""
    trainer = job()
    trainer.say("d")
    assert trainer.line() == "waits"
    until(lambda: state(trainer.pid) == "D")

    answer = attach(trainer.pid, "--patience", "3")

    assert answer.code in (30, 50)
    assert answer.verdict["coverage"]["ranks_seen"] == 1


def test_any_process_of_the_job_will_do(job: StartJob, attach: Attach) -> None:
    """A worker's pid leads to the rank above it."""
    trainer = job(workers=2)
    trainer.stop()

    verdicts = [attach(pid).verdict for pid in (trainer.pid, *trainer.workers)]

    assert [verdict["culprits"][0]["pid"] for verdict in verdicts] == [trainer.pid] * 3


def test_a_shell_above_the_job_and_above_us(job: StartJob, attach: Attach) -> None:
    """Our own process below the same shell is not taken for a part of the job."""
    trainer = job(workers=1)
    trainer.stop()
    above = os.getpid()

    answer = attach(above)

    assert answer.code in (30, 50)
    assert "perfwatch" not in {culprit["thread"] for culprit in answer.verdict["culprits"]}


@needs_root()
def test_the_job_of_another_user(job: StartJob, attach: Attach) -> None:
    """Stacks, files and system calls are denied; the state is not: on request a verdict, what is missing, and how to get it."""
    trainer = job(workers=1)
    trainer.stop()

    unprivileged = {"PERFWATCH_DIR": "", "HOME": "/nonexistent"}
    answer = attach(trainer.workers[0], "--without-stacks", before=NOBODY, env=unprivileged)

    assert (answer.code, answer.verdict["cause"]) == (30, "stopped")
    assert "we are uid 65534 without CAP_SYS_PTRACE" in answer.missing["stacks"]
    advice = [one["advice"] for one in answer.verdict["not_observed"] if one["source"] == "stacks"]
    assert "SYS_PTRACE" in advice[0] or "sudo" in advice[0]


@needs_root()
def test_another_users_running_job_is_not_accused(job: StartJob, attach: Attach) -> None:
    """Without stacks a running thread may do anything: no hang is concluded from what was not seen."""
    trainer = job()

    words = ("--hang-timeout", "2", "--without-stacks")
    answer = attach(trainer.pid, *words, before=NOBODY, env={"PERFWATCH_DIR": "", "HOME": "/nonexistent"})

    assert answer.verdict["state"] != "hung"
    assert trainer.steps() > 0


@needs_root()
@pytest.mark.parametrize("words", [("attach",), ("attach", "--watch"), ("capture", "stacks")], ids=" ".join)
def test_the_job_of_another_user_is_refused_at_once(job: StartJob, tmp_path: Path, words: tuple[str, ...]) -> None:
    """With 77, whose job it is and what to type, as the first thing; nothing is recorded."""
    trainer = job()
    # Nobody may read our own files here, whatever folder they lie in, but no memory.
    reader = (*NOBODY, "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search",
              "--bounding-set", "-all,+dac_read_search")  # fmt: skip
    command = [*reader, *PERFWATCH, *words, str(trainer.pid), "--json"]
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 65534, 65534)
    environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path / "theirs"), "HOME": "/nonexistent"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    told = json.loads(done.stdout)["error"]

    assert (done.returncode, told["code"]) == (77, 77), done.stderr
    assert told["message"] == f"permission denied: pid {trainer.pid} belongs to root"
    assert re.search(rf"^sudo \S*perfwatch {' '.join(words[:2]) if words[0] == 'capture' else 'attach'} {trainer.pid}$",
                     told["advice"], flags=re.M)  # fmt: skip
    assert list((tmp_path / "theirs").iterdir()) == []
    assert done.stderr.startswith("perfwatch: permission denied"), done.stderr


@needs_root()
def test_a_process_that_proc_hides(job: StartJob) -> None:
    """hidepid=2: the only case in which nothing at all can be seen. Exit code 77, and what to type."""
    trainer = job()
    script = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", *NOBODY, *PERFWATCH, "attach", str(trainer.pid), "--json"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (77, 77)
    assert re.search(rf"sudo \S*perfwatch attach {trainer.pid}", done.stderr)


@needs_root()
def test_a_job_in_a_container_seen_from_outside(job: StartJob, attach: Attach) -> None:
    """It calls itself 1; we call it what the host does."""
    trainer = job("unshare", "-p", "-m", "--mount-proc", "--fork", "--kill-child")
    _, inside = trainer.born
    os.kill(inside, signal.SIGSTOP)
    until(lambda: state(inside) == "T")

    answer = attach(inside)

    assert (answer.code, answer.verdict["cause"]) == (30, "stopped")
    assert answer.verdict["culprits"][0]["pid"] == inside


@needs_root()
def test_perfwatch_and_job_in_one_container(library: Path, tmp_path: Path) -> None:
    """As PID 1's neighbour, where host pids do not exist."""
    os.mkfifo(tmp_path / "ready")
    script = (
        f"tail -f /dev/null | {sys.executable} {library}/trainer.py {library} 1 > {tmp_path}/ready &\n"
        f"read pid worker < {tmp_path}/ready\n"
        'kill -STOP "$pid"\n'
        f'"$@" attach "$worker" --json --session {tmp_path}/session\n'
    )
    command = ["unshare", "-p", "-m", "--mount-proc", "--fork", "--kill-child", "sh", "-c", script, "sh", *PERFWATCH]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    verdict = json.loads(done.stdout)

    assert (done.returncode, verdict["cause"]) == (30, "stopped"), done.stderr
    assert verdict["culprits"][0]["pid"] < 20


@pytest.fixture
def typed(tmp_path: Path) -> Typed:
    """Types a command of perfwatch outside of all containers."""

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "PERFWATCH_DIR": str(tmp_path / "sessions"), "PERFWATCH_CONFIG": ""}
        return subprocess.run(
            (*PERFWATCH, *words), env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )

    return run


@pytest.fixture
def group() -> Iterator[tuple[Path, str]]:
    """A control group as the kubelet and its runtime make one, and the id of the container in its name."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    tops = [
        Path(mount[1]) for mount in mounts if mount[2] == "cgroup2" or (mount[2] == "cgroup" and "pids" in mount[3])
    ]
    container = secrets.token_hex(32)
    path = next((top / f"kubepods/burstable/pod{POD}/{container}" for top in tops if os.access(top, os.W_OK)), None)
    try:
        if path is None:
            raise OSError
        path.mkdir(parents=True)
    except OSError:
        pytest.skip("control groups cannot be made here")
    yield path, container
    for folder in (path, *list(path.parents)[:3]):
        until(lambda folder=folder: not (folder / "cgroup.procs").read_text())  # type: ignore[misc]
        folder.rmdir()


@pytest.mark.alone  # three looks within a hang timeout of five seconds
@needs_root()
def test_a_job_in_a_container_is_found_by_pod_and_container(
    group: tuple[Path, str], job: StartJob, typed: Typed
) -> None:
    """By the uid and the name of the pod, and by the id that docker ps shows: one job for all commands that take one."""
    folder, container = group
    inside = ("sh", "-c", f'echo $$ > {folder}/cgroup.procs; hostname trainer-0; exec "$@"', "sh")
    trainer = job(*NAMESPACES, *inside, env={**os.environ, "HOSTNAME": "trainer-0"}, workers=1)
    trainer.say("h")
    (pid,) = (one for one in born(trainer.pid) if str(one) in (folder / "cgroup.procs").read_text().split()[:1])

    for name in (("--pod", POD), ("--pod", "trainer-0"), ("--container", container[:12])):
        judged = typed("attach", *name, "--hang-timeout", "5")
        assert judged.returncode == 30, judged.stderr
        assert f"pid {pid}" in judged.stdout
    stacks = typed("capture", "stacks", "--pod", "trainer-0")
    top = typed("top", "--once", "--container", container[:12])
    checked = typed("doctor", "--pod", POD)

    assert ("hang (trainer.py" in stacks.stdout, stacks.returncode) == (True, 0), stacks.stderr
    assert str(pid) in top.stdout, top.stderr
    assert f"process {pid}" in checked.stdout, checked.stderr


@pytest.mark.alone  # beside another cluster of Slurm on this machine it may wait for minutes
def test_a_job_of_slurm_is_found_by_its_number(library: Path, typed: Typed, tmp_path: Path) -> None:
    """As sbatch prints it; the batch script, its step and the training are of one job."""
    if reason := why_not():
        pytest.skip(reason)
    with cluster() as names:
        if names is None:
            pytest.skip("Slurm's daemons do not come up on this machine")
        (tmp_path / "in").touch()
        os.mkfifo(tmp_path / "letters")
        training = f"{sys.executable} {library}/trainer.py {library} 1"
        number = submit(names, f"--wrap=srun --overlap {training} <> {tmp_path}/letters")
        until(lambda: typed("doctor", "--slurm", number).returncode != 3)
        stacks = typed("capture", "stacks", "--slurm", number)
        judged = typed("attach", "--slurm", number)
        subprocess.run(["scancel", number], env=names, check=True)

    assert (stacks.returncode, "main (trainer.py" in stacks.stdout) == (0, True), stacks.stderr
    assert f"Slurm job {number} is pid" in judged.stderr
    assert judged.returncode in (0, 10, 20, 50), judged.stdout
