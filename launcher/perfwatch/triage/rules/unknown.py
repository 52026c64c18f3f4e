"""Every rank is blocked, nothing that could release it can or does for the hang timeout, and no other cause fits."""

from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.triage.graph.builder import Builder
from perfwatch.triage.graph.decide import TABLE, State, a_releaser_runs, is_settled, states_of, watched_seconds
from perfwatch.triage.graph.from_case import wait_graph_of
from perfwatch.triage.graph.model import Activity, Basis, Prospect, Task, Unread
from perfwatch.triage.graph.words import blocked_on, does, pid_of, resource_named, why_settled
from perfwatch.triage.hang import stacks_of, witnesses
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits.chain import link
from perfwatch.triage.waits.node import culprit
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Link, Outcome
from perfwatch_probes.readings import Thread

CAUSE = Cause("unknown", "hung", "unknown", (Thread,))
# Confidence by the weakest basis on the way: kernel or stack, and text or elimination. Of settled waits in recorded cases 19 of 20 hang;
# that the place is the cause is less sure where no rule has a name for it.
SEEN, INFERRED = 0.75, 0.65
SHOWN_LINKS, SHOWN_CULPRITS = 12, 3
SETTLED = "No thread or process that perfwatch can see can still release this wait"
OPEN = "No thread or process that perfwatch can see has worked for this wait"


def judge(case: Case) -> Outcome:
    """Every rank is blocked, and what could release it is blocked, too."""
    states = standing(case)
    return _finding(case, states) if states else None


def standing(case: Case) -> tuple[State, ...]:
    """The states of all ranks, if each is hung, and was watched for long enough; else none."""
    if not case.ranks or watched_seconds(case) < TABLE.unnamed_watched:
        return ()
    built = wait_graph_of(case)
    if any(built.graph.fates[key].prospect > Prospect.OPEN for key in built.starts.values()):
        return ()
    if not is_settled(case) and (a_releaser_runs(case, *built.starts) or _is_unread(built)):
        return ()
    states: list[State] = []
    for one in states_of(case):
        if one.state != "hung" or not _is_still(one):
            return ()
        states.append(one)
    return tuple(states)


def _is_unread(built: Builder) -> bool:
    """True if something was not read of a task that may release a wait of some rank."""
    reached = built.graph.reachable(*built.starts.values())
    return any(isinstance(built.graph.fates[task.key].why, Unread) for task in reached)


def _is_still(state: State) -> bool:
    """True if nothing can release the wait of a rank, or if all that could is blocked: none of it runs or polls."""
    if state.fate is None or state.fate.prospect is Prospect.SETTLED:
        return state.fate is not None
    return all(task.activity not in (Activity.RUNS, Activity.POLLS) for task, _ in state.sinks)


def _finding(case: Case, states: tuple[State, ...]) -> Finding:
    built = wait_graph_of(case)
    # The rank whose way is the shortest is the nearest to what all wait for.
    state = min(states, key=lambda one: len(built.graph.way(built.starts[_pid(one)])))
    pid, sinks = _pid(state), [task for task, _ in state.sinks]
    fates = [one.fate for one in states if one.fate is not None]
    silent = min(one.silence.seconds for one in states)
    seen = is_settled(case) and min(one.basis for one in fates) >= Basis.STACK
    if is_settled(case):
        claim, reason, at = SETTLED, why_settled(built, sinks[0]), sinks[0]
    else:
        claim, reason = f"{OPEN} for {duration(silent)}", next(f"not ruled out: {one.why}" for one in fates if one.why)
        at = next((one for one in sinks if one.kind == "thread"), built.graph.tasks[built.starts[pid]])
    entity = f"pid {pid_of(sinks[0]) or pid}"
    graph = case.saw("wait graph", entity, claim.lower(), reason, "a thread or process works on it, or will")
    return Finding(
        cause=CAUSE.name,
        state=CAUSE.state,
        summary=f"{blocked_on(built, at)}. {claim}" + (f": {reason}" if is_settled(case) else ""),
        confidence=SEEN if seen else INFERRED,
        owner=CAUSE.owner,
        culprits=tuple(_culprit(built, pid, task) for task in sinks[:SHOWN_CULPRITS]),
        wait_chain=_links(built, pid),
        evidence=(graph, *_witnesses(case, pid)),
        alternatives=(Alternative(cause="waiting_on_work", refuted_by="no task on the way runs or moves data"),),
        next=(stacks_of(pid_of(sinks[0]) or pid), stacks_of(pid_of(sinks[0]) or pid, "--native")),
        silent_seconds=round(silent, 1),
        decides_in_seconds=round(max(0.0, case.apart_seconds - silent), 1),
    )


def _pid(state: State) -> int:
    return state.pid or 0


def _witnesses(case: Case, pid: int) -> tuple[Evidence, ...]:
    return witnesses(case, case.chains[pid])


def _culprit(built: Builder, pid: int, task: Task) -> Culprit:
    """The sink; where that is no process, the rank that waits for it."""
    if task.kind == "thread":
        return culprit(built.node(task.key))
    own = pid_of(task)
    member = built.job.members.get(own or pid)
    rank_pid = member.rank_pid if member is not None else None
    return Culprit(
        pid=rank_pid or own or pid,
        rank=member.rank if member is not None else None,
        worker_pid=own if own not in (None, rank_pid, pid) else None,
    )


def _links(built: Builder, pid: int) -> tuple[Link, ...]:
    """The threads on the way, from the training thread to the sink."""
    way = [task for task, _ in built.graph.way(built.starts[pid]) if task.kind == "thread"][:SHOWN_LINKS]
    waits = (resource_named(task.waits[0]) if task.waits else does(built, task) for task in way)
    nodes = (built.node(task.key) for task in way)
    return tuple(
        link(built.history, node, what, depth) for depth, (node, what) in enumerate(zip(nodes, waits, strict=True))
    )


RULES = (Rule(CAUSE, judge),)
