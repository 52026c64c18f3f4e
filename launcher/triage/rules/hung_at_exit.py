"""Training is over and the process does not end.

What it means
    A non-daemon thread, an atexit handler, a pool or the process group's destruction keeps the interpreter from finishing. The
    results are there; the allocation is still being paid for.

How it is recognised
    The main thread is in the interpreter's shutdown (joining threads, running exit handlers) or in destroy_process_group, and
    the end of its wait does not move.

What it is mistaken for
    A long final save: bytes are written, frames of a save move. An upload in an exit handler: a child, or other threads, work.
    A rank that destroys its process group while others are still in a call: ``mismatched_collective``; one that ends while
    others wait for it in a call: ``stalled_collective``.

What to do next
    The chain names the thread or handler: make it a daemon, or close it before the end.
"""

import msgspec

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.hang import STRUCTURAL_SECONDS, hung, outlasts, temporal, wakes_soon, who
from perfwatch.triage.moving.working import goes_on
from perfwatch.triage.ranks.leaving import left_over, others_train
from perfwatch.triage.rule import Cause
from perfwatch.triage.verdict import Alternative, Outcome
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import culprit, node_of
from perfwatch.triage.words.frames import any_tag, show, tags

CAUSE = Cause("hung_at_exit", "hung", "user_code", (Thread, Stack))

UNREAD = "whoever reads that queue stopped before it was empty: let it read on, or queue.cancel_join_thread()"


def judge(case: Case) -> Outcome:
    """Fires on a main thread in the interpreter's shutdown whose chain ends in something still."""
    for rank in case.ranks:
        main = node_of(case.history, case.job, rank.pid)
        chain = case.chains[rank.pid]
        if not finalising(main.stack) or main.motion.frozen is False or wakes_soon(case, chain.end):
            continue
        if others_train(case, rank.pid):
            continue
        if chain.end.still is False or any_tag(chain.end.node.tags, "save") or goes_on(case, chain):
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
            alternatives=(Alternative(cause="checkpointing", refuted_by="no save frame and no io on the chain"),),
            next=(
                *((UNREAD,) if "feeder" in chain.end.node.tags else ()),
                *(("end that thread before the program ends, or start it with daemon=True",) if left else ()),
                f"py-spy dump --nonblocking --pid {rank.pid}",
            ),
        )
        return msgspec.structs.replace(found, culprits=tuple(culprit(node) for node in left) or found.culprits)
    return None


def finalising(stack: Stack | None) -> bool:
    """Whether a main thread is past its program: in shutdown frames, or below no ``<module>`` at all."""
    if stack is None or not stack.frames:
        return False
    if any_tag(tags(stack), "exit", "group_destroy"):
        return True
    root = stack.frames[-1].function
    return root not in ("<module>", "_run_module_as_main", "_run_module_code") and not root.startswith("_bootstrap")


def _patience(case: Case, chain: Chain) -> float:
    # Only this process could read it, and it is over; or a terminal is held.
    unread = chain.end.kind == "pipe_full" and not chain.end.others
    certain = chain.end.kind in ("lock", "cycle") or unread or outlasts(case, chain.end)
    return STRUCTURAL_SECONDS if certain else temporal(case)
