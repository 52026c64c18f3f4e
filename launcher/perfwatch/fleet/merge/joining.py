"""What several hosts say of one thing, joined: the two ends of a connection, the members of a communicator."""

from collections.abc import Iterator

import msgspec

from perfwatch.recording.recording import Record
from perfwatch_probes import readings as r

_LOOPBACK = ("127.", "[::1]", "::1", "localhost")

Members = dict[tuple[str, int], int]  # by communicator and rank in it, the process


def own_members(reading: r.Communicator, base: int, members: Members) -> r.Communicator:
    """A host's answer with the processes that it sees itself numbered as in the merged recording; they are noted in ``members``."""
    placed = []
    for member in reading.members:
        if member.local and member.pid is not None:
            members[reading.communicator, member.rank] = base + member.pid
            member = msgspec.structs.replace(member, pid=base + member.pid)
        placed.append(member)
    return msgspec.structs.replace(reading, members=tuple(placed))


def join(records: list[Record], members: Members) -> Iterator[Record]:
    """The same records: the process that has the same two addresses the other way round is the peer, and each host's members are known.

    Of one communicator one host's answers are kept, of those that tell of the most members: all hosts are told the same.
    """
    ends = _ends(records)
    told: dict[str, int] = {}
    for record in records:
        if isinstance(record.reading, r.Communicator):
            told[record.reading.communicator] = max(
                told.get(record.reading.communicator, 0), len(record.reading.members)
            )
    for record in records:
        reading = record.reading
        if isinstance(reading, r.Communicator):
            if len(reading.members) == told[reading.communicator]:
                yield msgspec.structs.replace(record, reading=_seated(reading, members))
        elif isinstance(reading, r.Descriptor) and _crosses(reading):
            yield msgspec.structs.replace(record, reading=_connected(reading, ends))
        else:
            yield record


def _seated(reading: r.Communicator, members: Members) -> r.Communicator:
    seated = tuple(
        msgspec.structs.replace(member, local=True, pid=members[reading.communicator, member.rank])
        if (reading.communicator, member.rank) in members
        else member
        for member in reading.members
    )
    return msgspec.structs.replace(reading, members=seated)


def _ends(records: list[Record]) -> dict[tuple[str, str], int]:
    ends: dict[tuple[str, str], int] = {}
    for record in records:
        reading = record.reading
        if isinstance(reading, r.Descriptor) and reading.socket is not None and _crosses(reading):
            ends[reading.socket.local, reading.socket.peer] = reading.pid
    return ends


def _connected(reading: r.Descriptor, ends: dict[tuple[str, str], int]) -> r.Descriptor:
    socket = reading.socket
    far = ends.get((socket.peer, socket.local)) if socket is not None else None
    if socket is None or far is None or socket.peer_pids:
        return reading
    return msgspec.structs.replace(reading, socket=msgspec.structs.replace(socket, peer_pids=(far,)))


def _crosses(descriptor: r.Descriptor) -> bool:
    socket = descriptor.socket
    if socket is None or not socket.family.startswith("tcp") or not socket.local or not socket.peer:
        return False
    return not socket.peer.startswith(_LOOPBACK)
