"""What is behind a descriptor: from the text of links, mounts and locks, and on living files of every kind."""

import fcntl
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfwatch_probes.deadline import Inline, KillableChild
from perfwatch_probes.descriptors import WATCHED_LIMIT, Contested, describe, kind_of, parse_watched
from perfwatch_probes.filesystem import Absent, Filesystem
from perfwatch_probes.holders import Holders
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Descriptor, Thread, Wait
from perfwatch_probes.sockets import Sockets

pytestmark = pytest.mark.live

LIVE = Filesystem()
MOUNTS = """24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
91 24 0:52 / /mnt/my\\040data rw,relatime shared:50 master:3 - nfs4 filer:/export/my\\040data rw,vers=4.2
92 24 0:53 / /mnt/broken rw
"""


def look(pid: int, fds: list[int], child: KillableChild) -> dict[int, Descriptor]:
    """Descriptors of a living process, by number."""
    found = describe(LIVE, pid, fds, child, Holders(LIVE, first=[pid]), Sockets(LIVE, child))
    return {one.fd: one for one in found}


@pytest.fixture
def later() -> Iterator[ExitStack]:
    """Closes what a test has opened."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("link", "kind"),
    [
        ("pipe:[77]", ("pipe", 77)),
        ("socket:[78]", ("socket", 78)),
        ("anon_inode:[eventfd]", ("eventfd", None)),
        ("anon_inode:[eventpoll]", ("epoll", None)),
        ("anon_inode:[pidfd]", ("pidfd", None)),
        ("anon_inode:[io_uring]", ("other", None)),
        ("anon_inode:inotify", ("other", None)),
        ("/dev/pts/3", ("tty", None)),
        ("/dev/tty", ("tty", None)),
        ("/dev/pts/3 (deleted)", ("tty", None)),
        ("/dev/nvidia0", ("other", None)),
        ("/dev/shm/torch_1_2", ("file", None)),
        ("/data/pipe:[77]", ("file", None)),
        ("mnt:[4026531840]", ("other", 4026531840)),
    ],
)
def test_kind_from_the_link(link: str, kind: tuple[str, int | None]) -> None:
    """Kind and inode as the text of the link tells; a path counts as a file until it is looked at."""
    assert kind_of(link) == kind


def test_watched_descriptors_of_epoll() -> None:
    """The descriptors that an epoll instance watches, from its details."""
    text = "pos:\t0\nflags:\t02\ntfd:        9 events:       19 data: 9\ntfd:        3 events: 1 data: 3\n"

    assert parse_watched(text) == (3, 9)


def test_descriptor_on_a_dead_mount_is_still_described(tmp_path: Path) -> None:
    """When the file itself does not answer, its mount, device and path are named without it."""
    for name in ("fd", "fdinfo"):
        (tmp_path / "10" / name).mkdir(parents=True)
    (tmp_path / "10" / "fd" / "3").symlink_to("/mnt/my data/shard")
    (tmp_path / "10" / "fdinfo" / "3").write_text("pos:\t4096\nflags:\t0100000\nmnt_id:\t91\nino:\t77\n")
    (tmp_path / "10" / "mountinfo").write_text(MOUNTS)

    class Dead(Inline):
        def call(self, function: Callable[..., Any], *arguments: object, deadline_seconds: float) -> Any:
            raise Unavailable("late")

    filesystem = Filesystem(proc=tmp_path)
    (found,) = describe(filesystem, 10, [3], Dead(), Holders(filesystem))

    assert found == Descriptor(
        pid=10, fd=3, kind="file", target="/mnt/my data/shard", access="r", inode=77, mount="/mnt/my data",
        filesystem="nfs4", device="filer:/export/my data", position_bytes=4096,
    )  # fmt: skip


def test_process_that_is_gone_is_unavailable(tmp_path: Path) -> None:
    """A closed descriptor is left out; a process that is gone is said to be gone."""
    (tmp_path / "10" / "fd").mkdir(parents=True)
    filesystem = Filesystem(proc=tmp_path)

    assert describe(filesystem, 10, [3], Inline(), Holders(filesystem)) == []
    with pytest.raises(Absent):
        describe(filesystem, 11, [3], Inline(), Holders(filesystem))


def test_living_pipe_fifo_and_folder(child: KillableChild, tmp_path: Path, later: ExitStack) -> None:
    """Pipes know both ends, a FIFO is told from a file, and a folder from both."""
    readable, writable = os.pipe()
    os.mkfifo(tmp_path / "fifo")
    fifo = os.open(tmp_path / "fifo", os.O_RDWR)
    folder = os.open(tmp_path, os.O_RDONLY)
    for fd in (readable, writable, fifo, folder):
        later.callback(os.close, fd)
    me = os.getpid()
    found = look(me, [readable, writable, fifo, folder], child)

    assert (found[readable].kind, found[readable].access, found[writable].access) == ("pipe", "r", "w")
    assert (found[readable].readers, found[readable].writers) == ((me,), (me,))
    assert (found[fifo].kind, found[fifo].readers, found[fifo].writers) == ("fifo", (me,), (me,))
    assert found[folder].kind == "directory"


def test_living_file_on_its_mount_with_its_lock(child: KillableChild, tmp_path: Path, later: ExitStack) -> None:
    """A file names its mount and position, and who holds its lock."""
    file = later.enter_context((tmp_path / "lock").open("w"))
    file.write("12345")
    file.flush()
    fcntl.flock(file, fcntl.LOCK_EX)
    (found,) = look(os.getpid(), [file.fileno()], child).values()

    assert (found.kind, found.access, found.position_bytes) == ("file", "w", 5)
    assert found.inode == (tmp_path / "lock").stat().st_ino
    assert found.mount
    assert str(tmp_path).startswith(found.mount)
    assert found.filesystem
    assert found.lock_holders == (os.getpid(),)


LOCKER = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
shared = open(sys.argv[2], "r+")
fcntl.lockf(shared, fcntl.LOCK_SH)
print("locked", flush=True)
sys.stdin.read()
"""


def test_file_that_another_process_has_locked_is_found_for_a_thread_that_naps(tmp_path: Path, later: ExitStack) -> None:
    """What sqlite's busy handler shows: short sleeps, and an open file with somebody else's lock on it; not one to read."""
    path = tmp_path / "runs.db"
    path.write_bytes(b"")
    ours = later.enter_context(open(path, "r+"))
    other = later.enter_context(open(tmp_path / "read by both", "w"))
    command = [sys.executable, "-c", LOCKER, str(path), other.name]
    owner = later.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # ends with its stdin
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "locked\n"
    naps = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.05)
    thread = Thread(pid=os.getpid(), tid=os.getpid(), name="python", state="S", cpu_seconds=1.0, wait=naps)
    reads = replace(thread, wait=replace(naps, kind="read"))

    looks = Contested(Filesystem())

    assert ours.fileno() in looks.fds(thread)
    assert other.fileno() not in looks.fds(thread)
    assert looks.fds(replace(thread, tid=thread.tid + 1)) == set()
    assert looks.fds(reads) >= {ours.fileno()}  # once more, so that what was said of it is taken back
    assert looks.fds(reads) == set()


def test_a_lock_of_its_own_process_counts_where_the_file_is_open_twice(tmp_path: Path, later: ExitStack) -> None:
    """Two connections to one database: the one waits for the transaction of the other, which no other process can end."""
    naps = Wait(call="clock_nanosleep", number=230, kind="sleep", remaining_seconds=0.05)
    thread = Thread(pid=os.getpid(), tid=os.getpid(), name="python", state="S", cpu_seconds=1.0, wait=naps)
    first, alone = later.enter_context(open(tmp_path / "db", "w")), later.enter_context(open(tmp_path / "pid", "w"))
    for one in (first, alone):
        fcntl.lockf(one, fcntl.LOCK_EX)
    looks = Contested(Filesystem())

    assert first.fileno() not in looks.fds(thread)

    second = later.enter_context(open(tmp_path / "db"))

    assert looks.fds(thread) >= {first.fileno(), second.fileno()}
    assert alone.fileno() not in looks.fds(thread)


def test_living_pidfd_names_its_process(child: KillableChild, later: ExitStack) -> None:
    """What asyncio watches for the end of a child says which child that is."""
    sleeper = later.enter_context(subprocess.Popen(["sleep", "60"]))
    later.callback(sleeper.kill)
    fd = os.pidfd_open(sleeper.pid)
    later.callback(os.close, fd)

    found = look(os.getpid(), [fd], child)[fd]

    assert (found.kind, found.watched_pid) == ("pidfd", sleeper.pid)


def test_living_pseudo_terminal_of_another_process(child: KillableChild, later: ExitStack) -> None:
    """A terminal that a program made for one that it talks to is not its own, and who is at the other side is known from both."""
    master, terminal = os.openpty()
    later.callback(os.close, terminal)
    script = "import os, sys, time; os.write(1, b'+'); time.sleep(60)"
    command = [sys.executable, "-c", script]
    other = later.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[master]))
    later.callback(other.kill)
    assert other.stdout is not None
    other.stdout.read(1)
    here, there = look(os.getpid(), [terminal], child)[terminal], look(other.pid, [master], child)[master]
    os.close(master)

    assert (here.kind, here.controlling, here.other_side) == ("tty", False, (other.pid,))
    assert (there.kind, there.other_side) == ("tty", (os.getpid(),))


def test_of_what_a_server_watches_the_lowest_are_looked_at() -> None:
    """Thousands of visitors tell no more than a few; what it listens on was opened before them."""
    lines = [f"tfd: {fd:8} events:       19 data: {fd:16x}  pos:0 ino:1 sdev:8\n" for fd in range(3000, 4, -1)]

    assert parse_watched("pos:\t0\n" + "".join(lines)) == tuple(range(5, 5 + WATCHED_LIMIT))


def test_living_epoll_terminal_and_socket(child: KillableChild, later: ExitStack) -> None:
    """An epoll instance names what it watches; a terminal is one; a socket knows its peer."""
    here, there = socket.socketpair()
    later.callback(here.close)
    later.callback(there.close)
    watcher = later.enter_context(select.epoll())
    watcher.register(here, select.EPOLLIN)
    master, terminal = os.openpty()
    later.callback(os.close, master)
    later.callback(os.close, terminal)
    found = look(os.getpid(), [here.fileno(), watcher.fileno(), terminal], child)

    assert found[watcher.fileno()].kind == "epoll"
    assert found[watcher.fileno()].watched == (here.fileno(),)
    assert found[terminal].kind == "tty"
    assert found[here.fileno()].kind == "socket"
    connection = found[here.fileno()].socket
    assert connection is not None
    assert connection.peer_pids == (os.getpid(),)
