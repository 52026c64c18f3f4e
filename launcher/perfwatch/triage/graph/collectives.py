"""Calls between ranks: which rank is in which call, and what a rank in a call waits for; and the cards that carry them out.

A collective needs ALL its members. Members in other calls, or in none, are claims. If all have come, the data must travel (FABRIC);
if the calls differ, no task releases them (MISMATCH). A card that computes is work; one whose kernel moves nothing releases no wait.
"""

from perfwatch.triage.cards.gpu import kernels, regime, regimes
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder, end_of
from perfwatch.triage.graph.model import (
    Activity,
    AnswerDue,
    Basis,
    Elsewhere,
    Fate,
    Key,
    Kind,
    Needs,
    Prospect,
    Resource,
    Role,
    Silence,
    Source,
    Task,
    Unread,
)
from perfwatch.triage.graph.thresholds import FLOW_SECONDS
from perfwatch.triage.moving.within import turns_within
from perfwatch.triage.ranks.calls import (
    NEW_GROUP,
    ON_CARD,
    POINT_TO_POINT,
    Call,
    Calls,
    carried,
    has_arrived,
    holds_a_call,
    in_new_group,
    travels,
)
from perfwatch.triage.ranks.groups import (
    UNHEARD,
    counted_apart,
    disagreement,
    recorder_owes,
    wait_graph,
)
from perfwatch.triage.ranks.groups import (
    WaitGraph as RankGraph,
)
from perfwatch.triage.waits.chain import Edge
from perfwatch.triage.waits.devices import others_work
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.frames import collective_name
from perfwatch_probes import readings as r

ANSWER_IS_DUE = AnswerDue("a flight recorder may still answer")
OTHER_JOBS = Elsewhere("other jobs use the card as well")
ON_ITS_WAY = "data on its way between the ranks"
UNREAD_TRAFFIC = Unread("what travels between the ranks was not read")


def calls_of(built: Builder) -> Calls:
    """Which ranks are in a call with others, and in which one: by recorders and RAS, by the card, by the stack."""
    case, job = built.case, built.job
    if max(len(job.ranks), job.world_size or 1) < 2:
        return Calls()
    graph, apart, crossed = wait_graph(case), disagreement(case), counted_apart(case)
    differ = apart is not None and not apart.over
    counted = graph.seconds if graph is not None and graph.edges and not differ else None
    stay = ((pid, key) for pid, key in built.starts.items() if case.progress[pid].kind != "moving")
    by_pid = {pid: call for pid, key in stay if (call := _call_of(built, graph, pid, key)) is not None}
    return Calls(
        by_pid,
        graph,
        mismatched=differ or crossed is not None,
        counted_seconds=counted if crossed is None else crossed.seconds,
        ended=frozenset(one.pid for one in job.ranks if not one.alive),
        exchange=any(call.name in POINT_TO_POINT for call in by_pid.values()),
        ranks_seen=frozenset(built.starts),
        by_rank={rank_of(built, pid): pid for pid in built.starts},
        travels=travels(case),
        hidden=any(call.name == ON_CARD and _is_hidden(built, pid) for pid, call in by_pid.items()),
    )


def _call_of(built: Builder, graph: RankGraph | None, pid: int, key: Key) -> Call | None:
    case, node, waits = built.case, built.node(key), built.edge_kind(key)
    if node.state in ("T", "t"):
        return None
    place = (node.frame.function, node.frame.file, node.frame.line) if node.frame else None
    if waits == "collective":
        name = collective_name(node.stack) if node.stack is not None else None
        return Call(name or built.edge(key).waits_for, place)
    if waits == "rendezvous" and in_new_group(node.stack):
        return Call(NEW_GROUP, place)
    waits_for_card, cards = case.chains[pid].end.kind == "gpu", regimes(built.history, pid)
    held = any(map(holds_a_call, cards)) and (waits_for_card or cards_of(built.history, pid).certain)
    if case.progress[pid].kind != "busy" and (held or (waits_for_card and _is_hidden(built, pid))):
        return Call(ON_CARD)
    number = rank_of(built, pid)
    if graph is not None and (graph.edges.get(number) or (graph.together and number in graph.calls)):
        return Call(graph.calls.get(number, "?"))
    return None


def _is_hidden(built: Builder, pid: int) -> bool:
    """True if what a rank's card does for it is hidden by the work of other jobs on it."""
    return any(others_work(built.history, card) for card in regimes(built.history, pid))


def rank_of(built: Builder, pid: int) -> int:
    """The number of a rank."""
    number = built.job.members[pid].rank
    return -1 if number is None else number


def of_another_thread(built: Builder, calls: Calls, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """A thread that is not the training thread: as the call of its rank."""
    group_call(built, calls, task, node.rank_pid or node.pid)


def group_call(built: Builder, calls: Calls, task: Task, pid: int) -> None:
    """All members are needed: of those in the same call nothing more, of the others what they do."""
    task.member = ("rank", pid)
    if calls.counted_seconds is not None:
        counted = Silence(calls.counted_seconds, Source.OBSERVED)
        task.silence = counted if task.silence is None else min(task.silence, counted)
    if calls.mismatched:
        task.waits = (Resource(Kind.MISMATCH, ("mismatch",), basis=Basis.STACK),)
        return
    mine, moves = calls.by_pid.get(pid), calls.travels
    needed, lost, unseen = _needed(built, calls, pid, mine)
    if calls.exchange and not calls.edges and not lost and len(calls.by_pid) == len(built.starts):
        needed = frozenset()  # a send meets a receive; stacks do not show of which rank
    if len(needed) <= (pid in needed) and not lost and not unseen:
        task.waits = (_fabric(built, calls, mine, moves),)
        return
    called = calls.have_come(needed)
    untold = moves is None and not calls.edges and bool(needed) and bool(built.history.entities(r.Traffic))
    if untold and called:
        why = Unread("the traffic was not read twice")
        task.waits = (Resource(Kind.GROUP_CALL, ("call",), complete=False, why=why, basis=Basis.STACK),)
        return
    complete = (built.job.covered and not unseen) or bool(lost)
    resource = Resource(
        Kind.GROUP_CALL,
        ("call", needed, lost, mine if not needed else None),
        Needs.ALL,
        complete=complete,
        why="" if complete else "ranks that are not seen",
        basis=Basis.STACK,
    )
    if built.graph.is_new(resource):
        for other in sorted(needed):
            built.graph.claim(built.rank(other), resource, Role.PROVIDES, Basis.STACK)
        for one in sorted(lost):
            built.graph.claim(built.gone(one), resource, Role.PROVIDES, Basis.STACK)
    task.waits = (resource,)
    if moves and called and not calls.edges:  # a rank that has all data of one call may be in the next
        task.waits = (*task.waits, _data(built, ("fabric",)))


def _needed(built: Builder, calls: Calls, pid: int, mine: Call | None) -> tuple[frozenset[int], frozenset[int], bool]:
    """Pids of ranks that have not come, of ranks that have ended, and whether others have not come that are not seen.

    The set is one and the same for all ranks in one call, so that the graph grows with the ranks and not with their pairs.
    """
    lost = calls.ended
    if not calls.edges:
        if mine is None:
            return calls.ranks_seen.difference(calls.by_pid), lost, False
        if mine not in calls.needed:
            calls.needed[mine] = frozenset(
                other
                for other in built.starts
                if (call := calls.by_pid.get(other)) is None or (not calls.together and mine.differs_from(call))
            )
        return calls.needed[mine], lost, False
    awaited = calls.edges.get(rank_of(built, pid))
    if not awaited:  # others wait for it, and it is in a call of its own: that those are needed there is not certain
        return calls.ranks_seen, lost, True
    by_rank = calls.by_rank
    elsewhere = [one for one in awaited if one not in by_rank]
    seats = calls.ranks.seats if calls.ranks is not None else {}
    silent = {one for one in elsewhere if seats[one].state in (*UNHEARD, "dead")}
    unseen = len(silent) < len(elsewhere)
    return frozenset(by_rank[one] for one in awaited if one in by_rank), frozenset(lost | silent), unseen


def _data(built: Builder, key: Key) -> Resource:
    resource = Resource(Kind.FABRIC, key)
    leaf = built.lives(("data",), 1.0, "data travels between the ranks")
    built.graph.claim(leaf, resource, Role.PROVIDES, Basis.KERNEL)
    return resource


def _fabric(built: Builder, calls: Calls, mine: Call | None, moves: bool | None) -> Resource:
    """All are in one call: the links between them must carry it."""
    key = ("fabric", mine)
    if moves:
        return _data(built, key)
    if calls.hidden:
        return Resource(Kind.FABRIC, key, complete=False, why=OTHER_JOBS, basis=Basis.STACK)
    flow = carried(built.case, FLOW_SECONDS)
    on_cards = calls.together or all(call.name == ON_CARD for call in calls.by_pid.values())
    recorded = calls.together and calls.ranks is not None and calls.ranks.recorded
    if has_arrived(flow, on_cards) and not recorded and len(calls.by_pid) > 1:
        apart = Resource(Kind.MISMATCH, key, basis=Basis.STACK)
        if not on_cards:
            _any_thread_may_answer(built, apart)
        return apart
    lossy = flow is not None and flow.lost
    sure = on_cards and calls.together
    why = ANSWER_IS_DUE if sure and recorder_owes(built.case) else ON_ITS_WAY if moves is False else UNREAD_TRAFFIC
    fabric = Resource(Kind.FABRIC, key, complete=sure or lossy, why=why, basis=Basis.STACK)
    if calls.exchange:
        _any_thread_may_answer(built, fabric)
    return fabric


def _any_thread_may_answer(built: Builder, resource: Resource) -> None:
    """Any thread of a rank may send, receive or join; a thread of gloo's may add up large tensors while nothing travels."""
    if built.graph.is_new(resource):
        for start in built.starts.values():
            built.claim_other_threads(resource, built.node(start), Basis.ELIMINATION, with_carriers=True)


# The card that a thread waits for


def gpu(built: Builder, task: Task, node: Node, edge: Edge, seen: ThreadActivity) -> None:
    """Complete if it is known which card it is. A loop that asks its card in each turn waits for its own end."""
    if _turns(built, task, node):
        task.waits = (Resource(Kind.LOOP, task.key, complete=False, why="the loop may end", basis=Basis.TEXT),)
        return
    uuid = end_of(edge).detail
    why = "" if uuid else "the card is not known"
    resource = Resource(Kind.GPU, ("gpu", uuid), complete=bool(uuid), why=why)
    if uuid:
        built.graph.claim(_card(built, uuid), resource, Role.PROVIDES, Basis.KERNEL)
    task.waits = (resource,)


def _turns(built: Builder, task: Task, node: Node) -> bool:
    """True if a training thread stays in one loop of one pass for a hang timeout: its card serves each turn, and no step comes."""
    if task.key not in built.starts.values():
        return False
    within = turns_within(built.history, node.pid, node.tid)
    if within is None or within.seconds < built.hang_timeout:
        return False
    built.loop(task.key, node)
    return True


def _card(built: Builder, uuid: str) -> Key:
    seen, newest = regime(built.history, uuid), kernels(built.history, uuid)
    if seen.kind == "spin" and not newest.go_on:
        several = (built.case.job.world_size or len(built.case.ranks)) > 1
        known = newest.usual_known or (several and not seen.is_no_collective)
        sure = seen.source == "gpm" and not seen.computes and known  # counters: its tensor cores and memory are idle
        fate = Fate(Prospect.SETTLED if sure else Prospect.OPEN, Basis.KERNEL, why="its kernel moves nothing")
    elif seen.polls:
        fate = Fate(Prospect.OPEN, why="its kernel polls")
    elif others_work(built.history, seen):
        fate = Fate(Prospect.OPEN, why=OTHER_JOBS)
    else:
        fate = Fate(Prospect.LIVE, works=1.0, why="the card works")
    return built.leaf(("card", uuid), fate, Activity.CARD)
