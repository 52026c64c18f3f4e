"""The control socket of a watcher, for other commands: one JSON object per line, and one line as the answer.

- ``{"command": "status"}`` returns the state of the watcher and its session folder.
- ``{"command": "verdict"}`` judges now; with ``"attend": true`` the watcher also samples closely from now on.
- ``{"command": "trigger", "what": "verdict" | "timeline" | "kernels"}`` does the same as the signal of that meaning.
- ``{"command": "capture", "request": {...}}`` starts a capture and returns its ``number``. ``captured`` with that number
  returns the ``outcome``.

Each answer has ``"ok"``; if it is false, also ``"error"``. Only the same user and root are served, each for a limited time. A watcher of
root that has not started its job tells the job's user its status and its last verdict; that user believes it for it is root's.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from perfwatch.processes.channel import Message
from perfwatch.processes.place import HOMES, Root, places, registered, rooted, roots, start_ticks
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.guest import Guests, identity_of, is_ours
from perfwatch_probes.inner_pids import InnerPids
from perfwatch_probes.locked_files import read_kernel_file
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.stat import parse_pairs, stat_fields

LONGEST_REQUEST_BYTES = 64 * 1024
LONGEST_ANSWER_BYTES = 4 * 2**20  # a verdict with all its findings is a few tens of KiB
REQUEST_DEADLINE_SECONDS = 2.0
MOST_CLIENTS = 64
NO_FILE = "@"  # begins the name of a socket that has none, as /proc/net/unix writes it
JOINED = "perfwatch-watch-"
UNIX_BYTES = 2**23  # 100,000 sockets
JOINED_SECONDS = 2.0
OWN_NAMES = "perfwatch"  # begins the names of our processes, as the kernel shows them
CAP_SYS_PTRACE = 19  # linux/capability.h
PLACE_SECONDS = 1.0  # for the places of one user; 64 of them with 1,024 roots each take 0.5 s

Answer = Callable[[Message], Message]


class ControlServer:
    """Takes requests without blocking; the watcher calls ``serve`` when a descriptor of ``filenos`` is readable.

    Args:
        path: of the socket.
        answer: answers our user and root.
        clock: monotonic seconds.
        public: answers the user of this uid; None for one who is not served.
    """

    def __init__(
        self,
        path: Path,
        answer: Answer,
        clock: Callable[[], float] = time.monotonic,
        public: Callable[[int], Answer | None] = lambda uid: None,
    ) -> None:
        self._answer, self._public = answer, public
        self._clock = clock
        self._clients: dict[int, _Client] = {}
        self._open_to_all = str(path).startswith(NO_FILE)
        if not self._open_to_all:
            path.unlink(missing_ok=True)  # of a watcher that is gone: we hold its lock
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        bind_privately(self._listener, _address(path))
        self._listener.listen(MOST_CLIENTS)

    def filenos(self) -> list[int]:
        """What to wait for."""
        return [self._listener.fileno(), *self._clients]

    def serve(self) -> None:
        """Accept, read, answer; drop who is late, too long or not allowed."""
        self._accept()
        now = self._clock()
        for fileno, client in list(self._clients.items()):
            request = client.read()
            if request is not None:
                client.reply(self._answered(request, client.answer))
            if request is not None or client.broken or now > client.deadline:
                del self._clients[fileno]
                client.close()

    def close(self) -> None:
        """Stop listening. The path stays: the next watcher replaces it."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        self._listener.close()

    def _accept(self) -> None:
        """Let new clients in; where there are too many, the one that has said nothing for longest goes."""
        for _ in range(MOST_CLIENTS):
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            answer = self._answer_for(connection)
            if answer is None:
                connection.close()
                continue
            if len(self._clients) >= MOST_CLIENTS:
                self._clients.pop(next(iter(self._clients))).close()
            self._clients[connection.fileno()] = _Client(connection, self._clock() + REQUEST_DEADLINE_SECONDS, answer)

    def _answer_for(self, connection: socket.socket) -> Answer | None:
        """What answers our own user and root; where no folder keeps others away, those of our user that can do all that we can.

        Root of a container may share our network and our uid.
        """
        pid, uid = _peer(connection)
        if self._open_to_all:
            ours = uid == os.getuid() and _could_do_all_that_we_can(pid)
        else:
            ours = uid in (0, os.getuid())
        return self._answer if ours else self._public(uid)

    def _answered(self, line: bytes, answer: Answer) -> Message:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return {"ok": False, "error": "the request is not JSON"}
        if not isinstance(request, dict):
            return {"ok": False, "error": "the request is not an object"}
        try:
            return answer(request)
        except Exception as error:  # an unforeseen request must not end the server of all the others
            return {"ok": False, "error": f"internal error: {type(error).__name__}: {error}"}


class _Client:
    def __init__(self, connection: socket.socket, deadline: float, answer: Answer) -> None:
        connection.setblocking(False)
        self._connection, self.answer = connection, answer
        self._received = b""
        self.deadline = deadline
        self.broken = False

    def read(self) -> bytes | None:
        """The request, once it is complete."""
        try:
            data = self._connection.recv(LONGEST_REQUEST_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self._received += data
        line, end, _ = self._received.partition(b"\n")
        if end:
            return line
        self.broken = not data or len(self._received) >= LONGEST_REQUEST_BYTES
        return None

    def reply(self, answer: Message) -> None:
        """Send the answer; a client that does not read loses it."""
        try:
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST_ANSWER_BYTES)
            self._connection.settimeout(REQUEST_DEADLINE_SECONDS)
            self._connection.sendall(json.dumps(answer).encode() + b"\n", socket.MSG_NOSIGNAL)
        except OSError:
            self.broken = True

    def close(self) -> None:
        self._connection.close()


def bind_privately(listener: socket.socket, address: str | bytes) -> None:
    """Bind a Unix socket whose file, if it has one, is 0600 from its first moment on: a chmod could be led elsewhere by a link."""
    before = os.umask(0o177)
    try:
        listener.bind(address)
    finally:
        os.umask(before)


def ask(control: Path, request: Message, deadline_seconds: float, of_root: bool = False) -> Message:
    """Send one request to a watcher and return its answer.

    of_root: True if only the real root's watcher is believed, and our own is not.

    Raises:
        OSError: no process listens there, or not the owner of the place, or no whole answer came in time (TimeoutError).
    """
    ends = time.monotonic() + deadline_seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(deadline_seconds)
        _connect(connection, control, of_root)
        connection.sendall(json.dumps(request).encode() + b"\n", socket.MSG_NOSIGNAL)
        received = bytearray()
        while not received.endswith(b"\n"):
            connection.settimeout(max(0.001, ends - time.monotonic()))
            data = connection.recv(65536)
            if not data or len(received) > LONGEST_ANSWER_BYTES:
                raise OSError(f"the watcher at {control} closed the connection before its answer was complete")
            received += data
    try:
        answer = json.loads(received)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise OSError(f"the watcher at {control} sent an answer that cannot be parsed")
    return answer


def find_watcher(
    pid: int, homes: tuple[Path, ...] = HOMES, proc: Path = Path("/proc"), runs_alone: bool = False
) -> Path | None:
    """The control socket of our own watcher whose job has this process (or is started by it), if there is one.

    Another user's watcher is not asked: what it says is that user's word, and root judges for itself. That of ``run``, which has
    started the job, goes before one of a daemon or of ``attach --watch``.

    runs_alone: True if only a watcher of ``run`` is looked for.
    """
    started = (folder / "control" for folder, _ in _meant(pid, _own(homes), proc))
    control = next((control for control in started if _listens(control)), None)
    if control is not None or runs_alone:
        return control
    return next((control for control, _ in _meant(pid, _joined(proc), proc)), None)


def find_watcher_of_root(pid: int, proc: Path = Path("/proc")) -> Path | None:
    """The control socket of root's watcher of the job of this process; None for root, and where it does not serve our user."""
    if os.geteuid() == 0:
        return None
    return next((control for control, _ in _meant(pid, _joined(proc, of_root=True), proc)), None)


def find_watcher_of_helper(pid: int, proc: Path = Path("/proc")) -> Path | None:
    """The control socket of the watcher that a process of perfwatch belongs to; None where it is not clear which."""
    above = [pid, *_ancestors(pid, proc)]
    ours = set(takewhile(lambda one: _name(one, proc).startswith(OWN_NAMES), above))
    found = []
    for control in watchers():
        try:
            watcher = int(ask(control, {"command": "status"}, REQUEST_DEADLINE_SECONDS)["watcher"])
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if watcher in above:
            return control
        if ours.intersection(_ancestors(watcher, proc)):
            found.append(control)
    return found[0] if len(found) == 1 else None


def is_our_own(pid: int, proc: Path = Path("/proc")) -> bool:
    """True if a process has the name of one of perfwatch's own: it is then asked about as its job."""
    return _name(pid, proc).startswith(OWN_NAMES)


def _name(pid: int, proc: Path) -> str:
    try:
        return read_kernel_file(str(proc / str(pid) / "comm"), 64).decode(errors="replace")
    except OSError:
        return ""


def watchers(homes: tuple[Path, ...] = HOMES) -> list[Path]:
    """The control sockets of every watcher of ours on this machine."""
    started = [folder / "control" for folder in places(homes) if _listens(folder / "control")]
    return [*started, *(control for control, _ in _joined(Path("/proc")))]


def joined_control() -> Path:
    """The control socket of a watcher that has not started its job.

    It has no file, so that nothing is left of a watcher that is killed. A process that shares our network may connect to it.
    """
    return Path(f"{NO_FILE}{JOINED}{os.getuid()}-{os.getpid()}-{start_ticks(os.getpid())}")


def _joined(proc: Path, of_root: bool = False) -> Iterator[tuple[Path, list[Root]]]:
    """Those of ours, or of root, each with the processes at the top of its job.

    A socket of another user may have any name: it is passed over.
    """
    begin = f" {NO_FILE}{JOINED}{0 if of_root else os.getuid()}-"
    try:
        lines = read_kernel_file(str(proc / "net/unix"), UNIX_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return
    names = dict.fromkeys(f"{begin}{line.partition(begin)[2]}".strip() for line in lines if begin in line)
    ends = time.monotonic() + JOINED_SECONDS
    for name in names:
        if time.monotonic() > ends:
            return
        try:
            roots_of_job = ask(Path(name), {"command": "status"}, REQUEST_DEADLINE_SECONDS, of_root)["roots"]
            yield Path(name), [Root(int(pid), 0, 0) for pid in roots_of_job]
        except (OSError, ValueError, LookupError, TypeError):
            continue


@dataclass(frozen=True)
class ArmedJob:
    """A job that was started armed. roots: the live processes that its launchers started."""

    folder: AgentFolder
    roots: tuple[Root, ...]


def find_place(
    pid: int, homes: tuple[Path, ...] = HOMES, proc: Path = Path("/proc"), guests: Guests | None = None
) -> ArmedJob | None:
    """Where the agent of this process' job writes, if it was started armed; its watcher may be gone.

    guests: look at the place of the process' user, where that is another one, and in the root of its container.
    """
    try:
        owner = guests.identity(pid) if guests is not None else None
    except Unavailable:
        return None
    if owner is None or owner.uid != os.getuid() or is_ours(owner):
        for folder, found in _meant(pid, _own(homes), proc):
            return ArmedJob(AgentFolder(folder), tuple(found))
    if guests is None or owner is None:
        return None
    wanted = [str(home) for home in homes]
    try:
        told = [] if is_ours(owner) else guests.child(owner).call(rooted, wanted, deadline_seconds=PLACE_SECONDS)
    except (Unavailable, OSError):
        return None
    theirs = ((Path(folder), [one for one in there if _owner(one.pid, proc) == owner.uid]) for folder, there in told)
    for folder, found in _meant(pid, theirs, proc):
        return ArmedJob(AgentFolder(folder, owner, guests), tuple(found))
    try:
        apart = guests.root_of(pid) and guests.inside(pid).call(registered, wanted, deadline_seconds=PLACE_SECONDS)
    except (Unavailable, OSError):
        return None
    inner = InnerPids(pid, proc)
    for folder, found in _meant(
        pid, ((Path(one), list(_ours(there, inner, owner.uid, proc))) for one, there in apart or ()), proc
    ):
        return ArmedJob(AgentFolder(folder, owner, guests, inside=pid), tuple(found))
    return None


def _ours(there: Iterable[Root], inner: InnerPids, uid: int, proc: Path) -> Iterator[Root]:
    """The roots of a place in a container, by our own numbers, as far as they are of its user."""
    for root in there:
        pid = inner.outer(root.pid, root.start_ticks)
        if pid is not None and _owner(pid, proc) == uid:
            yield Root(pid, root.start_ticks, next(_ancestors(pid, proc), 0))


def _own(homes: tuple[Path, ...]) -> Iterator[tuple[Path, list[Root]]]:
    return ((folder, list(roots(folder))) for folder in places(homes))


def _owner(pid: int, proc: Path) -> int | None:
    try:
        return os.stat(proc / str(pid)).st_uid
    except OSError:
        return None


def watching(folder: Path, homes: tuple[Path, ...] = HOMES) -> Path | None:
    """The control socket of the watcher of ours that writes this session now, if there is one."""
    for control in watchers(homes):
        try:
            session = ask(control, {"command": "status"}, REQUEST_DEADLINE_SECONDS).get("session")
        except (OSError, ValueError):
            continue
        if session and Path(session) == folder.absolute():
            return control
    return None


def _meant(pid: int, candidates: Iterable[tuple[Path, list[Root]]], proc: Path) -> Iterator[tuple[Path, list[Root]]]:
    """The places whose job has this process, or is started by it."""
    family = {pid, *_ancestors(pid, proc)}
    below = []
    for folder, found in candidates:
        pids = [root.pid for root in found]
        if family.intersection(pids):
            yield folder, found
        elif any(pid in _ancestors(one, proc) for one in pids):
            below.append((folder, found))
    if len(below) == 1:  # a shell above several runs means none of them
        yield from below


def _ancestors(pid: int, proc: Path) -> Iterator[int]:
    while pid > 1:
        try:
            pid = int(stat_fields(proc / str(pid))[1])
        except (OSError, IndexError):
            return
        if pid > 1:  # init is the ancestor of every process
            yield pid


def _listens(control: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(REQUEST_DEADLINE_SECONDS)
        try:
            _connect(connection, control)
        except OSError:
            return False
    return True


def _connect(connection: socket.socket, control: Path, of_root: bool = False) -> None:
    """Raises PermissionError where a process listens that could do less than we: a container's root may share our uid and memory.

    of_root: the listener has to be root's, and to be able to read our memory as it is.
    """
    connection.connect(_address(control))
    pid, uid = _peer(connection)
    if of_root:
        if uid != 0 or not _reads_all_memory(pid):
            raise PermissionError(1, "no watcher of root listens there", str(control))
    elif uid != os.getuid() or (os.geteuid() == 0 and not _could_do_all_that_we_can(pid)):
        raise PermissionError(1, "no watcher of ours listens there", str(control))


def _address(control: Path) -> str:
    """As the kernel takes it: a name without a file begins with a zero byte."""
    text = str(control)
    return f"\0{text[len(NO_FILE) :]}" if text.startswith(NO_FILE) else text


def _could_do_all_that_we_can(pid: int) -> bool:
    try:
        return is_ours(identity_of(pid))
    except Unavailable:
        return False


def _reads_all_memory(pid: int) -> bool:
    """True for root of the machine, or of our own container: another container's root lacks CAP_SYS_PTRACE."""
    try:
        status = parse_pairs(read_kernel_file(f"/proc/{pid}/status", 65536).decode("utf-8", "replace"))
        return bool(int(status["CapEff"], 16) >> CAP_SYS_PTRACE & 1)
    except (OSError, LookupError, ValueError):
        return False


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Pid and uid of the process at the other end: of a listener, the one that began to listen. 0 for a pid that we do not see."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return int(pid), int(uid)
