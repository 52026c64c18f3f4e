"""Waits for a peer: for bytes of a connection, or for the other ranks at the rendezvous."""

from collections.abc import Collection
from dataclasses import replace
from itertools import islice

from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import how_it_ended
from perfwatch.triage.graph.decide import is_awaited, wakes_soon
from perfwatch.triage.hang import hung, listed, named, numbered, partners, rank_of, silent_seconds, turn_of, who
from perfwatch.triage.independence import MAY_COME, ONE_SOURCE
from perfwatch.triage.moving.memory import has_trained
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch.triage.moving.work import waited_on
from perfwatch.triage.patience import STRUCTURAL_SECONDS, long_timeout, temporal
from perfwatch.triage.ranks.groups import SHOWN
from perfwatch.triage.roles.placement import RankGaps
from perfwatch.triage.rule import Cause, Facts, Rule
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import End, Node, culprit, node_of
from perfwatch.triage.waits.other_end import answering, ask, open_seconds, sends
from perfwatch.triage.waits.threads import OF_GLOO
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Culprit, Outcome, doing
from perfwatch_probes.readings import Descriptor, Stack, Thread

BLOCKED_NETWORK = Cause("blocked_network", "hung", "network", (Thread, Descriptor))

# Times the patience: who is asked is a device.
CONNECTION = "connection"  # an edge over a network's socket; those over pipes and sockets of one host bear other names
GLOO_CONNECTIONS = "gloo_tcp"  # the thread that carries what goes over them (gloo, transport/tcp/loop.cc)
BY_THE_PROGRAM = replace(BLOCKED_NETWORK, owner="user_code")
SENDS_NOTHING = BLOCKED_NETWORK.line("""
    {who} waits for {peer}, which has sent nothing for {quiet:time}[{far:if}; there pid {far.pid} is at {there}]
    - not starved_by_network: no byte arrived meanwhile
    - next: [fuser -v {tty:quote}]
    - next: [{tty:if}look at the device; read with a time limit (select)][{request:if}give the request a timeout]
""")
TAKES_NOTHING = BLOCKED_NETWORK.line("""
    {who} waits for {awaited}, which has read nothing for {quiet:time}[{far:if}; there pid {far.pid} is at {there}]
    - not starved_by_network: no byte was read meanwhile
    - next: [look at pid {holder}, which holds the other end, and ]give the send a timeout (or let a thread of its own send, from a queue
      that may overflow)
""")
NO_VISITORS = BLOCKED_NETWORK.line("""
    {who} waits for {awaited}; none has come for {quiet:time}[{far:if}; there pid {far.pid} is at {there}]
    - not starved_by_network: no byte arrived meanwhile
    - next: give the request a timeout
""")
SERVED_BY_THE_JOB = BY_THE_PROGRAM.line("""
    pid {start} at {line} waits for {what}; there {who} {does}
    - not blocked_child: the wait is for an answer over the network
    - next: give the request a timeout
    - next: perfwatch capture stacks {pid}
""")
IN_A_CIRCLE = BY_THE_PROGRAM.line("""
    {who} waits for {what}, and {others} in turn for it: none of them sends
    - not blocked_child: the wait is for an answer over the network
    - next: give the request a timeout
    - next: perfwatch capture stacks {pid}
""")

BLOCKED_RENDEZVOUS = Cause("blocked_rendezvous", "hung", "scheduler", (Thread, Stack))
NOT_ALL_CAME = BLOCKED_RENDEZVOUS.line("""
    {who} waits for {what}
    - saw job of ranks: ranks present | {shown} | all of them
    - saw store of job if open_for: has been open | for {open_for:time}
    - not starting: no further rank appeared meanwhile
""")
KEPT_AWAY = replace(BLOCKED_RENDEZVOUS, owner="user_code").line("""
    rank {late} has not joined the rendezvous: {does}; {victims} for it
    - saw job of ranks: ranks present | {shown} | all of them
    - saw store of job if open_for: has been open | for {open_for:time}
    - not starting: no further rank appeared meanwhile
    - next: perfwatch capture stacks {at_it}
""")


# A connection


def blocked_network(case: Case) -> Outcome:
    """Fires on a chain that ends in a silent socket."""
    for chain in case.still_chains:
        end = chain.end
        if CONNECTION in chain.through and end.still and end.kind != "lock" and not wakes_soon(case, end):
            return _served_by_the_job(case, chain)
        if end.kind != "network" or end.still is False:
            continue
        socket = end.descriptor.socket if end.descriptor else None
        listens = socket is not None and socket.state == "LISTEN"
        if listens and len(case.ranks) > 1:
            continue  # it serves: of several ranks the others tell whether it is missed
        # It serves, and may have no visitors, unless those that it has wait for it.
        pid = chain.start.pid
        serves = listens and not has_trained(case, case.job.members[pid]) and not is_awaited(case, pid)
        tty = end.descriptor.target if end.descriptor is not None and end.descriptor.kind == "tty" else None
        peer = socket.peer if socket is not None and socket.peer else chain.awaited if tty else "its peer"
        sending = sends(end) is not None
        received = socket.received_ago_seconds if socket is not None and not sending else None
        far = at_the_peer(case, end)
        return hung(
            case,
            NO_VISITORS if listens else TAKES_NOTHING if sending else SENDS_NOTHING,
            chain,
            patience=long_timeout(case) if tty else temporal(case),
            silent=_silent(chain, received),
            ceiling=ONE_SOURCE if serves else MAY_COME if listens else None,
            next=() if tty else ask(end) or ("ss -tnp",),
            culprits=(*([culprit(far)] if far is not None else []), *chain.culprits()),
            **Facts(peer=peer, quiet=received if received is not None else end.silent_seconds or 0.0, far=far, tty=tty),
            **Facts(there=show(far.frame) if far is not None else None, holder=end.others[0] if end.others else None),
            request=tty is None,
        )
    return None


def _silent(chain: Chain, received: float | None) -> float:
    """The socket remembers even where the thread polls; a connection younger than the wait has nothing to remember."""
    silent = chain.end.silent_seconds or 0.0
    return silent if received is None else min(silent, received) if chain.end.still and silent else received


def _served_by_the_job(case: Case, chain: Chain) -> Outcome:
    """The peer is a process of the job itself, which stands still."""
    if chain.end.kind == "cycle":
        return _in_a_circle(case, chain)
    return hung(case, SERVED_BY_THE_JOB, chain, line=show(chain.start.frame), what=chain.links[0].waits_for)


def at_the_peer(case: Case, end: End) -> Node | None:
    """Who should answer, where the peer is one process of the job, and one thread of it is known to be at a line of the program.

    One that waits for visitors owes nothing, for all that is known.
    """
    inside = tuple(pid for pid in end.others if pid != end.node.pid and pid in case.job.members)
    found = [one for one in answering(case.history, case.job, inside) if one.frame is not None]
    found = [one for one in found if one.wait is None or one.wait.kind != "accept"]
    return found[0] if len(found) == 1 else None


def _in_a_circle(case: Case, chain: Chain) -> Outcome:
    """The peer waits for bytes, too, and in the end for those of this process."""
    others = partners(case, chain)
    return hung(
        case,
        IN_A_CIRCLE,
        chain,
        patience=STRUCTURAL_SECONDS,
        evidence=tuple(
            case.saw("thread", f"pid {one.pid}", f"waits, too, at {show(one.frame)}", "for bytes", "one of them sends")
            for one in others[:4]
        ),
        ceiling=None if all(one.stack is not None for one in (chain.end.node, *others)) else MAY_COME,
        culprits=map(culprit, (chain.end.node, *others)),
        **Facts(what=turn_of(chain), others=", ".join(named(one, chain.end.node.pid) for one in others)),
    )


# The rendezvous


def blocked_rendezvous(case: Case) -> Outcome:
    """Fires on a training thread that stays in the rendezvous."""
    for rank in case.ranks:
        chain = case.chains[rank.pid]
        if chain.end.kind != "rendezvous" or case.progress[rank.pid].kind == "moving" or _has_met(case, chain):
            continue
        late = [chain for chain in case.chains.values() if chain.end.kind not in ("rendezvous", "collective")]
        stand = (one.start.motion.frozen is True and all(end.still for end in one.ends) for one in late)
        if not all(stand):
            return None  # a rank that is there is elsewhere, and moves or is worked for: it may come yet
        seen, size = len(case.ranks), case.job.world_size
        # a key that is awaited later says nothing of when the waiting began
        open_for = None if chain.end.detail == "store" else open_seconds(case.history, case.job)
        present = sorted(r.rank for r in case.ranks if r.rank is not None)
        lacking = "" if size is None or seen >= size else f"; {absent(case, present, seen, size)}"
        ended, has_ended = departed(case)
        gone = missing(present, seen, size)
        shown = f"{present or seen} of {size or 'an unknown number'}"
        there = [one for one in case.chains.values() if one.end.kind == "rendezvous"]
        facts = Facts(shown=shown, open_for=open_for, what=_missed_at_rendezvous(case, chain) + lacking + has_ended)
        if late:
            first, does = rank_of(late[0]), f"{who(late[0])} {doing(late[0].awaited)}"
            facts |= Facts(late=first, does=does, victims=listed(there), at_it=late[0].end.node.pid)
        return hung(
            case,
            KEPT_AWAY if late else NOT_ALL_CAME,
            chain,
            patience=temporal(case),
            silent=max(silent_seconds(case, chain), open_for or 0.0),
            next=() if late else _next_at_rendezvous(case, chain),
            culprits=[one for chain in late for one in chain.culprits()]
            or ((ended or blamed(case, gone)) if ended or gone else None),
            links=[link for one in ([chain, *late] if late else there) for link in one.links],
            **facts,
        )
    return None


def _has_met(case: Case, chain: Chain) -> bool:
    """True if a rank waits for a key of the store while others are in a collective: all have met, and none is missing."""
    return chain.end.detail == "store" and any(other.end.kind == "collective" for other in case.chains.values())


def _next_at_rendezvous(case: Case, chain: Chain) -> tuple[str, ...]:
    if not whole(case) and (unseen := case.lacks("ranks")) is not None and unseen.advice:
        return (unseen.advice,)
    if not whole(case) and have_met(case):
        return ("check the log of the rank that ended",)
    if chain.end.detail == "store":
        return ("find the rank that should have set the key: perfwatch capture stacks shows where each is",)
    compare = "compare MASTER_ADDR, MASTER_PORT and WORLD_SIZE of every rank"
    return (compare,) if whole(case) else ("start the missing rank", compare)


# Ranks of which nothing was seen


def whole(case: Case) -> bool:
    """True if all ranks that the job says it has are seen, and it says how many."""
    return case.job.world_size is not None and len(case.ranks) >= case.job.world_size


def missing(present: list[int], seen: int, size: int | None) -> RankGaps:
    """The ranks that are not here, where all that are have their numbers; else none."""
    ranks = RankGaps(present, size)
    return ranks if len(ranks) == (size or 0) - seen else RankGaps((), 0)


def have_met(case: Case) -> bool:
    """True if all ranks were there once: torch makes gloo's workers once each is connected to every other (ProcessGroupGloo.cpp)."""
    return any(one.name.startswith(OF_GLOO) for one in _threads(case))


def blamed(case: Case, ranks: Collection[int]) -> tuple[Culprit, ...]:
    """The ranks that should be here; none of a job on several machines, or of one that is not seen whole."""
    here = {rank.process.local_world_size for rank in case.ranks}
    elsewhere = any(size is not None and size < (case.job.world_size or 0) for size in here)
    if elsewhere or case.lacks("ranks"):
        return ()
    return tuple(Culprit(pid=0, rank=rank) for rank in islice(ranks, SHOWN))


def departed(case: Case) -> tuple[tuple[Culprit, ...], str]:
    """The ranks that have ended while others are here, and that in words: ``; rank 2 (pid 7) has ended (exited with code 0)``."""
    ended = [rank for rank in case.job.ranks if not rank.alive][:SHOWN]
    told = ((rank, how_it_ended(case.history, rank.pid)) for rank in ended)
    words = (f"; rank {rank.rank} (pid {rank.pid}) has ended{f' ({how})' if how else ''}" for rank, how in told)
    return tuple(culprit(node_of(case.history, case.job, rank.pid)) for rank in ended), "".join(words)


def absent(case: Case, present: list[int], seen: int, size: int) -> str:
    """That some are not there, in words: have not come, or were there and are gone."""
    where = "on another machine, or not started"
    if unseen := case.lacks("ranks"):
        where = f"not seen here: {unseen.reason}"
    elif have_met(case):
        where = "gone since the rendezvous" + (
            "" if _lead_nowhere_else(case) else ", or where it cannot be seen from here"
        )
    ranks = missing(present, seen, size)
    if not ranks or len(ranks) > SHOWN:
        return f"{size - seen} of {size} ranks are {where}"
    return f"{numbered(list(ranks))} of {size} {'is' if len(ranks) == 1 else 'are'} {where}"


def _missed_at_rendezvous(case: Case, chain: Chain) -> str:
    """What a rank waits for, where none is seen to stand elsewhere."""
    if chain.end.detail == "store":
        return "a key in the store that no rank has set"
    if not whole(case):
        return "the other ranks to join"
    places: dict[str, int | None] = {}
    for rank in case.ranks:
        names = rank.process.environment
        places.setdefault(f"{names.get('MASTER_ADDR', '?')}:{names.get('MASTER_PORT', '?')}", rank.rank)
    apart = ", ".join(f"rank {rank} at {place}" for place, rank in list(places.items())[:SHOWN])
    told = f", and their rendezvous addresses differ: {apart}" if len(places) > 1 else ""
    return f"the others, though all {len(case.ranks)} ranks are here{told}"


def _lead_nowhere_else(case: Case) -> bool:
    """True if every connection of gloo's that was seen leads to a rank that is here: it keeps one to each that lives."""
    history = case.history
    loops = [(one.pid, one.tid) for one in _threads(case) if one.name.startswith(GLOO_CONNECTIONS)]
    watched = {(pid, fd) for pid, tid in loops for fd in waited_on(history, pid, tid, WINDOW_SECONDS)}
    files = [history.latest(Descriptor, *key) for key in watched]
    sockets = [file.reading.socket for file in files if file is not None and file.reading.socket is not None]
    established = [one for one in sockets if one.state == "ESTABLISHED"]
    return bool(sockets) and all(case.job.members.keys() & one.peer_pids for one in established)


def _threads(case: Case) -> list[Thread]:
    looks = [case.history.latest(Thread, *key) for rank in case.ranks for key in case.history.of(Thread, rank.pid)]
    return [look.reading for look in looks if look is not None]


RULES = (Rule(BLOCKED_NETWORK, blocked_network), Rule(BLOCKED_RENDEZVOUS, blocked_rendezvous))
