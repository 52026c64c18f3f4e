"""Whether a silent socket leads to torch's store: the client is C++ and leaves no frame, so its peer must tell."""

from perfwatch.probes import readings as r
from perfwatch.triage.history import History
from perfwatch.triage.job import Job
from perfwatch.triage.node import Node

STORE_THREAD = "pt_tcpstore"  # the name that torch gives the thread of a TCPStore's server (torch 2.1 to 2.13)


def is_store(history: History, job: Job, node: Node, socket: r.Socket) -> bool:
    """Whether the other end is a TCPStore: it has that server's thread, or it is the job's MASTER_ADDR:MASTER_PORT."""
    if not socket.family.startswith("tcp"):
        return False
    if any(_serves(history, pid) for pid in socket.peer_pids):
        return True
    member = job.members.get(node.rank_pid or node.pid)
    port = member.process.environment.get("MASTER_PORT") if member else None
    return bool(port) and socket.peer.rpartition(":")[2] == port


def _serves(history: History, pid: int) -> bool:
    return any(
        (seen := history.latest(r.Thread, *key)) is not None and seen.reading.name.startswith(STORE_THREAD)
        for key in history.entities(r.Thread)
        if key[0] == pid
    )
