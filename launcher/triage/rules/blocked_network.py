"""A thread waits for bytes from a peer that sends nothing.

What it means
    A download, an object store, a tracker or a parameter server does not answer, and the call has no timeout.

How it is recognised
    The wait chain ends in recv, connect, accept or poll on a socket; the kernel says when the last byte came, and none came
    since. The peer is named.

What it is mistaken for
    A slow download: bytes arrive. A retry with backoff: new connections come and go. A rendezvous: its frames say so.

What to do next
    Ask the named peer; give the request a timeout.
"""

from perfwatch.probes.readings import Descriptor, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.chain import Chain
from perfwatch.triage.frames import show
from perfwatch.triage.hang import STRUCTURAL_SECONDS, hung, outlasts, temporal, wakes_soon, who
from perfwatch.triage.rule import Cause
from perfwatch.triage.verdict import Alternative, Outcome

UNSEEN = 0.78  # confidence without a stack, of one of several ranks: it may as well wait for its peers in a collective

CAUSE = Cause("blocked_network", "hung", "network", (Thread, Descriptor))


def judge(case: Case) -> Outcome:
    """Fires on a chain that ends in a silent socket."""
    for chain in case.still_chains:
        end = chain.end
        if "connection" in chain.through and end.still and not wakes_soon(case, end):
            return _served_by_the_job(case, chain)
        if end.kind != "network" or end.still is False or arrives(case, chain):
            continue
        socket = end.descriptor.socket if end.descriptor else None
        if socket is not None and socket.state == "LISTEN" and len(case.ranks) > 1:
            continue  # it serves: of several ranks the others tell whether it is missed
        peer = socket.peer if socket is not None and socket.peer else "its peer"
        received = socket.received_ago_seconds if socket is not None else None
        quiet = received if received is not None else end.silent_seconds or 0.0
        return hung(
            case,
            CAUSE.name,
            chain,
            owner=CAUSE.owner,
            summary=f"{who(chain)} waits for {_what(chain, peer, quiet)}",
            patience=temporal(case),
            silent=_silent(chain, received),
            ceiling=1.0 if end.node.stack is not None or len(case.ranks) == 1 else UNSEEN,
            alternatives=(Alternative(cause="starved_by_network", refuted_by="not one byte arrived meanwhile"),),
            next=(
                "ss -tnp | grep " + peer if socket is not None and socket.peer else "ss -tnp",
                "give the request a timeout",
            ),
        )
    return None


def _what(chain: Chain, peer: str, quiet: float) -> str:
    socket = chain.end.descriptor.socket if chain.end.descriptor else None
    if socket is not None and socket.state == "LISTEN":
        return f"{chain.awaited}, and nobody has for {quiet:.0f} s"
    return f"{peer}, which has sent nothing for {quiet:.0f} s"


def _served_by_the_job(case: Case, chain: Chain) -> Outcome:
    """The peer is a process of the job itself, which stands still."""
    return hung(
        case,
        CAUSE.name,
        chain,
        owner="user_code",
        summary=f"pid {chain.start.pid} at {show(chain.start.frame)} waits for {chain.links[0].waits_for}; "
        f"there {who(chain)} waits for {chain.awaited}",
        patience=STRUCTURAL_SECONDS if outlasts(case, chain.end) else temporal(case),
        alternatives=(Alternative(cause="blocked_child", refuted_by="it is talked to over the network"),),
        next=(f"py-spy dump --nonblocking --pid {chain.end.node.pid}", "give the request a timeout"),
    )


def arrives(case: Case, chain: Chain) -> bool:
    """Whether bytes came in on that socket while we looked."""
    end = chain.end
    if end.descriptor is None:
        return False
    counts = [
        one.reading.socket.received_bytes
        for one in case.history.series(Descriptor, end.node.pid, end.descriptor.fd, seconds=30.0)
        if one.reading.socket is not None and one.reading.socket.received_bytes is not None
    ]
    return len(counts) >= 2 and counts[-1] > counts[0]


def _silent(chain: Chain, received: float | None) -> float:
    """The socket remembers even where the thread polls; a connection younger than the wait has nothing to remember."""
    silent = chain.end.silent_seconds or 0.0
    return silent if received is None else min(silent, received) if chain.end.still and silent else received
