"""Where NCCL's RAS service of a job listens: by its environment, and by who holds the socket."""

import contextlib
from collections.abc import Collection, Iterable, Mapping

from perfwatch_probes.filesystem import Absent, Filesystem
from perfwatch_probes.holders import socket_inodes
from perfwatch_probes.private import parse_environment, read_environment
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.sock_diag import Connection
from perfwatch_probes.sockets import listening

DEFAULT_ADDRESS = "localhost:28028"
DISABLED_ADVICE = "start the job without NCCL_RAS_ENABLE=0, with NCCL 2.24 or newer (torch 2.7 and newer bring it)"
OWN_PORT_ADVICE = "start it with perfwatch run, or with NCCL_RAS_ADDR=localhost:PORT, a port of its own"
MOST_ASKED = 64  # processes whose open files are looked through for the port


def addresses(filesystem: Filesystem, pids: Collection[int]) -> list[tuple[tuple[str, int], bool]]:
    """Where the job's service listens, and whether only the job's processes listen on that port.

    The host is the one that our socket is bound to: "localhost" is 127.0.0.1 for one job and ::1 for another.
    Raises Absent where the job has none, Unavailable where its port is another job's.
    """
    named = list(dict.fromkeys(_named(filesystem, pids)))
    open_ports = listening(filesystem, next(iter(pids)))
    held = _held(filesystem, pids)
    wanted = [_split(address) for address in named]
    found = [(one, _whole(open_ports, one[1], held)) for one in wanted if any(_port(c) == one[1] for c in open_ports)]
    # The program may have set NCCL_RAS_ADDR itself: no environment shows that, its sockets do.
    own = [(one, whole) for one, whole in found if whole is not None] or [
        (("localhost", port), _whole(open_ports, port, held) is True) for port in _shared(open_ports, held)
    ]
    if own:
        mine = [connection.local for connection in open_ports if connection.inode in held]
        return list(dict.fromkeys(((bound, one[1]), whole) for one, whole in own for bound in _bound(mine, *one)))
    if found:
        raise Unavailable(
            f"{named[0]}, where NCCL's RAS service of this job would answer, belongs to other processes",
            OWN_PORT_ADVICE,
        )
    raise Absent("no process of the job offers NCCL's RAS service")


def _named(filesystem: Filesystem, pids: Iterable[int]) -> Iterable[str]:
    """What the environment of the job says; the default where it says nothing."""
    for pid in list(pids)[:MOST_ASKED]:
        try:
            variables = parse_environment(read_environment(filesystem, pid))
        except Unavailable:
            continue
        if variables.get("NCCL_RAS_ENABLE") == "0":
            raise Absent("NCCL's RAS service is switched off in the job (NCCL_RAS_ENABLE=0)", DISABLED_ADVICE)
        if named := variables.get("NCCL_RAS_ADDR"):
            yield named
    yield DEFAULT_ADDRESS


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]") or "localhost", int(port) if port.isdecimal() else 0


def _bound(listeners: Iterable[str], host: str, port: int) -> list[str]:
    """The addresses on which those listen; ``host`` where that is every address."""
    parts = (one.rpartition(":") for one in listeners)
    hosts = [one.strip("[]") for one, _, number in parts if number == str(port)]
    return list(dict.fromkeys(host if one in ("0.0.0.0", "::") else one for one in hosts))


def _port(connection: Connection) -> int:
    return int(connection.local.rpartition(":")[2] or 0)


def _held(filesystem: Filesystem, pids: Collection[int]) -> dict[int, int]:
    """By inode, the process of the job that holds the socket; empty where its open files may not be seen."""
    found: dict[int, int] = {}
    for pid in list(pids)[:MOST_ASKED]:
        with contextlib.suppress(Unavailable):
            found |= dict.fromkeys(socket_inodes(filesystem, pid), pid)
    return found


def _whole(open_ports: Iterable[Connection], port: int, held: Mapping[int, int]) -> bool | None:
    """True if all that listen on a port are the job's, False if some are, None if none is."""
    mine = [connection.inode in held for connection in open_ports if _port(connection) == port]
    return None if not any(mine) else all(mine)


def _shared(open_ports: Iterable[Connection], held: Mapping[int, int]) -> list[int]:
    """Ports on which two or more processes of the job listen, each with a socket of its own: nothing else does that."""
    holders: dict[int, set[int]] = {}
    for connection in open_ports:
        if connection.inode in held:
            holders.setdefault(_port(connection), set()).add(held[connection.inode])
    return sorted(port for port, pids in holders.items() if len(pids) >= 2)
