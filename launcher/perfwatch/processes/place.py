"""The shared folder of one watched job, and the lock that decides which of its launchers watches it.

A *place* is a private folder in shared memory: the agent's pages, the control socket, one ``root-*`` file per process
that a launcher started. One ``perfwatch run`` has a place of its own. With one launcher per rank (``srun``, ``mpirun``,
``torchrun --no-python``) all launchers of a job on this node share one: the first takes the lock and watches every
root; when it ends the next one takes over. Each launcher holds a lock on a file of the place, because containers may share the
memory and not see each other's processes.

Only places of our own user are trusted. Of another user's place, root reads only where the agent of that user's job writes. A guest
(``perfwatch_probes.guest``) reads it, and the result is used for that user's processes alone.
"""

import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from perfwatch.processes.job_key import job_key, rank_in
from perfwatch.processes.own_folders import MOST_LISTED, make_own_folder, own_folders
from perfwatch_probes import guest
from perfwatch_probes.stat import stat_fields
from perfwatch_probes.tail import tail

# Memory first: a page that the trainer writes at each step must not wait for the journal of a busy disk.
HOMES = (Path("/dev/shm"), Path("/tmp"))
# A live place has a live root within milliseconds; what a killed launcher left is swept once its job is gone too.
STALE_SECONDS = 30.0
LEAVE_SECONDS = 8.0  # a DataLoader worker asks every 5 s whether its rank lives
LEAVE_AGAIN_SECONDS = 0.2
MOST_PLACES, MOST_ROOTS = 64, 1024  # of one user: jobs that run at once, and launchers that share a place
LONGEST_ROOT_BYTES = 4096  # three numbers and their names
LEAST_ROOM_BYTES = 2**20  # a job of many ranks has a page of steps for each of them, and a message or two


@dataclass(frozen=True)
class Root:
    """A process that a launcher started: the top of a tree that belongs to the job."""

    pid: int
    start_ticks: int
    launcher: int


@dataclass
class Place:
    """The folder, and what this launcher holds in it.

    ``shared``: other launchers of the same job may be here. ``name``: our own root file.
    """

    folder: Path
    name: str
    shared: bool
    _root_lock: int = -1
    _watch_lock: int = field(default=-1, repr=False)

    @property
    def control(self) -> Path:
        """The socket on which the watcher takes commands."""
        return self.folder / "control"

    def register(self, pid: int) -> None:
        """Say which process we started."""
        text = json.dumps({"pid": pid, "start_ticks": start_ticks(pid) or 0, "launcher": os.getpid()})
        os.pwrite(self._root_lock, text.encode(), 0)

    def take_watch(self) -> bool:
        """Become the one that watches; False while another launcher of the job does."""
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if not locked(descriptor):
            os.close(descriptor)
            return False
        self._watch_lock = descriptor
        return True

    def give_up_watch(self) -> None:
        """Let another launcher of the job take over."""
        if self._watch_lock >= 0:
            os.close(self._watch_lock)
            self._watch_lock = -1

    def disown_root(self) -> None:
        """In a forked process that has closed what it inherited: the root is held by the launcher alone."""
        self._root_lock = -1

    def leave(self, patience_seconds: float = 0.0) -> None:
        """Take our root back, and the folder with it when no process of the job uses it any more.

        The root stays while its process runs: the launcher was killed, or its watcher failed, and the job can still be found.

        Args:
            patience_seconds: how long what outlives its rank is waited for; another launcher is not, for it leaves later.
        """
        if _root(self.folder / self.name) is None:
            _remove_file(self.folder / self.name)
        if self._root_lock >= 0:
            os.close(self._root_lock)
            self._root_lock = -1
        ends = time.monotonic() + patience_seconds
        while _in_use(self.folder):
            if _held(self.folder) or time.monotonic() >= ends:
                return
            time.sleep(LEAVE_AGAIN_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)


def free_bytes(folder: Path) -> int:
    """What may still be written where a folder lies."""
    return shutil.disk_usage(folder).free


def enter(
    environment: Mapping[str, str], homes: tuple[Path, ...] = HOMES, room: Callable[[Path], int] = free_bytes
) -> Place:
    """Make or join the place for the job that this environment describes.

    Raises:
        OSError: neither shared memory nor /tmp takes a private folder of ours.
    """
    home = private_home(homes, room)
    _sweep(home)
    rank = rank_in(environment)
    key = job_key(environment)
    if key and rank is not None and rank.isdigit():
        met = next((one for one in _private_homes(homes) if _in_use(one / f"job-{key}")), home)
        place = _claim(met / f"job-{key}", f"root-{rank}", shared=True)
        if place:
            return place
        # The same rank twice: two commands in one allocation, not two ranks of one job.
    place = _claim(home / f"run-{os.getpid()}-{start_ticks(os.getpid())}", "root-0", shared=False)
    if place is None:
        raise OSError(f"{home} holds a live place of this very process")
    return place


def roots(folder: Path) -> Iterator[Root]:
    """The live roots in a place."""
    yield from filter(None, map(_root, _some(folder, "root-", MOST_ROOTS)))


def _root(path: Path) -> Root | None:
    """The root that a file names; None if its process has ended or has not started, or this is no file of a launcher."""
    try:
        root = _told(tail(path, LONGEST_ROOT_BYTES))
    except (OSError, ValueError):
        return None
    if root is None or not _is_there(root.pid):
        return None
    return root if start_ticks(root.pid) in (root.start_ticks, None) else None  # None: it cannot be read now


def _told(text: str | bytes) -> Root | None:
    try:
        facts = json.loads(text)
        return Root(int(facts["pid"]), int(facts["start_ticks"]), int(facts["launcher"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _is_there(pid: int) -> bool:
    """True if a process has this pid. Unlike ``start_ticks``, this needs no helper, which may be late or gone."""
    return os.path.exists(f"/proc/{pid}")


def places(homes: tuple[Path, ...] = HOMES) -> Iterator[Path]:
    """The places of our own user on this machine."""
    for parent in homes:
        for home in filter(_private, own_folders(parent / f"perfwatch-{os.getuid()}")):
            yield from (folder for folder in _some(home, "", MOST_PLACES) if "-" in folder.name and _private(folder))


def rooted(homes: list[str]) -> list[tuple[str, list[Root]]]:
    """The places of this process' user with a live root, each with its roots: what a guest tells root."""
    found = ((str(place), list(roots(place))) for place in places(tuple(map(Path, homes))))
    return [(place, there) for place, there in found if there]


def registered(homes: list[str]) -> list[tuple[str, list[Root]]]:
    """The places in the root of a container, each with the roots that it names, by their numbers there: what a guest tells."""
    found: list[tuple[str, list[Root]]] = []
    for home in homes:
        for ours in _named(home, "perfwatch-", MOST_PLACES):
            for place in _named(ours, "", MOST_PLACES - len(found)):
                told = [_told(_text(path)) for path in _named(place, "root-", MOST_ROOTS)]
                found.append((place, [root for root in told if root is not None]))
    return [(place, there) for place, there in found if there]


def _named(folder: str, prefix: str, most: int) -> list[str]:
    try:
        there = guest.names(folder, MOST_LISTED)
    except OSError:
        return []
    return [f"{folder}/{name}" for name in sorted(there) if name.startswith(prefix)][: max(0, most)]


def _text(path: str) -> bytes:
    try:
        return guest.read(path, LONGEST_ROOT_BYTES)
    except (OSError, ValueError):
        return b""


def _some(folder: Path, prefix: str, most: int) -> list[Path]:
    """At most so many paths in a folder, sorted: its owner may have put a million there."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(prefix):
                    found.append(folder / entry.name)
                    if len(found) == most:
                        break
    except OSError:
        pass  # there is none
    return sorted(found)


def _private(folder: Path) -> bool:
    """True if a folder (no link) was put there, and can be changed, by our own user alone."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o022


def start_ticks(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Field 22 of stat: with the pid, the identity of a process. None when there is no such process."""
    try:
        return int(stat_fields(proc / str(pid))[19])
    except (OSError, IndexError):
        return None


def private_home(homes: tuple[Path, ...] = HOMES, room: Callable[[Path], int] = free_bytes) -> Path:
    """The folder in memory that all our processes of this user share; memory that is full gives way to the next home.

    Raises OSError when there can be none.
    """
    ours = _private_homes(homes)
    first = next(ours)
    return next((home for home in chain([first], ours) if room(home) >= LEAST_ROOM_BYTES), first)


def _private_homes(homes: tuple[Path, ...]) -> Iterator[Path]:
    """Our folder in each of them, made when it is asked for. Raises OSError after the last where none is private and ours."""
    refusals = []
    for parent in homes:
        try:
            home = make_own_folder(parent / f"perfwatch-{os.getuid()}")
            state = home.lstat()
        except OSError as error:
            refusals.append(str(error))
            continue
        if stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077:
            yield home
        else:
            refusals.append(f"{home} is not a private folder of ours")
    if len(refusals) == len(homes):
        raise OSError("; ".join(refusals))


def private_folder(folder: Path) -> None:
    """Make a folder that is ours alone, in one that we can trust. Raises OSError when another user has put one there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid():
        raise PermissionError(1, "not a folder of ours", str(folder))


def _claim(folder: Path, name: str, shared: bool) -> Place | None:
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if not locked(descriptor):
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    return Place(folder, name, shared, descriptor)


def locked(descriptor: int) -> bool:
    """Take the lock of an open file, unless another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _in_use(folder: Path) -> bool:
    """True if a launcher or a watcher of this place lives, or a process that they started or that counted steps or will write here."""
    counted = (int(path.name[6:]) for path in folder.glob("steps-*") if path.name[6:].isdecimal())
    return _held(folder) or _awaited(folder) or any(roots(folder)) or any(map(_is_there, counted))


def _held(folder: Path) -> bool:
    """True if a process has the lock of a file here: that tells of processes which our /proc does not show."""
    for path in (folder / "lock", *folder.glob("root-*")):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # not there (any more)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two that ask at once are not mistaken
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _awaited(folder: Path) -> bool:
    """True if the agent of a living process has armed it to write here later: it holds a lock, and would be aborted without the folder."""
    try:
        descriptor = os.open(folder / "used", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not locked(descriptor)
    finally:
        os.close(descriptor)


def _sweep(home: Path) -> None:
    oldest = time.time() - STALE_SECONDS
    for folder in home.glob("*-*"):
        try:
            stale = folder.stat().st_mtime < oldest
        except OSError:
            continue  # another launcher swept it
        if stale and not _in_use(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _remove_file(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass  # swept, or never made
