"""A file system that never answers holds guests in the kernel, where no signal ends them: their number is bounded for each user."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfwatch_probes import guest
from perfwatch_probes.guest import Guests
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.stuck_guests import MOST_OF_ONE
from tests.security.conftest import DEADLINE_SECONDS, MALLORY, Popen, User, line

pytestmark = pytest.mark.live

# Mounts a file system for a user, takes every request and answers none but the first.
SILENT = """
import ctypes, os, struct, sys
folder, uid = sys.argv[1:]
fuse = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fuse},rootmode=40000,user_id={uid},group_id={uid}".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"silent", folder.encode(), b"fuse", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))
unique = struct.unpack_from("=IIQ", os.read(fuse, 2**17))[2]
answer = struct.pack("=IIIIHHIIHHI7I", 7, 31, 65536, 0, 12, 10, 65536, 1, 0, 0, 0, *[0] * 7)  # struct fuse_init_out
os.write(fuse, struct.pack("=IiQ", 16 + len(answer), 0, unique) + answer)
print("ready", flush=True)
while True:
    os.read(fuse, 2**17)
"""


@pytest.fixture
def server(mallory: User) -> Iterator[Popen]:
    """The server of a mount of the attacker's. It never answers; when it ends, no process waits for it any more."""
    folder = mallory.home / "mount"
    folder.mkdir()
    os.chown(folder, mallory.uid, mallory.uid)
    command = (sys.executable, "-c", SILENT, str(folder), str(mallory.uid))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        if line(server) != "ready":
            pytest.skip("this machine mounts no FUSE file system")
        yield server
        server.kill()
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


def stuck() -> list[int]:
    """The guests of the attacker that are in state D."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = dict(one.split(":\t", 1) for one in (folder / "status").read_text().splitlines() if ":\t" in one)
        except OSError:
            continue
        if words["Name"] == "perfwatch-read" and words["Uid"].split()[0] == str(MALLORY) and words["State"][0] == "D":
            found.append(int(folder.name))
    return found


def look(pid: int, path: Path) -> None:
    """Do what one watch does: ask for a file that never comes, and end."""
    guests = Guests()
    try:
        with pytest.raises(Unavailable):
            guests.beside(pid).call(guest.read, str(path), 9, deadline_seconds=0.3)
    finally:
        guests.close()


def test_jobs_of_one_user_leave_few_stuck_guests(
    server: Popen, mallory: User, victim: User, start_job: Callable[..., Popen], guests: Guests
) -> None:
    """Two watches more than the bound each leave a guest. Another user is served meanwhile, the attacker afterwards."""
    job, others = start_job(mallory), start_job(victim)
    for number in range(MOST_OF_ONE + 2):
        watch = os.fork()
        if watch == 0:
            try:
                look(job.pid, mallory.home / "mount" / str(number))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(watch, 0)[1] == 0

    assert len(stuck()) == MOST_OF_ONE
    with pytest.raises(Unavailable, match=rf"uid {MALLORY} are stuck in the kernel \(state D\)"):
        version(guests, job.pid)
    assert version(guests, others.pid) == b"Linux"
    server.kill()
    server.wait()
    while stuck():
        time.sleep(0.01)
    assert version(guests, job.pid) == b"Linux"


def version(guests: Guests, pid: int) -> bytes:
    """What a guest of the user of this process reads."""
    return guests.beside(pid).call(guest.read, "/proc/version", 5, deadline_seconds=DEADLINE_SECONDS)
