"""A guest acts as the job's user, holds nothing of ours, and finds only what the job could find."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfwatch_probes import guest
from perfwatch_probes.filesystem import Absent
from perfwatch_probes.guest import Guests, identity_of, is_ours
from perfwatch_probes.probe import Unavailable
from tests.uids import own_uid

pytestmark = pytest.mark.live

OTHER = own_uid(3)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    """A process of another user, in two more groups."""
    command = ["setpriv", "--reuid", str(OTHER), "--regid", str(OTHER), "--groups", "7,8", "sleep", "1000"]
    with subprocess.Popen(command) as process:
        while Path(f"/proc/{process.pid}/comm").read_text().strip() != "sleep":
            pass
        yield process
        process.kill()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def rights() -> dict[str, str]:
    """What the kernel says of the process that runs this."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def environment() -> dict[str, str]:
    """Of the process that runs this."""
    return dict(os.environ)


def become_root() -> str:
    """Try to take our rights back."""
    try:
        os.setresuid(0, 0, 0)
    except PermissionError as error:
        return str(error.strerror)
    return "root"


def end() -> int:
    """Crash."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


@needs_root
def test_a_guest_is_the_user_of_the_process_and_nothing_more(guests: Guests, other: "subprocess.Popen[bytes]") -> None:
    """All uids and groups; no capability, none to be had, no new privileges; and no way back."""
    child = guests.beside(other.pid)
    told = child.call(rights, deadline_seconds=5.0)

    assert (told["Uid"].split(), told["Gid"].split()) == ([str(OTHER)] * 4, [str(OTHER)] * 4)
    assert told["Groups"].split() == ["7", "8"]
    assert {told[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert told["NoNewPrivs"] == "1"
    assert child.call(become_root, deadline_seconds=5.0) == "Operation not permitted"


@needs_root
def test_what_a_guest_holds_cannot_be_read_by_its_user(guests: Guests, other: "subprocess.Popen[bytes]") -> None:
    """It was forked from us: its memory is ours, so its user may not trace it; and its environment has none of our secrets."""
    os.environ["PERFWATCH_TEST_SECRET"] = "hunter2"
    child = guests.beside(other.pid)
    held = child.call(environment, deadline_seconds=5.0)
    pid = child.call(os_getpid, deadline_seconds=5.0)
    read = subprocess.run(
        ["setpriv", "--reuid", str(OTHER), "--regid", str(OTHER), "--clear-groups", "cat", f"/proc/{pid}/environ"],
        capture_output=True, check=False,
    )  # fmt: skip

    assert "PERFWATCH_TEST_SECRET" not in held
    assert (read.stdout, read.returncode) == (b"", 1)


def os_getpid() -> int:
    """Of the process that runs this."""
    return os.getpid()


@needs_root
def test_a_guest_opens_what_its_user_may_open(guests: Guests, other: "subprocess.Popen[bytes]", shared: Path) -> None:
    """A file of root's alone is not read; one of its user's is."""
    for name, owner in (("roots", 0), ("theirs", OTHER)):
        (shared / name).write_text("secret")
        (shared / name).chmod(0o600)
        os.chown(shared / name, owner, owner)
    child = guests.inside(other.pid)

    assert child.call(guest.read, str(shared / "theirs"), 100, deadline_seconds=5.0) == b"secret"
    with pytest.raises(PermissionError):
        child.call(guest.read, str(shared / "roots"), 100, deadline_seconds=5.0)


@needs_root
def test_no_link_leads_out_of_the_root_of_the_process(guests: Guests, shared: Path) -> None:
    """An absolute link in a container means the container's own file, be the job root's or not."""
    (shared / "file").write_text("outside")
    inner = shared / "inner"
    for folder in ("bin", "proc", str(shared).lstrip("/")):
        (inner / folder).mkdir(parents=True)
    (inner / "link").symlink_to(shared / "file")
    (inner / "up").symlink_to("../../../../../../" + str(shared / "file"))
    (inner / str(shared).lstrip("/") / "file").write_text("inside")
    program = "import os, sys, time; os.chroot(sys.argv[1]); print('in', flush=True); time.sleep(1000)"
    with subprocess.Popen([sys.executable, "-c", program, str(inner)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        child = guests.inside(process.pid)
        found = [child.call(guest.read, path, 100, deadline_seconds=5.0) for path in ("/link", "/up")]
        process.kill()

    assert found == [b"inside", b"inside"]


def test_only_a_regular_file_is_opened(guests: Guests, tmp_path: Path) -> None:
    """To open a pipe or a device may have effects: it is found out before."""
    os.mkfifo(tmp_path / "pipe")
    child = guests.inside(os.getpid())

    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(ValueError, match="not a file of the kind"):
            child.call(guest.read, str(path), 100, deadline_seconds=5.0)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@needs_root
def test_a_process_that_becomes_roots_is_not_followed_there(guests: Guests, shared: Path) -> None:
    """What it said before was its user's word: a set-uid program, sudo for one, must not lend it root's rights."""
    as_other = ["setpriv", "--reuid", str(OTHER), "--regid", str(OTHER), "--clear-groups"]
    asked = "import os, sys; print(os.path.realpath('/proc/self/exe'), sys.base_prefix)"
    told = subprocess.run([*as_other, sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    program, home = told.stdout.split()
    trusted = shared / "python"
    shutil.copy(program, trusted)
    trusted.chmod(0o4755)
    later = "import os, sys; {change}; print(os.getuid(), flush=True); sys.stdin.readline()"
    again = [str(trusted), "-c", later.format(change="os.setresuid(0, 0, 0)")]
    first = f"import os, sys; print(os.getuid(), flush=True); sys.stdin.readline(); os.execv({again[0]!r}, {again!r})"
    command = [*as_other, program, "-c", first]
    environment = {**os.environ, "PYTHONHOME": home}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"%d\n" % OTHER
        met = guests.identity(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"0\n"
        for one in (guests, Guests()):
            with pytest.raises(Unavailable, match="set-uid program"):
                one.identity(process.pid)
        process.kill()

    assert met.uid == OTHER


def test_a_crash_of_a_guest_is_no_crash_of_ours(guests: Guests) -> None:
    """The next call gets a new one."""
    child = guests.beside(os.getpid())
    with pytest.raises(Unavailable, match="died during end"):
        child.call(end, deadline_seconds=5.0)

    assert child.call(os_getpid, deadline_seconds=5.0) != os.getpid()


def test_errors_keep_their_kind(guests: Guests, tmp_path: Path) -> None:
    """They travel as data: nothing that a guest sends is unpickled."""
    child = guests.beside(os.getpid())

    with pytest.raises(FileNotFoundError):
        child.call(guest.read, str(tmp_path / "none"), 1, deadline_seconds=5.0)
    with pytest.raises(Absent):
        child.call(identity_of_nobody, deadline_seconds=5.0)


def identity_of_nobody() -> int:
    """Of a process that cannot be."""
    return identity_of(2**22 + 1).uid


def test_a_guest_of_our_own_is_no_other_user() -> None:
    """Of ourselves: there is nothing that it could gain."""
    assert is_ours(identity_of(os.getpid()))


@needs_root
def test_without_the_right_to_change_users_files_are_left_alone(other: "subprocess.Popen[bytes]") -> None:
    """It says so, with what would help."""
    program = (
        "from perfwatch_probes.guest import Guests, read\n"
        "from perfwatch_probes.probe import Unavailable\n"
        f"try: Guests().beside({other.pid}).call(read, '/etc/hostname', 9, deadline_seconds=5)\n"
        "except Unavailable as why: print(why.reason, '|', why.advice)\n"
    )
    bounded = ["setpriv", "--bounding-set", "-setuid,-setgid", sys.executable, "-c", program]
    said = subprocess.run(bounded, capture_output=True, text=True, check=True).stdout

    assert f"files of uid {OTHER} are left alone: uid 0 may not become that user" in said
    assert "SETUID" in said
