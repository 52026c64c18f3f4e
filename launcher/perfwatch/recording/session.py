"""What a session is, and where its folder goes; ``recording.finding`` finds it again.

A session folder lies on a local disk, because a dead network home must not silence the tool. Nothing here touches a
path in the calling process: a look at a path can hang for ever, so it is done in a killable child with a deadline.
"""

import os
import pwd
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from perfwatch.errors import SessionUnwritable
from perfwatch.processes.own_folders import is_ours, make_own_folder
from perfwatch_probes.deadline import Caller
from perfwatch_probes.probe import Unavailable

SCHEMA = (
    "perfwatch.session/3"  # 1: every stack with its frames in full, 2: no segment is compressed; both are still read
)
SNAPSHOT = "snapshot"  # the mode of a look that another host asked for
AUTOPSY = "autopsy"  # the mode of a recording that was made of files which a job left behind
LONGEST_SESSION_BYTES = 2**20
SHARED_DISK = "/var/tmp"  # outlives a restart, and every user may write there
PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
# A healthy disk answers mkdir within milliseconds, a busy one within a second; a dead NFS server never does.
DEADLINE_SECONDS = 2.0
USER_SECONDS = 0.5  # a directory service that takes longer is not waited for

# File systems that wait for another machine or for a user process. Local exceptions of the fuse family follow.
REMOTE_FILESYSTEMS = frozenset(
    """nfs nfs4 cifs smb3 smbfs 9p afs autofs beegfs ceph coda davfs gfs gfs2 glusterfs gpfs lustre mfs moosefs ncpfs ocfs2
    orangefs panfs pvfs2 virtiofs wekafs fuse fusectl""".split()
)
LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs"})
# Kernel views, not disks: nothing can be kept there.
PSEUDO_FILESYSTEMS = frozenset("proc sysfs devtmpfs devpts cgroup cgroup2 debugfs tracefs securityfs mqueue".split())


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that was watched, as far as a later reader needs it."""

    name: str
    kernel: str
    architecture: str
    cpus: int
    memory_bytes: int
    boot_id: str = ""


class ProbeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A probe at the beginning of a session: if it could run, and if not, why and what would help."""

    available: bool
    reason: str = ""
    advice: str = ""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``session.json``. ``created`` is unix time; every ``at`` of the recording counts seconds from it.

    ``conditions`` holds what the measurements depend on, as far as it is visible (world_size, workers, torch version ...).
    """

    schema: str = SCHEMA
    version: str
    created: float
    mode: str  # run, attach, drill, daemon, fleet, snapshot, autopsy
    machine: Machine
    command: tuple[str, ...] = ()  # redacted
    root_pids: tuple[int, ...] = ()
    conditions: dict[str, str | int | float | bool | None] = {}
    probes: dict[str, ProbeStatus] = {}


def this_machine() -> Machine:
    """Facts about the machine that we run on, from system calls that cannot block."""
    uname = os.uname()
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot_id = ""
    return Machine(
        name=uname.nodename,
        kernel=uname.release,
        architecture=uname.machine,
        cpus=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        boot_id=boot_id,
    )


def user_name(uid: int) -> str:
    """The name of a user, or ``uid 1001``; for a killable child, as the answer may come over the network."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def user_of(uid: int | None, child: Caller) -> str | None:
    """The name of a user; the number where no name comes at once, None where not even that is known."""
    if uid is None:
        return None
    try:
        return child.call(user_name, uid, deadline_seconds=USER_SECONDS)
    except Unavailable:
        return f"uid {uid}"


def session_name(created: float, pid: int) -> str:
    """``20261120-115124-733``: local time of the start and pid of the watcher, so that names sort by age."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(created))}-{pid}"


def homes_of_sessions(environ: Mapping[str, str], uid: int) -> list[str]:
    """The folders that may hold sessions, best first: the XDG state folder, /var/tmp/perfwatch-UID; $PERFWATCH_DIR alone, once set."""
    if environ.get("PERFWATCH_DIR"):
        return [environ["PERFWATCH_DIR"]]
    homes = []
    state = environ.get("XDG_STATE_HOME") or (f"{environ['HOME']}/.local/state" if environ.get("HOME") else "")
    if state.startswith("/"):
        homes.append(f"{state}/perfwatch")
    return [*homes, f"{SHARED_DISK}/perfwatch-{uid}"]


def choose_directory(
    explicit: Path | None,
    environ: Mapping[str, str],
    child: Caller,
    *,
    created: float,
    pid: int,
    mounts: str | None = None,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> Path:
    """Make the folder of a new session and return it.

    Args:
        explicit: what the user gave as ``--session``. A path that does not exist yet, or an empty private folder, becomes
            the session itself; any other folder gets a new session inside. Its file system is the user's choice.
        environ: where $PERFWATCH_DIR, $XDG_STATE_HOME and $HOME are looked up.
        child: does the looking; a home that does not answer within ``deadline_seconds`` is passed over.
        created: unix time of the start, for the name.
        pid: the watcher, for the name.
        mounts: text of a mount table, for tests; read from /proc/self/mounts otherwise.
        deadline_seconds: for each candidate.

    Raises:
        SessionUnwritable: no candidate will do; the message says why for each one.
    """
    candidates = [str(explicit)] if explicit else homes_of_sessions(environ, os.getuid())
    refusals = []
    for candidate in candidates:
        try:
            made = child.call(
                _make_folder,
                os.path.abspath(candidate),
                session_name(created, pid),
                explicit is not None,
                mounts,
                deadline_seconds=deadline_seconds,
            )
        except Unavailable as unavailable:
            refusals.append(f"{candidate}: {unavailable.reason}")
            continue
        if made["folder"]:
            return Path(made["folder"])
        refusals.append(f"{candidate}: {made['refusal']}")
    raise SessionUnwritable(
        f"no folder takes the recording ({'; '.join(refusals)})",
        "name a folder on a local disk: --session DIR or PERFWATCH_DIR=DIR",
    )


def choose_home(
    explicit: Path | None, environ: Mapping[str, str], child: Caller, deadline_seconds: float = DEADLINE_SECONDS
) -> Path:
    """A private folder on a local disk in which sessions can be made, made if need be; arguments as ``choose_directory``.

    Raises:
        SessionUnwritable: no candidate will do; the message says why for each one.
    """
    refusals = []
    for candidate in [str(explicit)] if explicit else homes_of_sessions(environ, os.getuid()):
        try:
            path = os.path.abspath(candidate)
            made = child.call(_make_home, path, explicit is not None, None, deadline_seconds=deadline_seconds)
        except Unavailable as unavailable:
            refusals.append(f"{candidate}: {unavailable.reason}")
            continue
        if made["folder"]:
            return Path(made["folder"])
        refusals.append(f"{candidate}: {made['refusal']}")
    raise SessionUnwritable(f"no recording can be written ({'; '.join(refusals)})", "name a folder on a local disk")


def filesystem_of(path: str, mounts: str) -> tuple[str, str]:
    """Mount point and type of the file system that holds ``path`` (resolved), by the text of /proc/self/mounts."""
    best = ("/", "unknown")
    for line in mounts.splitlines():
        _, _, rest = line.partition(" ")
        point, kind, *_ = rest.split(" ")
        point = point.replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, kind)
    return best


def is_local(kind: str) -> bool:
    """True if a file system of this type answers without the help of another machine or of a user process."""
    if kind in LOCAL_FUSE:
        return True
    return kind not in REMOTE_FILESYSTEMS and kind not in PSEUDO_FILESYSTEMS and not kind.startswith("fuse.")


def _make_folder(path: str, name: str, explicit: bool, mounts: str | None) -> dict[str, str]:
    """Runs in the child: ``folder`` that was made, or ``refusal``."""
    try:
        if not explicit:
            home = _make_home(path, False, mounts)
            if not home["folder"]:
                return home
            path = home["folder"]
        elif not os.path.exists(path):
            os.makedirs(os.path.dirname(path), PRIVATE_FOLDER, exist_ok=True)
            os.mkdir(path, PRIVATE_FOLDER)
            return {"folder": path, "refusal": ""}
        elif not os.listdir(path) and os.stat(path).st_mode & 0o077 == 0 and os.stat(path).st_uid == os.geteuid():
            return {"folder": os.path.realpath(path), "refusal": ""}
        return {"folder": _new_folder(os.path.join(path, name)), "refusal": ""}
    except OSError as error:
        return {"folder": "", "refusal": error.strerror or str(error)}


def _make_home(path: str, explicit: bool, mounts: str | None) -> dict[str, str]:
    """Runs in the child: ``folder``, or the ``refusal`` why this one will not do. Of an ``explicit`` one the disk is not asked.

    Where every user may write beside it and another user has taken its name, it gets another name.
    """
    try:
        point, kind = filesystem_of(os.path.realpath(path), mounts or Path("/proc/self/mounts").read_text())
        # A root file system that hangs takes the whole machine with it: it is as good as local.
        if not explicit and not is_local(kind) and point != "/":
            return {"folder": "", "refusal": f"on {kind}, which is not a local disk"}
        folder = Path(path)
        if not explicit and os.path.dirname(path) == SHARED_DISK:
            folder = make_own_folder(folder)
        else:
            os.makedirs(path, PRIVATE_FOLDER, exist_ok=True)
        if not is_ours(folder):
            return {"folder": "", "refusal": f"belongs to uid {os.lstat(folder).st_uid}"}
    except OSError as error:
        return {"folder": "", "refusal": error.strerror or str(error)}
    return {"folder": str(folder), "refusal": ""}


def _new_folder(path: str) -> str:
    for number in range(100):
        folder = path if number == 0 else f"{path}-{number}"
        try:
            os.mkdir(folder, PRIVATE_FOLDER)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(17, "a hundred sessions of this second exist already", path)
