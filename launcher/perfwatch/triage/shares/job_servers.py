"""A server of the job's own that the makers of its data ask over a connection: what it does is why they wait, not the network."""

from collections import Counter
from dataclasses import dataclass

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.moving.arriving import waited_on
from perfwatch.triage.moving.motion import motion, python_threads
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.data_makers import WINDOW_SECONDS
from perfwatch.triage.shares.profile import lasting
from perfwatch.triage.shares.starving import Starving
from perfwatch.triage.waits.node import Node, culprit, node_of
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Finding
from perfwatch_probes.readings import Descriptor

COMPUTING_SHARE = 0.5  # of a core: below it the server waits itself
CEILING = 0.9


@dataclass(frozen=True)
class Server:
    """``node``: its busiest thread; ``line``: where that is mostly; ``wants``: a share of a core, waiting for it included."""

    node: Node
    line: str | None
    wants: float

    @property
    def at(self) -> str:
        """`` at LINE``, where that is known."""
        return f" at {self.line}" if self.line else ""

    @property
    def computes(self) -> bool:
        """Whether it is behind because of what it computes."""
        return self.wants >= COMPUTING_SHARE


def server(case: Case, found: Starving) -> Server | None:
    """The process of the job to which most connections lead that the makers of a rank's data wait on; None where it is no such one."""
    asked: Counter[int] = Counter()
    for pid, tid in found.producers:
        for fd in waited_on(case.history, pid, tid, WINDOW_SECONDS):
            asked.update(_peers(case, pid, fd))
    makers = {pid for pid, _ in found.producers} | {rank.pid for rank in case.ranks}
    peer = next((pid for pid, _ in asked.most_common() if pid in case.job.members and pid not in makers), None)
    if peer is None or 2 * asked[peer] <= len(found.producers):
        return None
    tids = python_threads(case.history, peer) or [peer]
    shares = {tid: motion(case.history, peer, tid, WINDOW_SECONDS).wanted_share for tid in tids}
    busiest = max(tids, key=lambda tid: shares[tid])
    node = node_of(case.history, case.job, peer, busiest)
    line = lasting(case.history, peer, busiest, WINDOW_SECONDS).top_line()
    return Server(node, show(line or node.frame), shares[busiest])


def by_server(case: Case, cause: Cause, found: Starving, served: Server) -> Finding:
    """The workers wait for a server of the job that computes."""
    told = found.finding(
        case,
        cause,
        ceiling=CEILING,
        summary=found.summary(case, f"waiting for pid {served.node.pid} of the job, which computes{served.at}"),
        evidence=(case.saw("thread", f"pid {served.node.pid}", "computes", f"{served.wants:.0%} of a core", "rests"),),
        alternatives=(Alternative(cause="starved_by_network", refuted_by="who should answer computes meanwhile"),),
        next=(f"run more than one such server, or make it cheaper{served.at}: more workers wait for it all the same",),
    )
    return msgspec.structs.replace(told, culprits=(msgspec.structs.replace(culprit(served.node), frame=served.line),))


def _peers(case: Case, pid: int, fd: int) -> tuple[int, ...]:
    seen = case.history.latest(Descriptor, pid, fd)
    if seen is None:
        return ()
    return seen.reading.socket.peer_pids if seen.reading.socket is not None else seen.reading.writers
