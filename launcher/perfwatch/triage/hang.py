"""What every rule about a hang shares: patience by the end of the chain, independent witnesses, and the finding itself."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec

from perfwatch.text import duration
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import how_it_ended
from perfwatch.triage.graph.decide import fate_of, in_call, patience_of, wakes_soon
from perfwatch.triage.graph.model import Prospect, Stale, Unsampled
from perfwatch.triage.history import open_file
from perfwatch.triage.independence import MAY_COME, ONE_SOURCE, certainty_of_a_hang
from perfwatch.triage.moving.motion import moves
from perfwatch.triage.moving.progress import STILL_SHARE
from perfwatch.triage.moving.thresholds import RUNS_SHARE
from perfwatch.triage.patience import DECISIVE_SECONDS, STRUCTURAL_SECONDS, settles_in
from perfwatch.triage.ranks.calls import leaves, over
from perfwatch.triage.ranks.groups import FEW, SHOWN
from perfwatch.triage.rule import Facts, Line
from perfwatch.triage.waits import outside
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.waits.node import NATIVE_WAIT, RUNS, End, Node, idle, node_of, silence, waited_on
from perfwatch.triage.waits.other_end import sends, untaken
from perfwatch.triage.waits.threads import A_LOCK, OTHERS_MOVE, awaited, other_threads
from perfwatch.triage.waits.threads import nearest as fell_silent_with
from perfwatch.triage.words.frames import any_tag, is_named, is_user, short_name, show, user_frames
from perfwatch.verdict import Abstention, Culprit, Evidence, Finding, Level, Link, Outcome, doing
from perfwatch_probes.readings import Descriptor, Frame

NOT_KNOWN = ("unknown", NATIVE_WAIT)
HELD_UP = (A_LOCK, "a semaphore", "room in a queue")  # who waits for an item or an event may have nothing to do
COMPARE = "compare the named lines: which condition makes the ranks diverge?"


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
    claim = f"{'calls' if observed.startswith('polls') else 'is blocked in'} {node.wait.call}"
    return case.saw("syscall", entity, claim, observed, "returns within a step", node.thread_at)


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
    if chain.end.detail:
        return case.saw("process", f"pid {pid}", "has no worker", chain.end.detail, "as many as it was asked to start")
    return case.saw(
        "process", f"pid {pid}", "is gone", how_it_ended(case.history, pid) or "ended, or a zombie", "alive"
    )


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


def is_settled(case: Case, chain: Chain) -> bool:
    """True if nothing can release the wait of a rank, or nothing but a thread that stood when it was last sampled."""
    fate = fate_of(case, chain.start.pid)
    return fate is not None and (fate.prospect is Prospect.SETTLED or isinstance(fate.why, Stale))


def is_unsampled(case: Case, chain: Chain) -> bool:
    """True if what may release the wait of a rank was sampled too seldom to know whether it works."""
    fate = fate_of(case, chain.start.pid)
    return fate is not None and fate.prospect is Prospect.OPEN and isinstance(fate.why, Unsampled)


def _ceiling(case: Case, chain: Chain) -> float:
    """Of the confidence in a hang: whatever is not known, and another thread that may release a lock, may end it."""
    doubtful = chain.end.kind in NOT_KNOWN or chain.end.detail == OTHERS_MOVE
    doubtful = doubtful or (chain.end.kind == "lock" and not is_settled(case, chain))
    return MAY_COME if doubtful else 1.0


def hung(
    case: Case,
    line: Line,
    chain: Chain,
    /,
    *,
    patience: float | None = None,
    silent: float | None = None,
    evidence: tuple[Evidence, ...] = (),
    next: tuple[str, ...] = (),
    ceiling: float | None = None,
    culprits: Iterable[Culprit] | None = None,
    links: Iterable[Link] | None = None,
    **facts: Any,
) -> Finding:
    """A hang with its chain, its witnesses and its countdown, in the words of a line and with these ``facts``.

    Each line has ``who`` stands at the end, at which line (``at``), what it ``does`` there and what is ``awaited``, its ``pid``, and
    the process in which the chain starts (``start``). The confidence follows from how many independent sources show that nothing moves.
    What stood for as long as the samples of the hosts lie apart stood in all of them at once. A process outside of the job that holds a
    lock is watched first.

    Args:
        patience: where it is not that of the graph (``patience_of``).
        next: what to do before what the line says.
        ceiling: of the confidence, where a rule infers rather than sees, or sees more than the end of the chain.
        culprits: where they are not the ends of the chain.
        links: where more is to be shown than the chain.
    """
    node, does = chain.end.node, doing(chain.awaited)
    known = Facts(
        who=who(chain), at=show(node.frame), does=does, awaited=chain.awaited, pid=node.pid, start=chain.start.pid
    )
    known |= facts
    shown = line.seen(case, known) + evidence + witnesses(case, chain)
    ceiling = _ceiling(case, chain) if ceiling is None else ceiling
    waited = silent_seconds(case, chain) if silent is None else silent
    moved = moves(case.history, chain.start.pid, chain.start.tid).ago_seconds
    apart = (chain.start.pid, chain.start.tid) != (node.pid, node.tid)
    if moved is not None and apart and chain.start.wait is not None:
        waited = min(waited, moved)  # whatever the end does: until then the training thread was unblocked now and then
    left = max(patience_of(case, chain.start.pid) if patience is None else patience, case.apart_seconds) - waited
    decides_in = max(0.0, left, outside.unwatched_seconds(case, chain.end), settles_in(case, chain))
    blamed = chain.culprits() if culprits is None else tuple(culprits)
    sure = min(certainty_of_a_hang(shown), ceiling, outside.ceiling(case, chain.end))
    if is_unsampled(case, chain):
        sure = min(sure, Level.LOW)
    found = line.finding(case, blamed, sure, **known)
    return msgspec.structs.replace(
        found,
        wait_chain=chain.links if links is None else tuple(links),
        evidence=shown,
        next=next + found.next,
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


def awaited_at(case: Case, chain: Chain) -> str:
    """What the end of a chain waits for, and that nothing can end that, where the graph shows it."""
    wait = chain.end.node.wait
    ends = chain.end.kind != "lock" or not is_settled(case, chain) or (wait is not None and wait.shared)
    return chain.awaited if ends else f"{chain.awaited}, and no running thread can end this wait"


def who(chain: Chain) -> str:
    """The end of the chain as the subject of a sentence."""
    return subject(chain.end.node)


def subject(node: Node) -> str:
    """A thread as the subject of a sentence, with its line: ``rank 1 (pid 12) at fit (train.py:3)``, ``thread reader of pid 9``."""
    at = f" at {show(node.frame)}" if node.frame else ""
    rank = f"rank {node.rank}'s " if node.rank is not None else ""
    if node.role == "worker":
        return f"{rank}DataLoader worker {node.pid}{at}"
    if node.role in ("pool_worker", "child", "compile"):
        return f"{rank}child process {node.pid}{at}"
    process = f"rank {node.rank} (pid {node.pid})" if node.rank is not None else f"pid {node.pid}"
    thread = f"thread {node.name or node.tid} of " if node.tid != node.pid else ""
    return f"{thread}{process}{at}"


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


def where_they_part(case: Case) -> str:
    """What to look at: the function of the program in which two ranks part, the outermost that has them at different lines."""
    placed = [(rank_of(chain), chain.start.stack) for chain in case.chains.values() if chain.start.stack is not None]
    for (one, here), (other, there) in pairwise(placed):
        for mine, yours in zip(user_frames(here)[::-1], user_frames(there)[::-1], strict=False):
            if (mine.function, mine.file) != (yours.function, yours.file):
                break
            if mine.line != yours.line:
                named = f"rank {one} is at line {mine.line}, rank {other} at line {yours.line}"
                return f"the ranks part in {short_name(mine.function)} ({mine.file.rpartition('/')[2]}): {named}; what differs there?"
    return COMPARE


def hang_between(
    case: Case,
    line: Line,
    chains: Sequence[Chain],
    /,
    *,
    evidence: tuple[Evidence, ...],
    places: Sequence[Place] = (),
    culprits: Sequence[Place] | None = None,
    patience: float = STRUCTURAL_SECONDS,
    stood: float | None = None,
    ceiling: float = 1.0,
    next: tuple[str, ...] = (),
    **facts: Any,
) -> Finding:
    """A hang of several ranks; the first chain shows that nothing moves.

    Args:
        places: of ranks of which it is known what they are in.
        culprits: in the order in which they are named; else the places, or where the chains end.
    """
    blamed = [place.culprit for place in (places if culprits is None else culprits)]
    if culprits is None and not places:
        blamed = [one for chain in chains for one in chain.culprits()]
    return hung(
        case,
        line,
        chains[0],
        patience=patience,
        silent=stood,
        ceiling=ceiling,
        evidence=evidence,
        next=tuple(where_they_part(case) if one is COMPARE else one for one in next),
        culprits=blamed,
        links=links(case, chains, {place.rank: place.call for place in places}),
        **facts,
    )


def partners(case: Case, chain: Chain, moving: bool = False) -> list[Node]:
    """The threads that wait together with the end: those on the cycle, or those of its process that wait with no timeout, too.

    Beside threads that move only those that stopped in the midst of their work.
    """
    end, start = chain.end, (chain.start.pid, chain.start.tid)
    if end.kind == "cycle":
        keys = dict.fromkeys((link.pid, link.tid) for link in chain.links)
        others = [key for key in keys if key != (end.node.pid, end.node.tid)]
        return [node_of(case.history, case.job, *key) for key in others if key != start or others == [start]]
    shared = end.node.wait is not None and end.node.wait.shared
    nodes = [node_of(case.history, case.job, end.node.pid, tid) for tid in end.others if not shared]
    nodes = [node for node in nodes if not idle(node)]
    silent = fell_silent_with(case.history, end.node, nodes) if moving else nodes
    return [node for node in silent if not moving or awaited(node) in HELD_UP]


def held_up(end: Node, beside: list[Node]) -> list[Node]:
    """Of those that wait beside a thread, who keeps it waiting: it waits for what they would bring, they wait for a lock."""
    return [] if awaited(end) in HELD_UP else [one for one in beside if awaited(one) in HELD_UP]


def turn_of(chain: Chain) -> str:
    """What a thread on a cycle waits for, as the chain says it."""
    node = chain.end.node
    if any_tag(node.inner, "pool_wait", "futures_wait"):
        return "its own pool"
    if "remote_get" in node.inner:
        return "what an actor is to return"
    told = [link.waits_for for link in chain.links if (link.pid, link.tid) == (node.pid, node.tid)]
    return told[-1] if told else "its turn"


def stands_in_sync(case: Case, chain: Chain) -> bool:
    """True if a training thread spins at one line, at a call that waits for its card."""
    node, end = chain.start, chain.end.node
    spins = (end.pid, end.tid) == (node.pid, node.tid) and (node.motion.run_share or 0.0) >= RUNS_SHARE
    stays = node.motion.samples >= 2 and node.motion.steady_share >= STILL_SHARE
    return spins and stays and in_sync(case.history, node.stack)


def others_train(case: Case, pid: int) -> bool:
    """True if a rank is done and another one is not: it has more to wait for than the end of this one's threads."""
    others = [chain for other, chain in case.chains.items() if other != pid]
    if leaves(case.chains[pid]):
        return any(not leaves(chain) for chain in others)
    return case.job.covered and any(in_call(case, chain) and not over(chain) for chain in others)


def left_over(case: Case, chain: Chain) -> list[Node]:
    """The program's own threads that go on while the interpreter waits for all that are not daemons."""
    end = chain.end.node
    frames = end.stack.frames if end.stack is not None else ()
    if not any(frame.function == "_shutdown" and frame.file.endswith("/threading.py") for frame in frames):
        return []
    return [one for one in other_threads(case.history, case.job, end) if one.frame is not None][:FEW]


# A full pipe on the chain that is not read

ASKED = frozenset({"child", "join_process", "supervised"})  # so has any other end in a child: ``blocked_child``
OUTPUTS = (1, 2)
ELSEWHERE = ("dead", "stopped", "traced", "cycle")  # ends that say themselves why there is no reader


@dataclass(frozen=True)
class Undrained:
    """Who writes, who should read, and the pipe between them."""

    writer: Node
    reader: Node
    pipe: Descriptor
    reader_waits_for: str

    def ended(self, case: Case, chain: Chain) -> Chain:
        """The same chain, with the writer for its end."""
        end = End(
            "pipe_full",
            self.writer,
            silence(case.history, self.writer),
            descriptor=self.pipe,
            others=(self.reader.pid,),
        )
        return replace(chain, ends=(end,))


def undrained(case: Case, chain: Chain) -> Undrained | None:
    """On a chain that comes back to itself: a program that writes to its stdout or stderr, and its parent, which waits for it.

    Not where the training thread itself waits for that program to end: both waits stand in ``blocked_child``.
    """
    for link in chain.links if chain.end.kind == "cycle" else ():
        member = case.job.members.get(link.pid)
        parent = member.process.parent_pid if member is not None else None
        # The way may begin at the writer as well: the one that should read comes after it then, and leads back to it.
        waiting = [one for one in chain.links if one.pid == parent and (one.depth == link.depth - 1 or not link.depth)]
        if not waiting or (waiting[-1].pid == chain.start.pid and chain.through & ASKED):
            continue
        found = _not_taken(case, link, waiting[-1])
        if found is not None and found.pipe.fd in OUTPUTS and found.pipe.kind == "pipe":
            return found
    return None


def _not_taken(case: Case, link: Link, following: Link) -> Undrained | None:
    """A thread that is blocked writing into a full pipe, and another one that could read it and does not."""
    writer = node_of(case.history, case.job, link.pid, link.tid)
    reader = node_of(case.history, case.job, following.pid, following.tid)
    pipe = blocked_writing(case, writer)
    if pipe is None or reader.pid not in pipe.readers or takes(case, reader, pipe):
        return None
    return Undrained(writer, reader, pipe, following.waits_for)


def blocked_writing(case: Case, node: Node) -> Descriptor | None:
    """The full pipe into which a thread is blocked writing."""
    writes = node.wait is not None and node.wait.kind == "write" and node.motion.frozen
    files = waited_on(case.history, node) if writes else []
    return next((file for file in files if file.kind in ("pipe", "fifo")), None)


def takes(case: Case, reader: Node, pipe: Descriptor) -> bool:
    """True if what a thread is blocked in is that very pipe, alone or among others, or cannot be told."""
    wait = reader.wait
    if wait is None or not reader.motion.frozen:
        return True
    fds = [wait.fd] if wait.fd is not None else [one.fd for one in wait.polled]
    files = [open_file(case.history, reader.pid, reader.tid, fd) for fd in fds]
    return any(file is None or file.reading.kind == "epoll" or file.reading.inode == pipe.inode for file in files)


def unread(case: Case, chain: Chain) -> Undrained | None:
    """Of a chain through a full pipe to a reader that stands, or to what that waits for in turn: who writes, who does not read."""
    end = chain.end
    if end.kind in ELSEWHERE or not end.still or wakes_soon(case, end):
        return None
    for link, following in pairwise(chain.links):
        reader = case.job.members.get(following.pid)
        beyond = end.node.pid == following.pid or case.job.branch(end.node.pid, following.pid) is not None
        if following.depth != link.depth + 1 or link.pid == following.pid or reader is None or not beyond:
            continue
        of_a_pool = reader.role in ("worker", "pool_worker") or case.job.of_multiprocessing(reader)
        if not of_a_pool and (found := _not_taken(case, link, following)) is not None:
            return found
    return None


def not_read(case: Case, chain: Chain) -> Undrained | None:
    """The full pipe that blocks a chain: a reader that does not read it is no child that is merely waited for."""
    return undrained(case, chain) or unread(case, chain)
