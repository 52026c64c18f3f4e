"""A job that is root in its own container, or in the same uid as we are, gets no more from perfwatch than it has."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfwatch_probes import guest
from perfwatch_probes.guest import Guests, is_ours
from perfwatch_probes.probe import Unavailable
from tests.security.conftest import MALLORY, Popen, User, as_user, line

pytestmark = pytest.mark.live

# A shell that says when it is ready, and stays.
STAY = "echo ready; exec sleep 1000"
Contained = Callable[..., Popen]


@pytest.fixture
def contained() -> Iterator[Contained]:
    """Starts a shell script in what the words before it make; it has said that it is ready."""
    started: list[Popen] = []

    def start(before: tuple[str, ...], script: str = STAY) -> Popen:
        process = subprocess.Popen((*before, "sh", "-c", script), stdout=subprocess.PIPE, text=True)
        started.append(process)
        if line(process) != "ready":
            pytest.skip("this kernel makes no such namespace")
        return process

    yield start
    for process in started:
        process.kill()


def rights() -> tuple[str, str]:
    """The uids and the capabilities of the process that runs this, as the kernel tells."""
    lines = dict(one.split(":\t", 1) for one in Path("/proc/self/status").read_text().splitlines() if ":\t" in one)
    return lines["Uid"], lines["CapEff"]


def test_root_of_a_user_namespace_is_the_user_who_made_it(contained: Contained, guests: Guests) -> None:
    """Inside it has uid 0 and every capability; to us it is its own user, and its capabilities do not hold here."""
    job = contained((*as_user(MALLORY), "unshare", "--user", "--map-root-user", "--mount"))
    identity = guests.identity(job.pid)

    told = guests.beside(job.pid).call(rights, deadline_seconds=5.0)

    assert (identity.uid, identity.capabilities) == (MALLORY, 0)
    assert told == (f"{MALLORY}\t{MALLORY}\t{MALLORY}\t{MALLORY}", "0" * 16)


def test_what_a_user_namespace_mounts_is_seen_as_its_user(contained: Contained, guests: Guests, mallory: User) -> None:
    """Its paths resolve in its own mounts, and no link in them leads to a file of root's."""
    mallory.write("train.py", "inside\n")
    script = f"mount --bind {mallory.home} /etc && ln -s /root/secret {mallory.home}/link; {STAY}"
    job = contained((*as_user(MALLORY), "unshare", "--user", "--map-root-user", "--mount"), script)
    child = guests.inside(job.pid)

    assert child.call(guest.read, "/etc/train.py", 100, deadline_seconds=5.0) == b"inside\n"
    with pytest.raises(OSError, match=r"Permission denied|No such file"):
        child.call(guest.read, "/etc/link", 100, deadline_seconds=5.0)


def test_root_without_its_capabilities_lends_none_of_ours(contained: Contained, guests: Guests, mallory: User) -> None:
    """A container's root, the same uid as ours, opens what its own rights allow: not another user's private file."""
    private = mallory.write("private", "secret", 0o600)
    weak = contained(("setpriv", "--bounding-set=-all", "--inh-caps=-all"))
    strong = contained(())

    assert is_ours(guests.identity(strong.pid))
    assert not is_ours(guests.identity(weak.pid))
    assert guests.beside(strong.pid).call(guest.read, str(private), 9, deadline_seconds=5.0) == b"secret"
    with pytest.raises(PermissionError):
        guests.beside(weak.pid).call(guest.read, str(private), 9, deadline_seconds=5.0)


def test_a_containers_device_is_not_opened(contained: Contained, guests: Guests, tmp_path: Path) -> None:
    """Root of a container may make a device node: its own device group binds it, not us, so no device is opened at all."""
    (tmp_path / "inner").mkdir()
    script = f"mknod {tmp_path}/inner/train.py c 1 5; {STAY}"
    job = contained(("unshare", "--mount"), script)

    with pytest.raises(ValueError, match="not a file of the kind"):
        guests.inside(job.pid).call(guest.read, f"{tmp_path}/inner/train.py", 9, deadline_seconds=5.0)


def test_the_same_user_in_its_own_root_needs_no_rights(tmp_path: Path) -> None:
    """Without any capability perfwatch still reads its user's files in another mount namespace."""
    program = (
        "import os, subprocess, sys\n"
        "from perfwatch_probes.guest import Guests, read\n"
        "job = subprocess.Popen(['unshare', '--user', '--mount', 'sh', '-c', 'echo ready; exec sleep 100'],"
        " stdout=subprocess.PIPE, text=True)\n"
        "if job.stdout.readline() == 'ready\\n':\n"
        "    print(Guests().inside(job.pid).call(read, '/proc/version', 5, deadline_seconds=5))\n"
        "job.kill()\n"
    )
    said = subprocess.run(
        (*as_user(MALLORY), sys.executable, "-c", program), capture_output=True, text=True, timeout=60, check=False,
        cwd="/",
    )  # fmt: skip
    if not said.stdout and "ModuleNotFoundError" in said.stderr:
        pytest.skip("the attacker cannot import perfwatch here")

    assert said.stdout == "b'Linux'\n", said.stderr


def test_a_guest_that_its_user_stops_costs_one_deadline(contained: Contained, guests: Guests) -> None:
    """The user may signal the guest, for it is the user; then the call is late, and the next one gets another guest."""
    job = contained(as_user(MALLORY))
    child = guests.beside(job.pid)
    pid = child.call(own_pid, deadline_seconds=5.0)
    subprocess.run((*as_user(MALLORY), "kill", "-STOP", str(pid)), check=True)

    with pytest.raises(Unavailable, match="did not answer within"):
        child.call(own_pid, deadline_seconds=0.5)

    assert child.call(own_pid, deadline_seconds=5.0) != pid


def own_pid() -> int:
    """Of the process that runs this."""
    return os.getpid()
