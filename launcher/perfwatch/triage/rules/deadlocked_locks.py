"""Threads wait for locks that no running thread can release."""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.ends.ended_processes import ended_beside
from perfwatch.triage.hang import hung, nearest, who
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits.callbacks import by_callback
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.libraries import REMOTE, may_ask
from perfwatch.triage.waits.locks import A_TASK, awaited
from perfwatch.triage.waits.node import NATIVE_WAIT, culprit, node_of
from perfwatch.triage.waits.pipes import undrained
from perfwatch.triage.waits.releasing import (
    blocked_beside,
    blocking_loops,
    for_how_long,
    has_a_rule_of_its_own,
    held_up,
    idle_loops,
    named,
    partners,
    silent_in_native_code,
    taken_by_itself,
    turn_of,
    waits_too,
    why_nobody_comes,
)
from perfwatch.triage.waits.threads import OTHERS_MOVE, OUTSIDE_HELD
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Abstention, Alternative, Finding, Missing, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("deadlocked_locks", "hung", "user_code", (Thread, Stack))

SILENT_TASKS = "a task that ended with an error is silent until it is awaited: asyncio.TaskGroup, or add_done_callback"
AWAIT = "in a coroutine await what it asks its own loop for: .result() there waits for ever"
# A process that waits for ever may hold it, or an actor may answer: who lets that one go on is not known.
CEILING_ELSEWHERE = 0.8


def judge(case: Case) -> Outcome:
    """Fires on a chain that ends in a lock or a cycle of waits."""
    found = nearest(_of_chain(case, chain) for chain in case.still_chains)
    return found if isinstance(found, Finding) else by_callback(case) or found


def _of_chain(case: Case, chain: Chain) -> Outcome:
    end = chain.end
    if end.kind not in ("lock", "cycle", NATIVE_WAIT) or not end.still or has_a_rule_of_its_own(chain):
        return None
    if undrained(case, chain) is not None:
        return None  # or it is a pipe that nobody reads: ``blocked_pipe`` names it
    if end.node.stack is None:
        lacking = case.lacks("stacks") or Missing(witness="stacks", reason=f"no stack of pid {end.node.pid} was read")
        return Abstention(cause=CAUSE.name, missing=(lacking,))
    if len(case.ranks) > 1 and "collective" in end.node.tags | chain.start.tags:
        return None
    if end.kind == NATIVE_WAIT:
        return silent_in_native_code(case, chain)
    return _finding(case, chain)


def _finding(case: Case, chain: Chain) -> Finding:
    end = chain.end
    moving = end.detail == OTHERS_MOVE
    elsewhere = bool(end.node.wait and end.node.wait.shared and end.others)
    guessed = elsewhere or REMOTE in chain.through
    doubtful = moving or end.detail == OUTSIDE_HELD or may_ask(case.history, case.job, end.node)
    ceiling = MAY_COME if doubtful else CEILING_ELSEWHERE if guessed else 1.0
    own = taken_by_itself(case, chain)
    beside = [] if own is not None else blocked_beside(case, chain) if moving else partners(case, chain)
    loops = idle_loops(case, chain) if moving and not beside else []
    blocking = blocking_loops((end.node, *beside))
    ended = ended_beside(case, chain) if end.kind == "lock" else []
    lock = turn_of(chain) if end.kind == "cycle" else awaited(end.node)
    told = why_nobody_comes(end, lock, beside, loops, elsewhere=elsewhere, moving=moving)
    if own is not None:
        lock, told = f"a lock that it has taken itself at {show(own)}", ""
    told += "".join(f"; {named(p, end.node.pid)} blocks its own event loop" for p in blocking[:1])
    told += "".join(f"; {one.told}" for one in ended[:3])
    found = hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"{who(chain)} waits for {lock}{for_how_long(end.node)}{told}",
        patience=STRUCTURAL_SECONDS if ceiling == 1.0 else temporal(case),
        evidence=(*(waits_too(case, p) for p in beside[:4]), *(one.evidence(case) for one in ended[:3])),
        ceiling=ceiling,
        alternatives=(Alternative(cause="endless_python", refuted_by="the thread does not run"),),
        next=(
            AWAIT
            if blocking
            else SILENT_TASKS
            if lock == A_TASK
            else f"py-spy dump --nonblocking --locals --pid {end.node.pid}",
        ),
    )
    suspects = [node_of(case.history, case.job, pid) for pid in end.others] if elsewhere else [*beside, *loops]
    first_of_all = held_up(end.node, beside) if end.kind == "lock" and not elsewhere else []
    blamed = [culprit(p) for p in dict.fromkeys((*blocking, *first_of_all, end.node, *suspects))]
    lost = [one.culprit for one in ended[:3]]
    first = any(one.error is not None for one in ended) or len(lost) == len(blamed) == 1
    return msgspec.structs.replace(found, culprits=(*lost, *blamed) if first else (*blamed, *lost))


RULES = (Rule(CAUSE, judge),)
