"""Calls between ranks: which rank is in which call, and what a rank in a call waits for.

A collective needs ALL its members. Members in other calls, or in none, are claims. If all have come, the data must travel (FABRIC);
if the calls differ, no task releases them (MISMATCH).
"""

from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.graph.activity import ThreadActivity
from perfwatch.triage.graph.builder import Builder
from perfwatch.triage.graph.model import AnswerDue, Basis, Key, Kind, Needs, Resource, Role, Task, Unread
from perfwatch.triage.graph.silence import Silence, Source
from perfwatch.triage.graph.thresholds import FLOW_SECONDS
from perfwatch.triage.ranks.calls import NEW_GROUP, ON_CARD, POINT_TO_POINT, Call, Calls, holds_a_call, in_new_group
from perfwatch.triage.ranks.groups import UNHEARD, counted_apart, disagreement, recorder_owes, wait_graph
from perfwatch.triage.ranks.groups import WaitGraph as RankGraph
from perfwatch.triage.ranks.traffic import carried, has_arrived, travels
from perfwatch.triage.waits.edges import Edge
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.frames import collective_name
from perfwatch_probes import readings as r

ANSWER_IS_DUE = AnswerDue("a flight recorder may still answer")
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
    at_card = cards_of(built.history, pid).certain or case.chains[pid].end.kind == "gpu"
    if at_card and case.progress[pid].kind != "busy" and any(map(holds_a_call, regimes(built.history, pid))):
        return Call(ON_CARD)
    number = rank_of(built, pid)
    if graph is not None and (graph.edges.get(number) or (graph.together and number in graph.calls)):
        return Call(graph.calls.get(number, "?"))
    return None


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
    flow = carried(built.case, FLOW_SECONDS)
    on_cards = calls.together or all(call.name == ON_CARD for call in calls.by_pid.values())
    recorded = calls.together and calls.ranks is not None and calls.ranks.recorded
    if has_arrived(flow, on_cards) and not recorded and len(calls.by_pid) > 1:
        why = "" if on_cards else "all data has arrived"
        return Resource(Kind.MISMATCH, key, complete=on_cards, why=why, basis=Basis.STACK)
    lossy = flow is not None and flow.lost
    sure = on_cards and calls.together
    why = ANSWER_IS_DUE if sure and recorder_owes(built.case) else ON_ITS_WAY if moves is False else UNREAD_TRAFFIC
    fabric = Resource(Kind.FABRIC, key, complete=sure or lossy, why=why, basis=Basis.STACK)
    if calls.exchange and built.graph.is_new(fabric):  # any thread of a rank may send or receive
        for start in built.starts.values():
            built.claim_other_threads(fabric, built.node(start), Basis.ELIMINATION)
    return fabric
