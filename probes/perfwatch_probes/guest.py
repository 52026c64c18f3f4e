"""Root is a guest: a path, socket or program that a job can name is touched by a process that has become the job's user first.

What a job says (its environment, its source paths, its place in shared memory) is data about the job. Root who opened such a path as
root would lend its rights to its author. So ``Guests`` gives, for a process of the job, a killable child that holds the
identity of that process and nothing more: user, groups, none of our capabilities, no new privileges, limited memory. It can open
what the job could open itself. This module is the only one that becomes another user, and the only one that opens a job's paths.

What the kernel itself says about a process (/proc, py-spy's reads, sockets' tables, NVML) needs our rights and stays outside.

Two ways in: ``inside`` resolves paths in the root of the process (a container's), and no link leads out of it; ``beside`` is for what
lies in our own root: the job's place in shared memory, its control socket, a profiler that we start.

Sources: credentials(7), capabilities(7), openat2(2), prctl(2): the parent-death signal is lost at a change of user, and a process that
changed its user is not dumpable, so that the job cannot trace the guest or read what it inherited.
"""

import ctypes
import errno
import os
import pwd
import resource
import stat
import struct
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from perfwatch_probes.deadline import Caller, KillableChild
from perfwatch_probes.filesystem import Absent, Denied
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.stat import parse_pairs, stat_fields
from perfwatch_probes.stuck_guests import STUCK_GUESTS

MOST_GUESTS = 4  # children at a time; a job has one user, and ranks in containers a root each
MEMORY_BYTES = 2 * 2**30  # a guest may map so much more than it has at its start: parsing 2 MiB of source takes 300 MiB
LARGEST_FILE_BYTES = 8 * 2**30  # a guest may write: a raw trace
MOST_FILES = 1024
ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "CUDA_HOME", "CUDA_PATH", "PERFWATCH_NSYS", "PERFWATCH_NCU")  # what it keeps

CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SETGID, CAP_SETUID = 1, 2, 6, 7  # linux/capability.h
_FILE_RIGHTS = 1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL = 4, 24, 38, 47, 4
_CAPABILITY_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_LAST_CAPABILITY = 63
_OPENAT2 = 437  # on every architecture
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_HOW = struct.Struct("=QQQ")  # struct open_how: flags, mode, resolve
_AT_SECURE = 23  # linux/auxvec.h
_AUXILIARY = struct.Struct("=QQ")
_libc = ctypes.CDLL(None, use_errno=True)
_NO_ROOT = -1
_root = _NO_ROOT  # in a guest: the root in which paths of the job resolve, where that is not our own

T = TypeVar("T")


@dataclass(frozen=True)
class Identity:
    """As whom a process acts.

    Args:
        uid, gid, groups: of its files and signals.
        capabilities: the mask that is in effect for it, as far as it holds in our own user namespace.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    capabilities: int = 0


def identity_of(pid: int, proc: Path = Path("/proc")) -> Identity:
    """The identity of a process now. Raises Unavailable: it has ended, or acts for several users (a set-uid program)."""
    try:
        folder = os.open(proc / str(pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise Absent(f"process {pid} has ended") from None
    try:
        return _identity(folder, pid)
    finally:
        os.close(folder)


def _identity(folder: int, pid: int) -> Identity:
    try:
        descriptor = os.open("status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        with open(descriptor, "rb") as file:
            told = parse_pairs(file.read(65536).decode("utf-8", "replace"))
        uids, gids = set(told["Uid"].split()), set(told["Gid"].split())
        groups = tuple(int(group) for group in told["Groups"].split())
        capabilities = int(told["CapEff"], 16)
        secure = _runs_secure(folder)
    except (OSError, KeyError, ValueError):
        raise Absent(f"process {pid} has ended") from None
    if len(uids) > 1 or len(gids) > 1:
        raise Unavailable(f"process {pid} acts as several users at once (uids {', '.join(sorted(uids))})")
    if secure:
        raise Unavailable(f"process {pid} runs a set-uid program: what its caller said is not its user's word")
    if not _same_users(folder):
        capabilities = 0  # they hold in its own user namespace alone
    return Identity(int(*uids), int(*gids), groups, capabilities)


def _runs_secure(folder: int) -> bool:
    """True if the kernel gave the process more rights than its caller had when it started the program (AT_SECURE, getauxval(3))."""
    descriptor = os.open("auxv", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    with open(descriptor, "rb") as file:
        told = file.read(4096)
    return any(kind == _AT_SECURE and value for kind, value in _AUXILIARY.iter_unpack(told[: len(told) & ~15]))


def _same_users(folder: int) -> bool:
    """True if the process is in our user namespace; False also where that cannot be seen."""
    try:
        return os.readlink("ns/user", dir_fd=folder) == os.readlink("/proc/self/ns/user")
    except OSError:
        return False


class Hosts(Protocol):
    """Where a path of a job may be touched: ``Guests``, or ``Recorded`` for a recorded tree."""

    def inside(self, pid: int) -> Caller:
        """For paths as this process sees them."""
        ...

    def beside(self, pid: int) -> Caller:
        """For paths of its user in our own root."""
        ...

    def of_user(self, uid: int) -> Caller:
        """For paths of this user in our own root, where no process of theirs is left."""
        ...


@dataclass(frozen=True)
class Recorded:
    """One caller for everything: for recorded trees, which belong to us."""

    caller: Caller

    def inside(self, pid: int) -> Caller:
        """The caller."""
        return self.caller

    def beside(self, pid: int) -> Caller:
        """The caller."""
        return self.caller

    def of_user(self, uid: int) -> Caller:
        """The caller."""
        return self.caller


@dataclass
class Guests:
    """The guests of one watch, started when they are needed. Not thread-safe, and none survives a fork: see ``fresh``.

    Guests that SIGKILL does not end are counted for each uid, over all ``Guests`` of this process and of the processes that were
    forked from it: see ``perfwatch_probes.stuck_guests`` for the bound.

    Args:
        proc: root of /proc.
        most: guests at a time; beyond it the one that was not used for longest ends.
    """

    proc: Path = Path("/proc")
    most: int = MOST_GUESTS
    _known: dict[int, tuple[int, Identity]] = field(default_factory=dict)  # by pid: start time, first identity
    _children: dict[tuple[Identity, str], KillableChild] = field(default_factory=dict)

    def meet(self, pid: int) -> None:
        """Remember as whom a process acts, before anything that it says is used; one that has ended is not remembered."""
        try:
            self.identity(pid)
        except Unavailable:
            pass

    def inside(self, pid: int) -> Caller:
        """A guest in the root of this process. Raises Unavailable: it has ended, or has become another user since."""
        return self._child(self.identity(pid), self.root_of(pid), pid)

    def root_of(self, pid: int) -> str:
        """What tells the root of a process, a container's for instance, from others; empty for our own. Raises Unavailable."""
        try:
            folder = self.proc / str(pid)
            root = f"{os.readlink(folder / 'ns/mnt')} {os.readlink(folder / 'root')}"
        except OSError as error:
            raise Unavailable(f"the root of process {pid} cannot be seen: {error.strerror}") from None
        return "" if root == f"{os.readlink(self.proc / 'self/ns/mnt')} /" else root

    def beside(self, pid: int) -> Caller:
        """A guest in our own root. Raises Unavailable as ``inside`` does."""
        return self._child(self.identity(pid), "", pid)

    def of_user(self, uid: int) -> Caller:
        """A guest in our own root, with no group but nogroup's: for what a user has left."""
        return self.child(Identity(uid, NOBODYS_GROUP))

    def child(self, identity: Identity) -> KillableChild:
        """A guest of this identity in our own root."""
        return self._child(identity, "", None)

    def fresh(self) -> "Guests":
        """The same knowledge without the children: for a process that was forked."""
        return Guests(self.proc, self.most, dict(self._known))

    def forget(self, living: Iterable[int]) -> None:
        """Let go of processes that have ended."""
        self._known = {pid: self._known[pid] for pid in living if pid in self._known}

    def close(self) -> None:
        """End all guests."""
        while self._children:
            self._children.popitem()[1].close()

    def identity(self, pid: int) -> Identity:
        """The identity that a process had when we met it. A user's process that has become root's is not followed there.

        Raises Unavailable: it has ended, has become another user since, or acts for several.
        """
        now, ticks = identity_of(pid, self.proc), _start_ticks(pid, self.proc)
        met = self._known.get(pid)
        if met is None or met[0] != ticks or (met[1].uid == 0 and now.uid != 0):
            met = self._known[pid] = (ticks, now)
        if met[1].uid != now.uid:
            raise Unavailable(
                f"process {pid} was of uid {met[1].uid} and is of uid {now.uid} now: its files are left alone"
            )
        return met[1]

    def _child(self, identity: Identity, root: str, pid: int | None) -> KillableChild:
        key = identity, root
        child = self._children.pop(key, None)
        if child is None:
            while len(self._children) >= self.most:
                self._children.pop(next(iter(self._children))).close()
            arrival = Arrival(identity, pid if root else None, self.proc)
            child = KillableChild(settle=arrival.settle, replies=Plain(), ledger=STUCK_GUESTS.of(identity.uid))
        self._children[key] = child  # the newest last
        return child


NOBODYS_GROUP = 65534  # the kernel's overflowgid


@dataclass(frozen=True)
class Arrival:
    """How a new process becomes a guest.

    Args:
        identity: whose.
        pid: the process in whose root paths resolve; None for our own.
        proc: root of /proc.
        memory_bytes: how much more it may map.
    """

    identity: Identity
    pid: int | None = None
    proc: Path = Path("/proc")
    memory_bytes: int = MEMORY_BYTES

    def settle(self) -> None:
        """Become it, for good, in this process. Raises Unavailable where we may not, or the process has changed."""
        global _root
        if self.pid is not None:
            folder = os.open(self.proc / str(self.pid), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            if replace(_identity(folder, self.pid), capabilities=0) != replace(self.identity, capabilities=0):
                raise Unavailable(f"process {self.pid} has changed its user")
            _root = os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
        become(self.identity, self.memory_bytes)


def become(identity: Identity, memory_bytes: int = MEMORY_BYTES) -> None:
    """Take on an identity, for good: nothing that this process does or starts later can take it back.

    Raises Unavailable where we are not allowed to. The process must be one that is thrown away afterwards.
    """
    held = _capabilities()
    may_change = held & (1 << CAP_SETUID) and held & (1 << CAP_SETGID)
    if not may_change and os.geteuid() != identity.uid:
        raise Unavailable(
            f"files of uid {identity.uid} are left alone: uid {os.geteuid()} may not become that user",
            f"run perfwatch as that user, or as root with the capabilities SETUID and SETGID: sudo -u '#{identity.uid}' ...",
        )
    kept = held & identity.capabilities & _FILE_RIGHTS if identity.uid == 0 else 0
    for number in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # refused without CAP_SETPCAP: no_new_privs has the same effect
    _must(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if may_change:
        os.setgroups(identity.groups)
        os.setresgid(identity.gid, identity.gid, identity.gid)
        os.setresuid(identity.uid, identity.uid, identity.uid)
    _libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)
    _set_capabilities(kept)
    _must(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    if set(os.getresuid()) != {identity.uid} or _capabilities() & ~_FILE_RIGHTS:
        raise Unavailable(f"this process could not become uid {identity.uid}")
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, MOST_FILES)
    _limit(resource.RLIMIT_FSIZE, LARGEST_FILE_BYTES)
    _limit(resource.RLIMIT_AS, _mapped_bytes() + memory_bytes)
    os.umask(0o077)
    os.chdir("/")
    _leave_environment(identity.uid)


def _leave_environment(uid: int) -> None:
    """Ours may hold secrets, and what this process starts shows it to its user."""
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    os.environ.clear()
    try:
        home = pwd.getpwuid(uid).pw_dir
    except KeyError:
        home = "/"
    os.environ.update(kept | {"HOME": home})


def is_ours(identity: Identity) -> bool:
    """True if a process of this identity could do all that we can: then there is nothing to gain from us."""
    return identity.uid == os.geteuid() and not _capabilities() & ~identity.capabilities


def _must(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _capabilities() -> int:
    """The mask in effect."""
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _must(_libc.capget(header, data))
    return data[0] | data[3] << 32


def _set_capabilities(mask: int) -> None:
    low, high = mask & 0xFFFFFFFF, mask >> 32
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _must(_libc.capset(header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)))


def _limit(kind: int, most: int) -> None:
    """Lower a limit; a lower one stays."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[0]) * resource.getpagesize()


def _start_ticks(pid: int, proc: Path) -> int:
    try:
        return int(stat_fields(proc / str(pid))[19])
    except (OSError, ValueError, IndexError):
        raise Absent(f"process {pid} has ended") from None


class _Failure(msgspec.Struct, array_like=True):
    """An exception on its way back. kind: one of ``_KINDS``, or "" for one that is told by its words alone."""

    kind: str
    reason: str
    advice: str = ""
    code: int = 0


class _Answer(msgspec.Struct, array_like=True):
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    failure: _Failure | None = None


_KINDS: dict[str, Callable[[str, str], Exception]] = {
    "absent": Absent,
    "denied": Denied,
    "unavailable": Unavailable,
    "value": lambda reason, _: ValueError(reason),
}
_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Answer)


class Plain:
    """Replies as data of the type that the function is declared to return: a guest's answer is never unpickled."""

    def pack(self, succeeded: bool, result: object) -> bytes:  # noqa: D102
        try:
            if succeeded:
                return _ENCODER.encode(_Answer(msgspec.Raw(_ENCODER.encode(result))))
            return _ENCODER.encode(_Answer(failure=_told(result)))
        except Exception as error:
            return _ENCODER.encode(_Answer(failure=_Failure("", _readable(error))))

    def unpack(self, function: Callable[..., T], payload: bytes) -> T:  # noqa: D102
        try:
            answer = _DECODER.decode(payload)
            if answer.failure is None:
                wanted = typing.get_type_hints(function)["return"]
                return typing.cast(T, msgspec.msgpack.decode(answer.value, type=wanted))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Unavailable(f"a guest's answer is not what it should be: {error}") from None
        failure = answer.failure
        if failure.kind == "os":
            raise OSError(failure.code, failure.reason)
        if failure.kind in _KINDS:
            raise _KINDS[failure.kind](failure.reason, failure.advice)
        raise RuntimeError(failure.reason)


def _told(error: object) -> _Failure:
    if isinstance(error, Unavailable):
        kind = "absent" if isinstance(error, Absent) else "denied" if isinstance(error, Denied) else "unavailable"
        return _Failure(kind, error.reason, error.advice)
    if isinstance(error, OSError) and error.errno is not None:
        return _Failure("os", error.strerror or "", code=error.errno)
    return _Failure("value" if isinstance(error, ValueError) else "", _readable(error))


def _readable(error: object) -> str:
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return text.encode("utf-8", "replace").decode()[:400]


# What guests do with a path of the job. Each runs in a guest, may block there, and raises OSError.


def opened(path: str, kind: Callable[[int], bool] = stat.S_ISREG, flags: int = os.O_RDONLY, follow: bool = True) -> int:
    """A descriptor of the file at a path of the job, whose kind is known before it is opened: to open a device may have effects.

    Args:
        path: absolute, as the job sees it.
        kind: tells from the mode of a file what is wanted.
        flags: of open(2).
        follow: False if a link at its end is a file of another kind.

    Raises OSError; ValueError where it is a file of another kind.
    """
    found = _find(path, 0 if follow else os.O_NOFOLLOW)
    try:
        if not kind(os.fstat(found).st_mode):
            raise ValueError(f"{os.path.basename(path)} is not a file of the kind that is wanted")
        again = f"/proc/self/fd/{found}"  # this very file, whatever the path names by now
        return os.open(again, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(found)


def folder_below(top: str, path: str) -> int:
    """A descriptor of the folder of a path below another one: no link between the two is followed, whatever was put there meanwhile.

    ``/proc/self/fd/N/NAME`` names a file in it for as long as the descriptor is open. Raises OSError.
    """
    descriptor = _find(top, os.O_DIRECTORY)
    for name in os.path.dirname(os.path.relpath(path, top)).split("/"):
        if name:
            above = descriptor
            try:
                descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            finally:
                os.close(above)
    return descriptor


def read(path: str, most_bytes: int) -> bytes:
    """The first so many bytes of a regular file. Raises OSError or ValueError."""
    descriptor = opened(path)
    with open(descriptor, "rb", buffering=0) as file:
        return contents(file, most_bytes)


def contents(file: typing.BinaryIO, most_bytes: int) -> bytes:
    """The first so many bytes of an open file."""
    chunks, left = [], most_bytes
    while left and (chunk := file.read(min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def state_of(path: str) -> os.stat_result:
    """What stat(2) says of a path of the job, links followed; nothing is opened."""
    found = _find(path)
    try:
        return os.fstat(found)
    finally:
        os.close(found)


def file_system(path: str) -> os.statvfs_result:
    """What statvfs(2) says of the file system at a path of the job."""
    found = _find(path)
    try:
        return os.fstatvfs(found)
    finally:
        os.close(found)


def names(path: str, most: int) -> list[str]:
    """At most so many names in a folder of the job, in no order."""
    found = _find(path)
    try:
        descriptor = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(found)
    listed: list[str] = []
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                listed.append(os.fsencode(entry.name).decode("utf-8", "replace"))
                if len(listed) == most:
                    break
    finally:
        os.close(descriptor)
    return listed


def _find(path: str, more: int = 0) -> int:
    """A descriptor that names a file and does not open it (O_PATH)."""
    flags = os.O_PATH | os.O_CLOEXEC | more
    if not path.startswith("/"):
        raise FileNotFoundError(errno.ENOENT, "a path of a job is absolute", path)
    if _root == _NO_ROOT:
        return os.open(path, flags)
    how = _HOW.pack(flags, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    found = _libc.syscall(_OPENAT2, _root, os.fsencode(path), how, ctypes.c_size_t(len(how)))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return int(found)
