"""Training is over and the process does not end."""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.ranks.absentee import left_over, others_train
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import at_training
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import Node, culprit, node_of
from perfwatch.triage.waits.threads import OTHERS_MOVE
from perfwatch.triage.words.frames import any_tag, is_user, show, tags
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("hung_at_exit", "hung", "user_code", (Thread, Stack))

INFERRED = 0.78  # only what is missing from the stack speaks for it
STARTS = ("<module>", "_run_module_as_main", "_run_module_code")
UNREADABLE = "\ufffd"  # in a command line: that file's name is not UTF-8, and py-spy 0.4 leaves its frames out
UNREAD = "whoever reads that queue stopped before it was empty: let it read on, or queue.cancel_join_thread()"


def judge(case: Case) -> Outcome:
    """Fires on a main thread in the interpreter's shutdown whose chain ends in something still."""
    for rank in case.ranks:
        main = node_of(case.history, case.job, rank.pid)
        chain = case.chains[rank.pid]
        past = past_its_program(case, main)
        if not past or main.motion.frozen is False or wakes_soon(case, chain.end):
            continue
        if chain.start.tid != main.tid and chain.start.stack is not None and at_training(chain.start.stack):
            continue  # another thread trains, and the main one only waits for it to end
        if others_train(case, rank.pid):
            continue
        if chain.end.still is False or any_tag(chain.end.node.tags, "save"):
            continue
        left = left_over(case, chain)
        waits_for = f"thread {left[0].name or left[0].tid} at {show(left[0].frame)} to end" if left else ""
        found = hung(
            case,
            CAUSE.name,
            chain,
            owner=CAUSE.owner,
            summary=f"training is over, but the process does not end: {who(chain)} waits for {waits_for or chain.awaited}",
            patience=_patience(case, chain),
            ceiling=min(past, MAY_COME) if chain.end.detail == OTHERS_MOVE else past,
            alternatives=(Alternative(cause="checkpointing", refuted_by="no save frame and no io on the chain"),),
            next=(
                *((UNREAD,) if "feeder" in chain.end.node.tags else ()),
                *(("end that thread before the program ends, or start it with daemon=True",) if left else ()),
                f"py-spy dump --nonblocking --pid {rank.pid}",
            ),
        )
        return msgspec.structs.replace(found, culprits=tuple(culprit(node) for node in left) or found.culprits)
    return None


def past_its_program(case: Case, main: Node) -> float:
    """How sure it is that a main thread is past its program: in frames of the shutdown, or in what the interpreter itself has called.

    What has no ``<module>`` below it is an exit handler only where nothing else explains that: the program is a python's, all of
    its frames can be read, and its own start was seen or would be.
    """
    stack = main.stack
    if stack is None or not stack.frames:
        return 0.0
    if any_tag(tags(stack), "exit", "group_destroy"):
        return 1.0
    process = case.job.members[main.pid].process
    if _started(stack) or not (process.executable or "").startswith("python") or UNREADABLE in "".join(process.command):
        return 0.0
    before = (seen.reading for seen in case.history.series(Stack, main.pid, main.tid))
    if any(_started(one) and (is_user(one.frames[-1]) or one.frames[-1].function != STARTS[0]) for one in before):
        return 1.0
    own = (
        is_user(stack.frames[-1]) or stack.frames[-1].file in process.command
    )  # a script may lie in an installed package
    return INFERRED if own else 0.0


def _started(stack: Stack) -> bool:
    """Whether the program itself, or what starts a child of ``multiprocessing``, is at the root."""
    root = stack.frames[-1].function if stack.frames else ""
    return root in STARTS or root.startswith("_bootstrap")


def _patience(case: Case, chain: Chain) -> float:
    # Only this process could read it, and it is over; or a terminal is held.
    unread = chain.end.kind == "pipe_full" and not chain.end.others
    locked = chain.end.kind in ("lock", "cycle") and chain.end.detail != OTHERS_MOVE
    certain = locked or unread or outlasts(case, chain.end)
    return STRUCTURAL_SECONDS if certain else temporal(case)


RULES = (Rule(CAUSE, judge),)
