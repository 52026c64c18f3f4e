"""A thread waits for bytes from a peer that sends nothing, or for a peer that takes nothing of what is sent to it."""

from shlex import quote

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.triage.moving.work import passed
from perfwatch.triage.patience import temporal, wakes_soon
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import TRAINING_TAGS
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import End, culprit
from perfwatch.triage.waits.other_end import ask, sends
from perfwatch.triage.waits.releasing import CONNECTION, GUESSED, PATIENT, TIMEOUT, at_the_peer, served_by_the_job
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Descriptor, Thread

LATELY_SECONDS = 30.0  # of which a byte says that the peer answers
UNKNOWN_PEER = 0.88  # who is silent for longer than the patience may compute all the same
UNSEEN = 0.78  # confidence without a stack, of one of several ranks: it may as well wait for its peers in a collective

CAUSE = Cause("blocked_network", "hung", "network", (Thread, Descriptor))


def judge(case: Case) -> Outcome:
    """Fires on a chain that ends in a silent socket."""
    for chain in case.still_chains:
        end = chain.end
        if CONNECTION in chain.through and end.still and not wakes_soon(case, end):
            return served_by_the_job(case, CAUSE.name, chain)
        if end.kind != "network" or end.still is False or arrives(case, chain):
            continue
        socket = end.descriptor.socket if end.descriptor else None
        if socket is not None and socket.state == "LISTEN" and len(case.ranks) > 1:
            continue  # it serves: of several ranks the others tell whether it is missed
        line = end.descriptor is not None and end.descriptor.kind == "tty"
        peer = socket.peer if socket is not None and socket.peer else chain.awaited if line else "its peer"
        sending = sends(end) is not None
        received = socket.received_ago_seconds if socket is not None and not sending else None
        silent = _silent(chain, received)
        quiet = received if received is not None else end.silent_seconds or 0.0
        far = at_the_peer(case, end)
        there = f"; there pid {far.pid} is at {show(far.frame)}" if far is not None else ""
        found = hung(
            case,
            CAUSE.name,
            chain,
            owner=CAUSE.owner,
            summary=f"{who(chain)} waits for {_what(chain, peer, quiet)}{there}",
            patience=temporal(case) * (PATIENT if line else 1.0),
            silent=silent,
            ceiling=GUESSED if line else _ceiling(case, chain, silent),
            alternatives=(
                Alternative(
                    cause="starved_by_network",
                    refuted_by=f"not one byte {'was taken' if sending else 'arrived'} meanwhile",
                ),
            ),
            next=_next(end, line),
        )
        return found if far is None else msgspec.structs.replace(found, culprits=(culprit(far), *found.culprits))
    return None


def _ceiling(case: Case, chain: Chain, silent: float) -> float:
    """What listens and has never trained is a server without visitors, as far as anybody can tell; what a peer does is not seen."""
    socket = chain.end.descriptor.socket if chain.end.descriptor else None
    if socket is not None and socket.state == "LISTEN" and not _trained(case, chain):
        return ONE_SOURCE
    if chain.end.node.stack is None and len(case.ranks) > 1:
        return UNSEEN
    return 1.0 if silent > PATIENT * temporal(case) else UNKNOWN_PEER


def _trained(case: Case, chain: Chain) -> bool:
    rank = case.job.members[chain.start.pid]
    steps = case.progress[rank.pid].steps
    return (steps is not None and steps.count > 0) or case.profile(rank).seen(*TRAINING_TAGS)


def _what(chain: Chain, peer: str, quiet: float) -> str:
    socket = chain.end.descriptor.socket if chain.end.descriptor else None
    if socket is not None and socket.state == "LISTEN":
        return f"{chain.awaited}; none has come for {quiet:.0f} s"
    if sends(chain.end) is not None:
        return f"{chain.awaited}, which has taken nothing for {quiet:.0f} s"
    return f"{peer}, which has sent nothing for {quiet:.0f} s"


def _next(end: End, line: bool) -> tuple[str, ...]:
    if line and end.descriptor is not None:
        return (f"fuser -v {quote(end.descriptor.target)}", "look at the device; read with a time limit (select)")
    return (*(ask(end) or ("ss -tnp",)), _gives_up(end) if sends(end) is not None else TIMEOUT)


def _gives_up(end: End) -> str:
    """Who may have stopped reading, and how a program gets over that."""
    reads = f"look at pid {end.others[0]}, which holds the other end, and " if end.others else ""
    return f"{reads}give the send a timeout (or let a thread of its own send, from a queue that may overflow)"


def arrives(case: Case, chain: Chain) -> bool:
    """Whether bytes came in on that socket while we looked, or were taken where the thread sends."""
    end = chain.end
    if end.descriptor is None:
        return False
    return passed(case.history, end.node.pid, end.descriptor.fd, LATELY_SECONDS, sent=sends(end) is not None) > 0


def _silent(chain: Chain, received: float | None) -> float:
    """The socket remembers even where the thread polls; a connection younger than the wait has nothing to remember."""
    silent = chain.end.silent_seconds or 0.0
    return silent if received is None else min(silent, received) if chain.end.still and silent else received


RULES = (Rule(CAUSE, judge),)
