"""Whether a silent socket leads to torch's store: the client is C++ and leaves no frame, so its peer must tell."""

from perfwatch.triage.history import History
from perfwatch.triage.roles.job import TICKS_PER_SECOND, Job
from perfwatch.triage.roles.sights import STORE_THREAD
from perfwatch.triage.waits.node import Node
from perfwatch_probes import readings as r


def is_store(history: History, job: Job, node: Node, socket: r.Socket) -> bool:
    """Whether the other end is a TCPStore: it has that server's thread, or it is the job's MASTER_ADDR:MASTER_PORT."""
    if not socket.family.startswith("tcp"):
        return False
    if any(_serves(history, pid) for pid in socket.peer_pids):
        return True
    member = job.members.get(node.rank_pid or node.pid)
    port = member.process.environment.get("MASTER_PORT") if member else None
    return bool(port) and socket.peer.rpartition(":")[2] == port


def open_seconds(history: History, job: Job) -> float | None:
    """For how long the job's store has been there: who still waits for the first meeting has waited since about then.

    The store's server is a thread of one rank, made as that rank enters ``init_process_group``. None without one.
    """
    for member in job.ranks:
        thread, seen = _server(history, member.pid), history.latest(r.Process, member.pid)
        if thread is None or thread.start_ticks is None or seen is None or seen.reading.age_seconds is None:
            continue
        age = seen.reading.age_seconds + history.at - seen.at
        return age - (thread.start_ticks - seen.reading.start_ticks) / TICKS_PER_SECOND
    return None


def _serves(history: History, pid: int) -> bool:
    return _server(history, pid) is not None


def _server(history: History, pid: int) -> r.Thread | None:
    for key in history.of(r.Thread, pid):
        seen = history.latest(r.Thread, *key)
        if seen is not None and seen.reading.name.startswith(STORE_THREAD):
            return seen.reading
    return None
