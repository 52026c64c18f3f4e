"""The Slurm prolog and epilog, run by root, against the user whose job it is: nothing of root's is ever in the user's hands.

No Slurm is needed: the scripts get the environment that slurmd gives them.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.security.conftest import DEADLINE_SECONDS, PERFWATCH, Popen, User

pytestmark = pytest.mark.live

JOB, OTHER_JOB = "4711", "4712"
LONG_AGO = "20 days ago"
# The daemon looks for jobs often, and calls a stopped one hung at once.
BRISK = "--every 0.2 --patience 1"
IDLE = "--every 60"


def until(what: Callable[[], bool]) -> None:
    """Wait for something; fails at the deadline."""
    ends = time.monotonic() + DEADLINE_SECONDS
    while not what():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.05)


class Node:
    """A compute node: what slurmd runs there, and the folder in which the scripts keep their state."""

    def __init__(self, scripts: Path, state: Path) -> None:
        self.scripts, self.state = scripts, state
        self.daemons: list[int] = []  # pidfds

    def runs(self, which: str, user: User, job: str = JOB, **changes: str) -> "subprocess.CompletedProcess[str]":
        """Run the prolog or the epilog for a job of a user's."""
        environment = {
            "PERFWATCH": str(Path(sys.executable).with_name("perfwatch")),
            "PERFWATCH_STATE": str(self.state),
            "PERFWATCH_OPTIONS": IDLE,
            "SLURM_JOB_ID": job,
            "SLURM_JOB_UID": str(user.uid),
            "SLURM_JOB_USER": str(user.uid),
            **changes,
        }
        return subprocess.run(
            (str(self.scripts / f"slurm-{which}.sh"),), env=environment, capture_output=True, text=True,
            timeout=DEADLINE_SECONDS, check=True,
        )  # fmt: skip

    def prolog(self, user: User, job: str = JOB, **changes: str) -> Path:
        """Begin a job and wait for its watch; the folder that was made for it."""
        before = set(self.state.glob(f"{job}*"))
        self.runs("prolog", user, job, **changes)
        made = set(self.state.glob(f"{job}*")) - before
        folder = made.pop() if made else self.state / job
        until(lambda: "watching" in text_of(folder / "log"))
        self.daemons.append(os.pidfd_open(int(text_of(folder / ".pid").split()[0])))
        return folder

    def epilog(self, user: User, job: str = JOB, **changes: str) -> None:
        """End a job."""
        self.runs("epilog", user, job, **changes)


def text_of(path: Path) -> str:
    """A file of root's; empty while it is not there."""
    return path.read_text() if path.is_file() else ""


@pytest.fixture
def node(repository: Path) -> Iterator[Node]:
    """A node whose state folder every user can reach; its daemons end with the test."""
    place = Path(tempfile.mkdtemp(prefix="perfwatch-node-", dir="/tmp"))
    place.chmod(0o755)
    state = place / "state"
    one = Node(repository / "scripts" / "deploy", state)
    yield one
    for daemon in one.daemons:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(daemon, signal.SIGKILL)
        os.close(daemon)
    shutil.rmtree(place)


@pytest.fixture
def bystander() -> Iterator["subprocess.Popen[bytes]"]:
    """A process of root's that has perfwatch in its command line."""
    with subprocess.Popen(("perfwatch", "600"), executable=shutil.which("sleep")) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(
    "attack",
    [
        "rm -f {folder}/log {folder}/.pid; ln -s {secret} {folder}/log; ln -s {fresh} {folder}/.pid",
        "rm -f {folder}/log; ln {secret} {folder}/log; ln -s {fresh} {folder}/.pid",
        "rm -f {folder}/log; mkfifo {folder}/log; ln -s {fresh} {folder}/.pid",
        "rm -rf {folder}; ln -s {private} {folder}",
        "mv {folder} {folder}.old; mkdir {folder}; ln -s {secret} {folder}/log",
        "rm -f {folder}/.daemon; ln -s {fresh} {folder}/.daemon; : >{folder}/log; chmod 0400 {folder}",
    ],
)
def test_a_requeued_job_is_watched_and_writes_through_nothing(
    node: Node, mallory: User, tmp_path: Path, attack: str
) -> None:
    """Whatever the user does to the folder of the first start, root's files stay as they are."""
    secret, fresh, private = tmp_path / "secret", tmp_path / "fresh", tmp_path / "private"
    secret.write_text("root's\n")
    private.mkdir()
    folder = node.prolog(mallory)
    node.epilog(mallory)
    mallory.run("sh", "-c", attack.format(secret=secret, fresh=fresh, private=private, folder=folder), check=False)
    again = node.prolog(mallory)
    node.epilog(mallory)

    assert secret.read_text() == "root's\n"
    assert not fresh.exists()
    assert list(private.iterdir()) == []
    assert again != folder
    assert "watching" in text_of(again / "log")


def test_a_pid_that_a_user_wrote_is_not_signalled(
    node: Node, mallory: User, bystander: "subprocess.Popen[bytes]"
) -> None:
    """The epilog ends only the daemon that the prolog started."""
    folder = node.prolog(mallory)
    node.epilog(mallory)
    mallory.run("sh", "-c", f"rm -f {folder}/.pid; echo {bystander.pid} >{folder}/.pid", check=False)
    node.epilog(mallory)

    assert bystander.poll() is None


@pytest.mark.parametrize(
    "record", ["{pid}", "{pid} 1 {boot}", "{pid} {ticks} another-boot", "0 {ticks} {boot}", "-1 - -", ""]
)
def test_a_record_of_another_process_is_not_signalled(
    node: Node, mallory: User, bystander: "subprocess.Popen[bytes]", record: str
) -> None:
    """Even root's own record counts only with the start time and the boot of the process."""
    folder = node.prolog(mallory)
    ticks = Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(") ")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (folder / ".pid").write_text(record.format(pid=bystander.pid, ticks=ticks, boot=boot) + "\n")
    node.epilog(mallory)

    assert bystander.poll() is None


def test_a_daemon_that_ignores_sigterm_is_killed(node: Node, mallory: User) -> None:
    """The record of a start names the daemon that runs, and after ten seconds it is gone."""
    folder = node.prolog(mallory)
    pid = int((folder / ".pid").read_text().split()[0])
    os.kill(pid, signal.SIGSTOP)
    node.epilog(mallory)

    until(lambda: not Path(f"/proc/{pid}/exe").exists())


def test_nothing_in_the_state_folder_is_ever_a_users(
    node: Node, mallory: User, start_job: Callable[..., Popen]
) -> None:
    """While the job runs and after its end the user owns nothing there and can write nothing."""
    job = start_job(mallory, environment={"SLURM_JOB_ID": JOB})
    folder = node.prolog(mallory, PERFWATCH_OPTIONS=BRISK)
    until(lambda: "recorded in" in text_of(folder / "log"))
    during = touchable(folder, mallory)
    node.epilog(mallory)

    assert job.poll() is None
    assert (during, touchable(folder, mallory)) == ([], [])


def test_a_state_folder_that_a_user_made_is_not_used(node: Node, mallory: User, tmp_path: Path) -> None:
    """A place below it may lead anywhere: the job is not watched, and the reason and the fix are printed."""
    private = tmp_path / "private"
    private.mkdir()
    state = mallory.home / "state"
    mallory.run("sh", "-c", f"mkdir {state} && ln -s {private} {state}/{JOB}")
    node.state = state
    done = node.runs("prolog", mallory)

    assert list(private.iterdir()) == []
    assert sorted(path.name for path in state.iterdir()) == [JOB]
    assert "is not watched" in done.stderr
    assert f"mv {state}" in done.stderr


def test_a_state_folder_behind_a_link_of_a_user_is_not_used(node: Node, mallory: User, tmp_path: Path) -> None:
    """The link may lead to any folder of root's."""
    private = tmp_path / "private"
    private.mkdir()
    node.state = mallory.home / "state"
    mallory.run("ln", "-s", str(private), str(node.state))
    node.runs("prolog", mallory)
    node.epilog(mallory)

    assert list(private.iterdir()) == []


def test_users_cannot_choose_what_is_cleaned_or_when(node: Node, mallory: User, victim: User) -> None:
    """Old recordings go by root's own times; a link or a touch of a user's changes nothing."""
    old = node.prolog(mallory)
    node.epilog(mallory)
    subprocess.run(("touch", "-d", LONG_AGO, str(old)), check=True)
    mallory.run("sh", "-c", f"touch {old}; mkdir -p {old}/$(printf 'a/%.0s' $(seq 500))", check=False)
    recent = node.prolog(victim, OTHER_JOB)
    node.epilog(victim, OTHER_JOB)

    assert not old.exists()
    assert recent.exists()


def test_a_recording_that_is_being_written_is_not_cleaned(node: Node, mallory: User, victim: User) -> None:
    """However long a job runs, another job's epilog leaves its folder alone."""
    long = node.prolog(mallory)
    node.prolog(victim, OTHER_JOB)
    subprocess.run(("touch", "-d", LONG_AGO, str(long)), check=True)
    node.epilog(victim, OTHER_JOB)

    assert "watching" in text_of(long / "log")


def test_the_user_reads_the_verdict_of_a_live_hang_and_nobody_else_does(
    node: Node, mallory: User, victim: User, start_job: Callable[..., Popen]
) -> None:
    """``perfwatch replay`` and ``cat`` work for the job's user while the job hangs; another user is denied."""
    job = start_job(mallory, environment={"SLURM_JOB_ID": JOB})
    job.send_signal(signal.SIGSTOP)
    folder = node.prolog(mallory, PERFWATCH_OPTIONS=BRISK)
    until(lambda: "verdict: hung" in mallory.run("cat", f"{folder}/log", check=False).stdout)

    def replayed() -> "subprocess.CompletedProcess[str]":
        return mallory.run(*PERFWATCH, "replay", str(folder), check=False)

    until(lambda: replayed().returncode == 30)
    shown = replayed()
    denied = [
        victim.run(*command, check=False)
        for command in (("ls", str(folder)), ("cat", f"{folder}/log"), (*PERFWATCH, "replay", str(folder)))
    ]

    assert job.poll() is None
    assert "stopped" in shown.stdout
    assert [one.returncode == 0 for one in denied] == [False, False, False]
    assert JOB not in "".join(one.stdout for one in denied)


def test_the_recording_is_readable_when_the_job_is_over(
    node: Node, mallory: User, victim: User, start_job: Callable[..., Popen]
) -> None:
    """The last lines too; hidden files, locks among them, stay root's alone."""
    start_job(mallory, environment={"SLURM_JOB_ID": JOB})
    folder = node.prolog(mallory, PERFWATCH_OPTIONS=BRISK)
    until(lambda: "recorded in" in text_of(folder / "log"))
    node.epilog(mallory)
    unreadable = mallory.run("find", str(folder), "!", "-readable", "-not", "-name", ".*").stdout

    assert unreadable == ""
    assert mallory.run("cat", f"{folder}/log").stdout == text_of(folder / "log")
    assert mallory.run("cat", f"{folder}/.daemon", check=False).returncode != 0
    assert victim.run("find", str(folder), "-readable", check=False).stdout == ""


def test_two_jobs_of_one_user_have_two_watches_of_one_job_each(
    node: Node, mallory: User, start_job: Callable[..., Popen]
) -> None:
    """Where there are no control groups, by the environment of the user's own processes."""
    jobs = {number: start_job(mallory, environment={"SLURM_JOB_ID": number}) for number in (JOB, OTHER_JOB)}
    folders = {number: node.prolog(mallory, number, PERFWATCH_OPTIONS=BRISK) for number in jobs}
    for number, folder in folders.items():
        until(lambda number=number, folder=folder: adopted(folder) >= {jobs[number].pid})  # type: ignore[misc]

    assert [adopted(folder) for folder in folders.values()] == [{job.pid} for job in jobs.values()]


def test_the_job_of_another_user_is_not_watched_whatever_its_environment_says(
    node: Node, mallory: User, victim: User, start_job: Callable[..., Popen]
) -> None:
    """A process of the attacker's that claims the victim's job id is not in the victim's recordings."""
    forged = start_job(mallory, environment={"SLURM_JOB_ID": JOB})
    true = start_job(victim, environment={"SLURM_JOB_ID": JOB})
    folder = node.prolog(victim, PERFWATCH_OPTIONS=BRISK)
    until(lambda: true.pid in adopted(folder))

    assert forged.pid not in adopted(folder)


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("cgroup2", "system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0"),
        ("cgroup2", "system.slice/node-a_slurmstepd.scope/job_{job}/step_batch/user/task_special"),
        ("cgroup", "slurm/uid_1001/job_{job}/step_0/task_0"),
    ],
)
def test_the_control_group_decides_against_the_environment(
    node: Node, mallory: User, start_job: Callable[..., Popen], kind: str, form: str
) -> None:
    """A process in the control group of one job that claims another job's id belongs to the first."""
    with ExitStack() as stack:
        jobs = {}
        for number, claimed in ((JOB, OTHER_JOB), (OTHER_JOB, JOB)):
            process = start_job(mallory, environment={"SLURM_JOB_ID": claimed})
            enter(stack, kind, form.format(job=number), process)
            jobs[number] = process
        folders = {number: node.prolog(mallory, number, PERFWATCH_OPTIONS=BRISK) for number in jobs}
        for number, folder in folders.items():
            until(lambda number=number, folder=folder: adopted(folder) >= {jobs[number].pid})  # type: ignore[misc]

        assert [adopted(folder) for folder in folders.values()] == [{job.pid} for job in jobs.values()]


def touchable(folder: Path, user: User) -> list[Path]:
    """What a user owns or may write to in a folder and its parents up to the state folder."""
    everything = [folder.parent, folder, *folder.rglob("*")]
    owned = [path for path in everything if path.lstat().st_uid != os.geteuid()]
    writable = user.run("sh", "-c", 'for one; do [ -w "$one" ] && echo "$one"; done; true', "sh", *map(str, everything))
    return owned + [Path(name) for name in writable.stdout.splitlines()]


def adopted(folder: Path) -> set[int]:
    """The pids that the daemon of a folder has taken up."""
    return {int(pid) for pid in re.findall(r"pid (\d+): adopted", text_of(folder / "log"))}


def enter(stack: ExitStack, kind: str, path: str, process: Popen) -> None:
    """Put a process into a control group of this path until the stack ends it; skips the test where none can be made."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    mounts = [words[4] for words in lines if words[words.index("-") + 1] == kind and words[3] == "/"]
    chosen = [mount for mount in mounts if kind == "cgroup2" or mount.endswith("freezer")]
    if not chosen:
        pytest.skip(f"no {kind} hierarchy is mounted from its root")
    folder = Path(chosen[0])
    try:
        for name in path.split("/"):
            folder /= name
            if not folder.exists():
                folder.mkdir()
                stack.callback(folder.rmdir)
        stack.callback(process.wait, DEADLINE_SECONDS)
        stack.callback(process.kill)
        (folder / "cgroup.procs").write_text(str(process.pid))
    except OSError as error:
        pytest.skip(f"no control group can be made in {chosen[0]}: {error.strerror}")
