"""What every rule about a hang shares: patience by the end of the chain, independent witnesses, and the finding itself."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from perfwatch.text import duration
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import how_it_ended
from perfwatch.triage.independence import ONE_SOURCE, certainty_of_a_hang
from perfwatch.triage.moving.motion import moves
from perfwatch.triage.patience import DECISIVE_SECONDS, STRUCTURAL_SECONDS, settles_in
from perfwatch.triage.ranks.groups import SHOWN
from perfwatch.triage.rule import Cause
from perfwatch.triage.waits import outside
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import RUNS, Node
from perfwatch.triage.waits.other_end import sends, untaken
from perfwatch.triage.words.frames import is_named, is_user, show
from perfwatch.verdict import Abstention, Alternative, Culprit, Evidence, Finding, Link, Outcome, doing
from perfwatch_probes.readings import Frame

COMPARE = "compare the named lines: which condition sends the ranks apart?"


def witnesses(case: Case, chain: Chain) -> tuple[Evidence, ...]:
    """What shows that the end does not move, one piece for each kind of witness."""
    found = (look(case, chain) for look in (_stack, _thread, _syscall, _socket, _process, _steps))
    return tuple(one for one in found if one is not None)


def _shown_by(chain: Chain) -> tuple[Node, str]:
    """The thread that does not move, and its name; of something dead, what is left is the one that waits for it."""
    node = chain.start if chain.end.kind == "dead" else chain.end.node
    return node, f"pid {node.pid}" if node.tid == node.pid else f"pid {node.pid} thread {node.tid}"


def _stack(case: Case, chain: Chain) -> Evidence | None:
    node, entity = _shown_by(chain)
    if node.motion.samples < 2 or node.motion.distinct > 1:
        return None
    alike = (
        f"{node.motion.samples} of {node.motion.samples} samples alike over {duration(max(node.motion.seconds, 0.0))}"
    )
    return case.saw("stack", entity, f"stays at {show(node.frame)}", alike, "lines change")


def _thread(case: Case, chain: Chain) -> Evidence | None:
    node, entity = _shown_by(chain)
    ago, share = node.motion.ran_ago_seconds, node.motion.run_share
    if ago is not None and ago >= DECISIVE_SECONDS:
        claim, observed = "does not run", f"last ran {duration(ago)} ago (kernel)"
    elif node.motion.frozen and share is not None:
        claim, observed = (
            "does not run",
            f"{share:.2%} of a core, {node.motion.switches_per_second or 0:.1f} wake-ups/s",
        )
    else:
        return None
    return case.saw("thread", entity, claim, observed, "runs within each step", node.thread_at)


def _syscall(case: Case, chain: Chain) -> Evidence | None:
    node, entity = _shown_by(chain)
    if node.wait is None:
        return None
    until = ", no timeout" if node.wait.forever else ""
    if node.wait.remaining_seconds is not None:
        until = "" if node.wait.kind == "sleep" else f", timeout in {duration(node.wait.remaining_seconds)}"
    observed = f"{doing(chain.said_of(node))}{until}"
    return case.saw(
        "syscall", entity, f"is blocked in {node.wait.call}", observed, "returns within a step", node.thread_at
    )


def _socket(case: Case, chain: Chain) -> Evidence | None:
    """Of the connection at the end of the chain: what is not taken there, or when the last byte came."""
    node, descriptor = _shown_by(chain)[0], chain.end.descriptor
    if descriptor is None:
        return None
    sending, socket = sends(chain.end), descriptor.socket
    if sending is not None and (counted := untaken(sending)):
        claim, expected = f"{sending.peer or 'the other end'} does not take what is sent", "it is taken at once"
    elif socket is not None and (ago := socket.received_ago_seconds) is not None:
        claim, expected = f"nothing arrives from {socket.peer}", "bytes arrive"
        counted = f"last byte {duration(ago)} ago"
    else:
        return None
    return case.saw("socket", f"pid {node.pid} fd {descriptor.fd}", claim, counted, expected, node.thread_at)


def _process(case: Case, chain: Chain) -> Evidence | None:
    if chain.end.kind != "dead":
        return None
    pid = chain.end.node.pid
    how = chain.end.detail or how_it_ended(case.history, pid) or "ended, or a zombie"
    return case.saw("process", f"pid {pid}", "is gone", how, "alive")


def _steps(case: Case, chain: Chain) -> Evidence | None:
    steps = case.progress[chain.start.pid].steps if chain.start.pid in case.progress else None
    if steps is None or steps.ago_seconds is None or not steps.late:
        return None
    observed = f"last step {steps.count} was {duration(steps.ago_seconds)} ago"
    each = f"a step each {duration(steps.median_seconds, 3)}" if steps.median_seconds is not None else "steps are made"
    return case.saw("steps", f"pid {chain.start.pid}", "makes no step", observed, each)


def silent_seconds(case: Case, chain: Chain) -> float:
    """How long the chain has been silent: its end's silence, and never longer than since the last step."""
    silent = chain.end.silent_seconds or 0.0
    progress = case.progress.get(chain.start.pid)
    ago = progress.steps.ago_seconds if progress is not None and progress.steps is not None else None
    return silent if ago is None else min(silent, ago) if silent else ago


def hung(
    case: Case,
    cause: Cause,
    chain: Chain,
    *,
    summary: str,
    patience: float,
    owner: str = "",
    silent: float | None = None,
    evidence: tuple[Evidence, ...] = (),
    but: Mapping[str, str] | None = None,
    next: tuple[str, ...] = (),
    ceiling: float = 1.0,
    culprits: Iterable[Culprit] | None = None,
    links: Iterable[Link] | None = None,
) -> Finding:
    """A hang with its chain, its witnesses and its countdown.

    The confidence follows from how many independent sources show that nothing moves. What stood for as long as the samples of the hosts
    lie apart stood in all of them at once. A process outside of the job that holds a lock is watched first.

    Args:
        but: the causes that it is not, and why.
        ceiling: of the confidence, where a rule infers rather than sees.
        culprits: where they are not the ends of the chain.
        links: where more is to be shown than the chain.
    """
    shown = evidence + witnesses(case, chain)
    waited = silent_seconds(case, chain) if silent is None else silent
    moved = moves(case.history, chain.start.pid, chain.start.tid).ago_seconds
    apart = (chain.start.pid, chain.start.tid) != (chain.end.node.pid, chain.end.node.tid)
    if moved is not None and apart and chain.start.wait is not None:
        waited = min(waited, moved)  # whatever the end does: until then the training thread was unblocked now and then
    left = max(patience, case.apart_seconds) - waited
    decides_in = max(0.0, left, outside.unwatched_seconds(case, chain.end), settles_in(case, chain))
    return Finding(
        cause=cause.name,
        state="hung",
        summary=summary,
        confidence=min(certainty_of_a_hang(shown), ceiling, outside.ceiling(case, chain.end)),
        owner=owner or cause.owner,
        culprits=chain.culprits() if culprits is None else tuple(culprits),
        wait_chain=chain.links if links is None else tuple(links),
        evidence=shown,
        alternatives=tuple(Alternative(cause=name, refuted_by=why) for name, why in (but or {}).items()),
        next=next,
        silent_seconds=round(waited, 1),
        decides_in_seconds=round(decides_in, 1),
    )


def nearest(outcomes: Iterable[Outcome]) -> Outcome:
    """Of what a rule says of each rank: the first finding that is sure now, or else the one that needs least patience.

    A rank of which little can be told must not hide the others, so what rests on one source gives way, and an abstention is the
    last resort.
    """
    found: list[Finding] = []
    lacking: Abstention | None = None
    for one in outcomes:
        if isinstance(one, Abstention):
            lacking = lacking or one
        elif one is not None:
            if one.decides_in_seconds <= 0 and one.confidence > ONE_SOURCE:
                return one
            found.append(one)
    return min(found, key=lambda one: one.decides_in_seconds, default=lacking)


def who(chain: Chain) -> str:
    """The end of the chain as the subject of a sentence."""
    node = chain.end.node
    at = f" at {show(node.frame)}" if node.frame else ""
    rank = f"rank {node.rank}'s " if node.rank is not None else ""
    if node.role == "worker":
        return f"{rank}DataLoader worker {node.pid}{at}"
    if node.role in ("pool_worker", "child", "compile"):
        return f"{rank}child process {node.pid}{at}"
    thread = f"thread {node.name or node.tid}" if node.tid != node.pid else "main thread"
    return f"{rank}{thread} of pid {node.pid}{at}"


def named(node: Node, pid: int) -> str:
    """A thread with its line, as seen from process ``pid``: ``thread reader at read (data.py:7)``."""
    where = "" if node.pid == pid else f" of pid {node.pid}"
    thread = f"thread {node.name or node.tid}" if node.tid != node.pid else "the main thread"
    return f"{thread}{where}" + (f" at {show(node.frame)}" if node.frame is not None else "")


def with_loop(found: Finding, node: Node, frame: Frame | None) -> Finding:
    """The finding with the frame of the loop as its culprit, if the samples stand in functions that the loop calls."""
    if frame is not None and not is_user(frame):
        return msgspec.structs.replace(
            found, summary=f"{found.summary}; a loop in a library keeps running, {show(frame)}"
        )
    if frame is None or node.frame is None or frame.function == node.frame.function or not is_named(frame):
        return found
    culprits = tuple(
        msgspec.structs.replace(one, frame=show(frame)) if one.frame == show(node.frame) else one
        for one in found.culprits
    )
    return msgspec.structs.replace(
        found,
        culprits=culprits,
        summary=f"{found.summary}; the loop at {show(frame)} keeps running",
        next=look_at(frame),
    )


def stacks_of(pid: int, *options: str) -> str:
    """The command that shows where every thread of a process is; perfwatch itself is always there."""
    return " ".join(("perfwatch capture stacks", str(pid), *options))


def look_at(frame: Frame | None) -> tuple[str, ...]:
    """The next step for a thread in a loop."""
    return (f"look at {show(frame)}: what would end that loop?",)


# Hangs of several ranks


@dataclass(frozen=True)
class Place:
    """Where one rank is: in which call, as far as that is known, and at which line."""

    rank: int | None
    pid: int
    call: str
    line: str | None = None
    host: str | None = None

    @classmethod
    def of(cls, chain: Chain, call: str = "") -> "Place":
        """Where its stack shows it."""
        return cls(chain.start.rank, chain.start.pid, call, show(chain.start.frame or chain.end.node.frame))

    def __str__(self) -> str:
        """``all_reduce 12 at step (train.py:7)``."""
        return f"{self.call} at {self.line}" if self.line else self.call

    @property
    def culprit(self) -> Culprit:
        """As it is reported."""
        return Culprit(pid=self.pid, rank=self.rank, frame=self.line, host=self.host)


def rank_of(chain: Chain) -> int:
    """Its rank in the job; -1 where it has none."""
    return -1 if chain.start.rank is None else chain.start.rank


def silent(chains: Iterable[Chain]) -> float:
    """For how long the ends of all of these chains have been silent."""
    return min((chain.end.silent_seconds or 0.0 for chain in chains), default=0.0)


def numbered(ranks: Collection[int | str]) -> str:
    """``rank 3``, ``ranks 0, 2``; of many the first."""
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, list(ranks)[:SHOWN]))}{more}"


def listed(chains: Collection[Chain], one: str = "waits", several: str = "wait") -> str:
    """``ranks 0, 2 wait``."""
    return f"{numbered(list(map(rank_of, chains)))} {one if len(chains) == 1 else several}"


def waits_as(case: Case, chain: Chain, call: str = "") -> str:
    """How a rank waits that is in a collective (``call``), as records, counts or its peers tell, whatever it seems to do."""
    if chain.end.kind == "gpu":
        return f"for {chain.awaited}"
    if chain.end.kind not in RUNS:
        return f"in {chain.awaited}"
    where = call or "a collective"
    return f"for its GPU, in {where}" if cards_of(case.history, chain.start.pid).uuids else f"in {where}"


def links(case: Case, chains: Iterable[Chain], calls: Mapping[int | None, str]) -> tuple[Link, ...]:
    """The wait chains of ranks. One whose call is known waits in it, also if its thread spins for its card."""
    found: list[Link] = []
    for chain in chains:
        end, call = (chain.end.node.pid, chain.end.node.tid), calls.get(chain.start.rank)
        spins = chain.end.kind in RUNS and call is not None
        told = waits_as(case, chain, call or "").partition(" ")[2]
        found += (
            msgspec.structs.replace(link, waits_for=told) if spins and (link.pid, link.tid) == end else link
            for link in chain.links
        )
    return tuple(found)


def hang_between(
    case: Case,
    cause: Cause,
    chains: Sequence[Chain],
    summary: str,
    *,
    evidence: tuple[Evidence, ...],
    places: Sequence[Place] = (),
    culprits: Sequence[Place] | None = None,
    refuted: Mapping[str, str] | None = None,
    advice: tuple[str, ...] = (COMPARE,),
    owner: str = "",
    patience: float = STRUCTURAL_SECONDS,
    stood: float | None = None,
    ceiling: float = 1.0,
) -> Finding:
    """A hang of several ranks; the first chain shows that nothing moves.

    Args:
        places: of ranks of which it is known what they are in.
        culprits: in the order in which they are named; else the places, or where the chains end.
        refuted: by cause, why it is none of that.
    """
    blamed = [place.culprit for place in (places if culprits is None else culprits)]
    if culprits is None and not places:
        blamed = [one for chain in chains for one in chain.culprits()]
    return hung(
        case,
        cause,
        chains[0],
        owner=owner,
        summary=summary,
        patience=patience,
        silent=stood,
        ceiling=ceiling,
        evidence=evidence,
        but=refuted,
        next=advice,
        culprits=blamed,
        links=links(case, chains, {place.rank: place.call for place in places}),
    )
