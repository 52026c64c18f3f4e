"""Processes that are sick on purpose: they hold locks of the kernel, and their libraries never end. Root and other users are not held up.

A file system of the attacker's own (FUSE) does not answer: who waits for it in ``mmap`` holds the memory lock of the process, and an
``exec`` of one that shares this memory holds ``exec_update_lock``. Distributions let any user mount one; this machine may not, so the
test lends a device file.
"""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfwatch_probes.external import MEMORY_BYTES
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.flight_recorder import read as read_dump
from perfwatch_probes.guest import Guests
from perfwatch_probes.holders import Holders
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.stacks import Stacks
from tests.security.conftest import DEADLINE_SECONDS, PERFWATCH, Popen, User, as_user, line

pytestmark = pytest.mark.live

# A mount whose files are opened and never read: READ gets no answer. Names that begin with "direct" are opened without a cache.
SILENT_MOUNT = """
import ctypes, mmap, os, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
with open({library!r}, "rb") as file:
    library = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
point, uid, gid = {point!r}, os.getuid(), os.getgid()
assert libc.unshare(0x10000000 | 0x00020000) == 0
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {{uid}} 1"), ("gid_map", f"0 {{gid}} 1")):
    with open(f"/proc/self/{{name}}", "w") as file:
        file.write(text)
device = os.open({device!r}, os.O_RDWR)
options = f"fd={{device}},rootmode=40000,user_id=0,group_id=0".encode()
assert libc.mount(b"x", point.encode(), b"fuse", 0, options) == 0
def attributes(inode):
    mode = 0o40755 if inode == 1 else 0o100644
    return struct.pack("=6Q10I", inode, 1 << 20, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
def serve():
    direct = set()
    while True:
        data = os.read(device, 1 << 18)
        _, operation, unique, node = struct.unpack_from("=IIQQ", data)
        def reply(body=b"", error=0):
            os.write(device, struct.pack("=IiQ", 16 + len(body), -error, unique) + body)
        if operation == 26:
            reply(struct.pack("=IIIIHHIIHHIIII", 7, 31, 65536, 0, 12, 10, 65536, 1, 1, 0, 0, 0, 0, 0) + bytes(16))
        elif operation == 1:
            name = data[40:-1].decode()
            inode = 100 + int(name.strip("fdirect"))
            if name.startswith("direct"):
                direct.add(inode)
            reply(struct.pack("=QQQQII", inode, 0, 0, 0, 0, 0) + attributes(inode))
        elif operation == 3:
            reply(struct.pack("=QII", 3600, 0, 0) + attributes(node))
        elif operation in (14, 27):
            reply(struct.pack("=QII", 5, 1 if node in direct else 2, 0))
        elif operation not in (15, 2, 42, 36):
            reply(b"", 38)
if os.fork() == 0:
    serve()
os.close(device)
def both(number):
    return os.open(f"{{point}}/f{{number}}", os.O_RDONLY), os.open(f"{{point}}/direct{{number}}", os.O_RDONLY)
"""
# The memory lock of each is held for writing by a thread of its own.
MEMORY_LOCKED = """
for number in range({count}):
    if os.fork() == 0:
        file, direct = both(number)
        threading.Thread(target=lambda: libc.pread(file, ctypes.create_string_buffer(4096), 4096, 0), daemon=True).start()
        time.sleep(0.3)
        libc.mmap(None, 65536, 1, 2, direct, 0)
time.sleep(1.0)
print("ready", flush=True)
time.sleep(1e6)
"""
# x86-64: mmap of the descriptor, then pause. Runs in a process that shares the memory of the one that executes another program.
EXEC_LOCKED = """
file, direct = both(0)
if os.fork() == 0:
    os.read(file, 4096)
time.sleep(0.3)
area = mmap.mmap(-1, 65536, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
area.write(bytes.fromhex("b80900000031ffbe00000100ba0100000041ba0200000041b8") + struct.pack("<I", direct) +
           bytes.fromhex("4531c90f05b8220000000f05ebf7"))
if os.fork() == 0:
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc.clone(start, start + 65520, 0x100 | 17, None)
    time.sleep(0.3)
    os.execv("/bin/sleep", ["python", "1000"])
time.sleep(1.0)
print("ready", flush=True)
time.sleep(1e6)
"""
SIGNALLED = "trap 'exit 7' USR1; echo ready; while :; do sleep 0.1; done"
HELD_UP_SECONDS = 15.0  # a command takes 1 s without the attack, and the attack of a test 20 s or for ever


def _descendants(pid: int) -> list[int]:
    """Children first; nothing is read that may wait for a lock of theirs."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = dict(
                    one.split(":", 1)
                    for one in (entry / "status").read_text(errors="replace").splitlines()
                    if ":" in one
                )
            except OSError:
                continue
            parents.setdefault(int(words["PPid"]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def _observers(state: str) -> int:
    """How many py-spy processes are in a state."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "status").read_text(errors="replace")
            except OSError:
                continue
            count += "Name:\tpy-spy\n" in text and f"State:\t{state}" in text
    return count


Silent = Callable[[str], Popen]


@pytest.fixture
def silent(mallory: User) -> Iterator[Silent]:
    """Runs a program of the attacker's beside a mount that never answers; the mount is aborted at the end, so that all can die."""
    started: list[Popen] = []
    point = mallory.home / "mount"
    point.mkdir()
    os.chown(point, mallory.uid, mallory.uid)
    device = mallory.home / "device"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(10, 229))
    device.chmod(0o666)
    library = mallory.write("libtorch_cpu.so", "not a library\n")

    def start(body: str) -> Popen:
        given = SILENT_MOUNT.format(library=str(library), point=str(point), device=str(device))
        path = mallory.write("silent.py", given + body)
        process = subprocess.Popen(
            (*as_user(mallory.uid), sys.executable, str(path)), text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=mallory.home,
        )  # fmt: skip
        started.append(process)
        if line(process) != "ready":
            pytest.skip("this kernel has no FUSE, or no user namespaces for a user")
        return process

    yield start
    for process in started:
        family = _descendants(process.pid)
        subprocess.run(
            ("nsenter", "-t", str(process.pid), "-m", "umount", "-f", str(point)), capture_output=True, check=False
        )
        for pid in reversed(family):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait(DEADLINE_SECONDS)


def _seconds(*words: str, limit: float = DEADLINE_SECONDS) -> float:
    """How long a command takes."""
    began = time.monotonic()
    subprocess.run((*PERFWATCH, *words), capture_output=True, timeout=limit, check=False)
    return time.monotonic() - began


@pytest.mark.alone  # holds up every command that looks at all processes
def test_processes_that_keep_their_memory_lock_do_not_hold_up_root(silent: Silent) -> None:
    """The list of all jobs waits a bounded time for one user's processes, however many do not answer."""
    silent(MEMORY_LOCKED.format(count=20))

    assert _seconds("ps") < HELD_UP_SECONDS


@pytest.mark.alone  # holds up every command that looks at all processes
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the attack is machine code")
def test_an_exec_that_never_ends_does_not_hold_up_root(
    silent: Silent, victim: User, start_job: Callable[..., Popen], tmp_path: Path
) -> None:
    """Its stat cannot be read for ever: root lists the jobs, and judges another user's."""
    silent(EXEC_LOCKED)
    job = start_job(victim)

    listing = subprocess.run((*PERFWATCH, "ps"), capture_output=True, text=True, timeout=HELD_UP_SECONDS, check=True)

    assert str(job.pid) in listing.stdout


@pytest.mark.alone  # holds up every command that looks at all processes
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the attack is machine code")
def test_an_exec_that_never_ends_does_not_hold_up_another_users_job(silent: Silent, victim: User) -> None:
    """A job that another user runs under perfwatch starts, is sent a signal, and ends."""
    silent(EXEC_LOCKED)
    launcher = subprocess.Popen(
        (*as_user(victim.uid), *PERFWATCH, "run", "--", "sh", "-c", SIGNALLED), text=True, cwd=victim.home,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={"PATH": os.environ["PATH"], "HOME": str(victim.home)},
    )  # fmt: skip
    try:
        assert line(launcher) == "ready"
        launcher.send_signal(signal.SIGUSR1)
        assert launcher.wait(HELD_UP_SECONDS) == 7
    finally:
        for pid in _descendants(launcher.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launcher.wait()


@pytest.mark.alone  # holds up every command that looks at all processes
def test_observers_that_cannot_be_killed_do_not_pile_up(silent: Silent) -> None:
    """py-spy waits for the memory lock and cannot be killed: a few are left behind for one user's processes, and then no more start."""
    parent = silent(MEMORY_LOCKED.format(count=2))
    pids = [pid for pid in _descendants(parent.pid) if pid != parent.pid]
    before = _observers("D")
    stacks = Stacks()

    for _ in range(5):
        stacks.dump(pids, 0.5)

    assert 0 < _observers("D") - before <= 4


SPARSE_LIBRARY = """
import struct
def section(name, kind, offset, size, link, entry):
    return struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, size, link, 0, 1, entry)
with open({path!r}, "wb") as file:
    file.write(b"\\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8))
    file.write(struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 4096, 0, 64, 56, 1, 64, 4, 3))
    file.write(struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 4096, 4096, 4096))
    file.seek(4096)
    file.write(section(0, 0, 0, 0, 0, 0) + section(1, 2, 8192, 24, 2, 24))
    file.write(section(9, 3, 16384, 10**9, 0, 0) + section(17, 3, 12288, 64, 0, 0))
    file.seek(12288)
    file.write(b"\\0.symtab\\0.strtab\\0.shstrtab\\0")
    file.truncate(16384 + 10**9)
with open({path!r}, "rb") as file:
    interpreter = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)
ready(); time.sleep(1e6)
"""


def test_a_library_with_a_billion_names_does_not_fill_roots_memory(
    mallory: User, start_job: Callable[..., Popen], tmp_path: Path
) -> None:
    """A sparse file passes for the interpreter, and py-spy would keep each empty string of its table: it is stopped at its limit."""
    job = start_job(mallory, SPARSE_LIBRARY.format(path=str(mallory.home / "libpython3.11.so.1.0")))
    root = subprocess.Popen(
        (*PERFWATCH, "attach", str(job.pid)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PERFWATCH_DIR": str(tmp_path)},
    )  # fmt: skip
    peak, ends = 0, time.monotonic() + 8.0
    while root.poll() is None:
        if time.monotonic() > ends:
            root.terminate()
        for pid in _descendants(root.pid):
            try:
                status = Path(f"/proc/{pid}/status").read_text(errors="replace")
            except OSError:
                continue
            if "Name:\tpy-spy\n" in status and "VmHWM:" in status:
                peak = max(peak, 1024 * int(status.partition("VmHWM:")[2].split()[0]))
        time.sleep(0.02)

    assert peak
    assert peak < MEMORY_BYTES + 2**26


def test_a_dump_is_judged_by_the_file_that_is_read(
    mallory: User, victim: User, start_job: Callable[..., Popen], guests: Guests
) -> None:
    """A link in /tmp that leads to a file of the victim's when its owner is asked for, and to the attacker's when it is read."""
    job = start_job(victim)
    victims = victim.write("dump", "the victim's")
    planted = mallory.write("dump", "planted")
    flips = mallory.write(
        "flip.py",
        f"import os\nprint('ready', flush=True)\nwhile True:\n    for target in ({str(victims)!r}, {str(planted)!r}):\n"
        "        os.symlink(target, 'next')\n        os.rename('next', 'link')\n",
    )
    flipping = subprocess.Popen(
        (*as_user(mallory.uid), sys.executable, str(flips)), cwd=mallory.home, stdout=subprocess.PIPE, text=True
    )
    try:
        assert line(flipping) == "ready"
        caller, link, read = guests.inside(job.pid), str(mallory.home / "link"), set()
        for _ in range(3000):
            try:
                read.add(caller.call(read_dump, link, frozenset({victim.uid}), deadline_seconds=5.0))
            except (Unavailable, OSError):
                pass
        assert read == {b"the victim's"}
    finally:
        flipping.kill()
        flipping.wait()


OPEN_FILES = """
import os, resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
for _ in range({processes}):
    if os.fork() == 0:
        break
for _ in range(min(most, 20_000) - 10):
    os.dup(0)
ready(); time.sleep(1e6)
"""


def test_open_files_of_one_user_do_not_hide_who_holds_anothers_pipe(
    mallory: User, victim: User, start_job: Callable[..., Popen]
) -> None:
    """The pass over all open files is bounded; the job's own user comes first."""
    crowd = start_job(mallory, OPEN_FILES.format(processes=3))
    assert crowd.stdout is not None
    for _ in range(3):
        assert crowd.stdout.readline() == "ready\n"
    job = start_job(victim, "one, other = os.pipe(); print(os.readlink(f'/proc/self/fd/{one}'), flush=True)\n"
                    "ready()\nif os.fork() == 0: os.setsid()\ntime.sleep(1e6)", wait=False)  # fmt: skip
    assert job.stdout is not None
    pipe = job.stdout.readline().strip()
    assert job.stdout.readline() == "ready\n"
    while not (below := [pid for pid in _descendants(job.pid) if pid != job.pid]):
        time.sleep(0.01)
    child = below[0]
    try:
        assert child in Holders(Filesystem(), (job.pid,), now=lambda: 0.0).pids(pipe)
    finally:
        for pid in (child, *_descendants(crowd.pid)):
            os.kill(pid, signal.SIGKILL)
