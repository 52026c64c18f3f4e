"""The wait chain: from the training thread, through pipes, queues, workers, locks and children, to whatever does not move.

The one that waits is a victim; the one at the end is the culprit. ``edges`` knows where each kind of wait leads; this file
walks and remembers the way.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from perfwatch.triage.history import History
from perfwatch.triage.roles.job import Job
from perfwatch.triage.waits.edges import step
from perfwatch.triage.waits.libraries import REMOTE
from perfwatch.triage.waits.locks import takes_again
from perfwatch.triage.waits.node import End, Node, culprit, node_of, silence, waits_forever
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Culprit, Link

TOGETHER_SECONDS = 0.1  # when each last ran is read to a few milliseconds; those that stop at one event are as close
MAX_DEPTH = 12  # longer chains exist only in loops


@dataclass(frozen=True)
class Chain:
    """The way from one training thread to its end(s). ``through`` names the kinds of edge that were passed."""

    start: Node
    links: tuple[Link, ...]
    ends: tuple[End, ...]
    through: frozenset[str]

    @cached_property
    def end(self) -> End:
        """The end that matters: a dead or stopped one, then one that is still and not idle, then the one silent for longest.

        Of several that fell silent together the first on the way is it at every look.
        """
        rank = {"dead": 3, "stopped": 2, "cycle": -1, "idle": -1}
        weights = [(rank.get(end.kind, 0), end.still is True) for end in self.ends]
        alike = [end for end, weight in zip(self.ends, weights, strict=True) if weight == max(weights)]
        longest = max(end.silent_seconds or 0.0 for end in alike)
        return next(end for end in alike if (end.silent_seconds or 0.0) >= longest - TOGETHER_SECONDS)

    @cached_property
    def awaited(self) -> str:
        """What the end that matters waits for, in words."""
        return self.said_of(self.end.node)

    def said_of(self, node: Node) -> str:
        """What one thread of the chain waits for; the last one, where it is not in it."""
        own = (link.waits_for for link in self.links if (link.pid, link.tid) == (node.pid, node.tid))
        return next(own, self.links[-1].waits_for)

    def culprits(self, same_kind: bool = True) -> tuple[Culprit, ...]:
        """Whom to name: every end of the kind that matters."""
        chosen = [e for e in self.ends if not same_kind or (e.kind == self.end.kind and e.still == self.end.still)]
        return tuple(culprit(e.node) for e in chosen)


def link(history: History, node: Node, waits_for: str, depth: int) -> Link:
    """A node as one step of the chain that is shown."""
    return Link(
        pid=node.pid,
        tid=node.tid,
        rank=node.rank,
        waits_for=waits_for,
        depth=depth,
        frame=show(node.frame),
        silent_seconds=silence(history, node),
    )


def follow(history: History, job: Job, pid: int, tid: int | None = None) -> Chain:
    """Walk from one thread to the end(s) of its wait."""
    start = node_of(history, job, pid, tid)
    links: list[Link] = []
    ends: list[End] = []
    through: set[str] = set()
    path: list[tuple[int, int]] = []
    seen: set[tuple[int, int]] = set()

    left_by: dict[tuple[int, int], str] = {}  # by which kind of edge the way goes on from a thread

    def walk(node: Node) -> None:
        key = (node.pid, node.tid)
        if key in path:
            around = path[path.index(key) :]
            locked = [one for one in around if left_by[one] == "lock"]
            ends.append(_guessed(history, job, around, locked) or _cycle(history, job, node, around))
            return
        if key in seen:
            return  # another way led here before
        seen.add(key)
        edge = step(history, job, node)
        links.append(link(history, node, edge.waits_for, len(path)))
        if edge.end is None or edge.end.kind != edge.kind:
            through.add(edge.kind)
        if edge.end is not None or len(path) >= MAX_DEPTH:
            end = edge.end or End("unknown", node)
            ends.append(
                end if end.silent_seconds is not None else replace(end, silent_seconds=silence(history, end.node))
            )
            return
        path.append(key)
        left_by[key] = edge.kind
        before = len(ends)
        for target in edge.targets:
            walk(target)
        path.pop()
        if edge.kind == REMOTE:  # any of them may be the one: only where all wait for each other nobody is left
            ends[before:] = [end for end in ends[before:] if end.kind != "cycle"] or ends[before:]
        if edge.otherwise is not None and _all_wait_for(node, ends[before:]):
            ends[before:] = [replace(edge.otherwise, silent_seconds=silence(history, node))]

    walk(start)
    ends = _without_victims(history, ends)
    return Chain(start, tuple(links), tuple(ends) or (End("unknown", start),), frozenset(through))


def _cycle(history: History, job: Job, node: Node, path: list[tuple[int, int]]) -> End:
    """Threads that wait for each other, for as long as the one that moved last.

    One that naps and asks after the next one moves, and stays where it is: what stands still is told by the others.
    """
    around = [node_of(history, job, *key) for key in path]
    known = [age for one in around if (age := silence(history, one)) is not None]
    still = next((one for one in around if one.motion.frozen), node) if node.naps else node
    return End("cycle", still, min(known, default=None))


def _guessed(history: History, job: Job, path: list[tuple[int, int]], locked: list[tuple[int, int]]) -> End | None:
    """A lock's owner is guessed: where the guess leads back to one who waits for this very thread, nobody is known to release it."""
    if not locked or len({pid for pid, _ in path}) < 2:
        return None
    last = node_of(history, job, *locked[-1])
    beside = tuple(tid for pid, tid in path if pid == last.pid and tid != last.tid)
    return End("lock", last, silence(history, last), others=beside) if waits_forever(last) else None


def _all_wait_for(node: Node, ends: list[End]) -> bool:
    """Whether those who could help a thread wait for it themselves: they merely inherited the other end of its pipe."""
    locked = [end for end in ends if end.kind == "file_lock" and node.pid in end.others]
    return bool(locked) and all(end.kind == "cycle" or end in locked for end in ends)


def _without_victims(history: History, ends: list[End]) -> list[End]:
    """Who waits for a file lock is no end where its owner is one, nor who waits for any where one waits for what it holds itself."""
    locked = [end for end in ends if end.kind == "lock"]
    own = [end for end in locked if takes_again(history, end.node)] if len(locked) > 1 else []
    ends = [end for end in ends if end not in locked or end in own or not own]
    pids = {end.node.pid for end in ends if end.kind not in ("file_lock", "cycle")}
    rest = [end for end in ends if end.kind != "file_lock" or not end.others or not pids.issuperset(end.others)]
    return rest or ends
