"""Processes: the tree, identity without secrets, usage, and every way to end."""

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from perfwatch_probes.deadline import Inline, KillableChild
from perfwatch_probes.filesystem import Absent, Denied, Filesystem
from perfwatch_probes.private import parse_command, parse_environment, read_private
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.process import children_of, ended, identify, program, scan, tree, usage
from perfwatch_probes.readings import Process, ProcessEnded
from perfwatch_probes.stat import PAGE_BYTES, TICKS_PER_SECOND

LIVE = Filesystem()
Start = Callable[[str], int]
Wake = Callable[[int], None]
Until = Callable[[Callable[[], bool]], None]


def hide(words: Sequence[str]) -> tuple[str, ...]:
    """A redaction that knows one kind of secret."""
    return tuple(
        "[redacted]" if before == "--token" else word for before, word in zip(("", *words), words, strict=False)
    )


def keep(words: Sequence[str]) -> tuple[str, ...]:
    """A redaction that finds nothing."""
    return tuple(words)


def known(pid: int, start_ticks: int) -> Process:
    """A process as it was identified before."""
    return Process(pid=pid, start_ticks=start_ticks, parent_pid=1, name="python", command=())


def put(root: Path, pid: int, parent: int) -> None:
    """A process that has only a stat file."""
    folder = root / str(pid)
    folder.mkdir()
    fields = ["S", str(parent), *["0"] * 48]
    (folder / "stat").write_text(f"{pid} (python) {' '.join(fields)}\n")


def test_tree_holds_parents_before_children(tmp_path: Path) -> None:
    """The tree is the root and its descendants; strangers and the root's parent are not in it."""
    for pid, parent in ((10, 1), (11, 10), (12, 10), (13, 11), (20, 1), (5, 12)):
        put(tmp_path, pid, parent)

    assert tree(Filesystem(proc=tmp_path), 10) == [10, 11, 12, 13, 5]


def test_tree_survives_a_cycle(tmp_path: Path) -> None:
    """A pid that is reused during the scan may look like its own ancestor."""
    for pid, parent in ((10, 11), (11, 10)):
        put(tmp_path, pid, parent)

    assert tree(Filesystem(proc=tmp_path), 10) == [10, 11]


def test_tree_of_nobody_is_unavailable(tmp_path: Path) -> None:
    """Without a root there is no tree."""
    with pytest.raises(Absent):
        tree(Filesystem(proc=tmp_path), 10)


def test_scan_leaves_out_what_ends_meanwhile(tmp_path: Path) -> None:
    """A folder without a readable stat is a process that has just gone."""
    put(tmp_path, 10, 1)
    (tmp_path / "11").mkdir()
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "stat").write_text("")

    assert children_of(scan(Filesystem(proc=tmp_path))) == {1: [10]}


def test_identity_of_a_recorded_rank(recorded: Filesystem) -> None:
    """Everything that names a rank, and nothing that is secret."""
    process = identify(recorded, 4100, Inline(), hide, now=lambda: 262809 / TICKS_PER_SECOND + 7)

    assert (process.parent_pid, process.name, process.uid) == (4000, "python", 0)
    assert process.command == ("/opt/env/bin/python", "train.py", "--token", "[redacted]")
    assert (process.rank, process.local_rank, process.world_size, process.local_world_size) == (1, 1, 2, 2)
    assert (process.executable, process.python, process.torch_loaded) == ("python3.11", True, True)
    assert process.age_seconds == pytest.approx(7)
    assert process.namespace_pid is None
    assert process.environment["MASTER_ADDR"] == "node-a"
    assert "WANDB_API_KEY" not in process.environment


def test_identity_in_a_container(recorded: Filesystem, tmp_path: Path) -> None:
    """From outside a container, the pid that the job itself sees is kept too."""
    shutil.copytree(recorded.proc / "4100", tmp_path / "4100", symlinks=True)
    status = tmp_path / "4100" / "status"
    status.write_text(status.read_text().replace("NSpid:\t4100", "NSpid:\t4100\t17"))

    assert identify(Filesystem(proc=tmp_path), 4100, Inline(), keep).namespace_pid == 17


def test_identity_of_another_users_process(recorded: Filesystem, tmp_path: Path) -> None:
    """What may not be read is unknown, not empty-handed: the name, parent and age are still there."""
    shutil.copytree(recorded.proc / "4100", tmp_path / "4100", symlinks=True)
    for name in ("cmdline", "environ", "maps", "exe", "io"):
        (tmp_path / "4100" / name).unlink()
    filesystem = Filesystem(proc=tmp_path)
    process = identify(filesystem, 4100, Inline(), keep)

    assert (process.name, process.command, process.executable, process.torch_loaded) == ("python", (), None, None)
    assert process.python
    assert process.rank is None
    assert usage(filesystem, 4100).read_chars is None


def test_of_very_many_mappings_the_first_do_not_say_that_torch_is_not_among_them(tmp_path: Path) -> None:
    """Only so much is read; what was not read is not known."""
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "maps").write_bytes(b"7f00-7f01 rw-p 0 0 0 \n" * 800_000)

    assert read_private(Filesystem(proc=tmp_path), 7).torch_library is None


def test_identity_without_an_answer(recorded: Filesystem) -> None:
    """When the process holds its memory lock, its identity lacks the command line and comes anyway."""

    class Late(Inline):
        def call(self, function: Callable[..., Any], *arguments: object, deadline_seconds: float) -> Any:
            raise Unavailable("late")

    process = identify(recorded, 4100, Late(), keep)

    assert (process.name, process.command) == ("python", ())


@pytest.mark.parametrize(
    ("executable", "words", "shown"),
    [
        ("/usr/bin/curl", ("curl", "-d", "hunter2!", "https://x.example"), ("curl",)),
        ("/usr/bin/dash", ("/bin/sh", "-c", "TOKEN=hunter2! python train.py"), ("/bin/sh",)),
        ("/usr/sbin/nginx", ("nginx: worker hunter2!",), ("nginx:",)),
        ("/usr/bin/srun", ("srun", "-n8", "python", "train.py"), ("srun",)),
        ("/usr/bin/python3.11", ("/usr/bin/python3", "/usr/bin/torchrun", "train.py"), None),
    ],
)
def test_only_python_shows_its_arguments(
    recorded: Filesystem, tmp_path: Path, executable: str, words: tuple[str, ...], shown: tuple[str, ...] | None
) -> None:
    """Other programs take secrets in forms that nobody can list: only their name is read."""
    shutil.copytree(recorded.proc / "4100", tmp_path / "4100", symlinks=True)
    folder = tmp_path / "4100"
    (folder / "maps").write_text("")
    (folder / "exe").unlink()
    (folder / "exe").symlink_to(executable)
    (folder / "cmdline").write_text("".join(f"{word}\0" for word in words))

    assert identify(Filesystem(proc=tmp_path), 4100, Inline(), keep).command == (shown or words)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/usr/bin/python3 -u /data/sync.py --token x", "python3 sync.py"),
        ("python -m pkg.sync --token x", "python"),
        ("python -c code", "python"),
        ("/usr/bin/rsync -a secret", "rsync"),
        ("", "sh"),
    ],
)
def test_a_program_is_named_without_what_may_be_secret(tmp_path: Path, command: str, said: str) -> None:
    """The script of Python, and of all others the name alone; without a command line what the kernel calls it."""
    put(tmp_path, 7, 1)
    stat = tmp_path / "7" / "stat"
    stat.write_text(stat.read_text().replace("python", "python3" if "python" in command else "sh"))
    (tmp_path / "7" / "cmdline").write_text(command.replace(" ", "\0"))

    assert program(Filesystem(proc=tmp_path), 7, Inline()) == said
    assert program(Filesystem(proc=tmp_path), 8, Inline()) == ""


def test_command_of_a_zombie_is_empty() -> None:
    """A zombie and a kernel thread have no command line; an empty argument is an argument."""
    assert parse_command(b"") == ()
    assert parse_command(b"python\0\0-x\0") == ("python", "", "-x")


def test_environment_is_an_allow_list() -> None:
    """Only named variables are taken, and a line without an equals sign is nothing."""
    assert parse_environment(b"RANK=3\0HF_TOKEN=hf_x\0RANK\0MASTER_ADDR=a=b\0") == {"RANK": "3", "MASTER_ADDR": "a=b"}


def test_usage_of_a_recorded_rank(recorded: Filesystem) -> None:
    """Counters of the whole process, with units."""
    used = usage(recorded, 4100)

    assert (used.state, used.threads, used.tracer_pid) == ("S", 3, 0)
    assert used.cpu_seconds == pytest.approx(2 / TICKS_PER_SECOND)
    assert used.resident_bytes == 2816 * PAGE_BYTES
    assert used.swapped_bytes == 0
    assert used.open_files is None


def test_living_process_has_not_ended(recorded: Filesystem) -> None:
    """The same pid with the same start is the same process, alive."""
    assert ended(recorded, known(4100, 262809)) is None


def test_reused_pid_is_an_end(recorded: Filesystem) -> None:
    """The same pid with another start is somebody else: ours is gone, and nobody knows how."""
    gone = ended(recorded, known(4100, 99))

    assert isinstance(gone, ProcessEnded)
    assert (gone.zombie, gone.exit_code, gone.signal) == (False, None, None)


def test_hidden_process_has_not_ended(tmp_path: Path) -> None:
    """Where the kernel refuses to show a process, we do not say that it is gone."""

    class Hidden(Filesystem):
        def read_text(self, path: str | Path) -> str:
            raise Denied("hidepid")

    with pytest.raises(Denied):
        ended(Hidden(proc=tmp_path), known(4100, 262809))


@pytest.mark.live
@pytest.mark.parametrize(
    ("ending", "exit_code", "number"),
    [("os._exit(3)", 3, None), ("os._exit(0)", 0, None), ("os.kill(os.getpid(), 9)", None, signal.SIGKILL)],
)
def test_zombie_tells_how_it_ended(
    start: Start, wake: Wake, until: Until, ending: str, exit_code: int | None, number: int | None
) -> None:
    """A child that nobody has reaped still shows its exit code or the signal that killed it."""
    parent = start(
        "import os, sys\n"
        "if not os.fork():\n"
        "  sys.stdin.readline()\n"
        f"  {ending}\n"
        "print('ready', flush=True)\n"
        "os.read(os.pipe()[0], 1)\n"
    )
    (pid,) = children_of(scan(LIVE))[parent]
    before = identify(LIVE, pid, Inline(), keep)
    assert ended(LIVE, before) is None

    wake(parent)

    until(lambda: ended(LIVE, before) is not None)
    gone = ended(LIVE, before)
    assert gone is not None
    assert (gone.zombie, gone.exit_code, gone.signal, gone.parent_pid) == (True, exit_code, number, parent)


@pytest.mark.live
def test_dead_main_thread_is_not_the_end(start: Start, until: Until) -> None:
    """A process whose main thread has left lives on in its other threads, although it looks like a zombie."""
    pid = start(
        "import ctypes, os, threading\n"
        "threading.Thread(target=lambda: os.read(os.pipe()[0], 1)).start()\n"
        "print('ready', flush=True)\n"
        "ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)\n"
    )
    until(lambda: "(zombie)" in Path(f"/proc/{pid}/status").read_text())

    assert ended(LIVE, identify(LIVE, pid, Inline(), keep)) is None


@pytest.mark.live
def test_identity_and_usage_of_a_living_process(child: KillableChild) -> None:
    """This very process, through the child that would survive a hang of it."""
    process = identify(LIVE, os.getpid(), child, keep)
    used = usage(LIVE, os.getpid())

    assert (process.python, process.uid, process.parent_pid) == (True, os.getuid(), os.getppid())
    assert process.age_seconds is not None
    assert 0 < process.age_seconds < 3600
    assert used.resident_bytes > 2**20
    assert used.open_files
    assert used.read_calls is not None
    assert os.getpid() in tree(LIVE, os.getppid())
