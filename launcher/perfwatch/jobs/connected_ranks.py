"""Ranks of one training that no environment variable identifies: TCP connections between them show that they belong together.

A custom launcher may pass rank numbers on the command line. Its ranks meet in a file or a store, and each has a connection to
others. The trainings of a sweep have none.
"""

from collections.abc import Sequence

from perfwatch_probes.deadline import Caller
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.holders import socket_inodes
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.sockets import LOOK_DEADLINE_SECONDS, read_table


def circles(filesystem: Filesystem, child: Caller, pids: Sequence[int]) -> list[tuple[int, ...]]:
    """These processes of one network namespace, in the circles that TCP connections join; in their order, some alone.

    Cost: a read of the namespace's table, 4 ms or less.
    """
    try:
        table = child.call(read_table, filesystem, pids[0], deadline_seconds=LOOK_DEADLINE_SECONDS)
        owners = {inode: pid for pid in pids for inode in socket_inodes(filesystem, pid)}
    except Unavailable:
        return [(pid,) for pid in pids]
    ends = {
        (one.local, one.peer): owners[one.inode]
        for one in table.connections
        if one.family.startswith("tcp") and one.state != "LISTEN" and one.inode in owners
    }
    circle = {pid: {pid} for pid in pids}
    for (local, peer), pid in ends.items():
        other = ends.get((peer, local), pid)
        if other not in circle[pid]:
            together = circle[pid] | circle[other]
            circle.update(dict.fromkeys(together, together))
    return list(dict.fromkeys(tuple(one for one in pids if one in circle[pid]) for pid in pids))
