"""What a machine may do about a verdict: one table, from the cause to the action. ``action_of`` asks it.

restart        end the job and start it again from its last checkpoint: it cannot continue, and nothing says that it hangs again
replace_node   the same, on another node: this one's hardware or driver is at fault; drain it
wait           it gets on by itself
fix_code       the program, its command line or its configuration is at fault: it would end up there again
none           there is nothing to do

None where the cause alone does not say it: the storage may come back, a stopped process was stopped by a person, a straggler may
be the card's fault or the program's, a signal does not say who sent it. A verdict whose confidence is below high has no action,
for a machine does not check it first.
"""

from perfwatch.failures import AFTER_FIXING, ECHO, NAMES, NO, YES
from perfwatch.verdict import Level, Verdict

RESTART, REPLACE_NODE, WAIT, FIX_CODE, NOTHING = "restart", "replace_node", "wait", "fix_code", "none"

ACTION_OF: dict[str, str | None] = {
    # gone: where the end has a name, whether the same command may succeed says more (``_OF_RETRY``)
    "out_of_memory": FIX_CODE,
    "gpu_fault": REPLACE_NODE,
    "crashed": None,
    "killed": None,
    "finished": NOTHING,
    # hung
    "stopped": None,  # by a person or a debugger, and either can continue it
    "waiting_for_input": FIX_CODE,
    "driver_unresponsive": REPLACE_NODE,
    "stalled_collective": RESTART,
    "mismatched_collective": FIX_CODE,
    "wedged_collective": RESTART,
    "stuck_kernel": RESTART,
    "hung_at_exit": None,  # its work may be done
    "dead_worker": RESTART,
    "held_gil": None,
    "blocked_storage": None,  # goes on when the storage answers
    "blocked_network": RESTART,
    "blocked_rendezvous": RESTART,
    "blocked_child": None,
    "blocked_pipe": FIX_CODE,
    "waiting_for_file": None,
    "stuck_worker": RESTART,
    "stuck_pin_memory": RESTART,
    "deadlocked_locks": FIX_CODE,
    "endless_python": FIX_CODE,
    "unknown": None,
    # busy
    "checkpointing": WAIT,
    "autotuning": WAIT,
    "compiling": WAIT,
    "downloading": WAIT,
    "starting": WAIT,
    "computing_on_host": WAIT,
    "evaluating": WAIT,
    "waiting_on_work": WAIT,
    # slow
    "retrying": None,
    "throttled_cpu": None,
    "memory_pressure": None,
    "shared_memory_exhausted": None,
    "oversubscribed_threads": FIX_CODE,
    "contended_cpu": None,
    "throttled_gpu": None,  # cooling, or a power cap that the site wants
    "shared_gpu": None,
    "degraded_link": REPLACE_NODE,
    "straggling_rank": None,
    "exposed_communication": None,
    "skipping_steps": None,
    "worker_respawn": FIX_CODE,
    "bursty_loading": FIX_CODE,
    "starved_by_network": None,
    "starved_by_storage": None,
    "starved_by_transforms": FIX_CODE,
    "serial_loading": FIX_CODE,
    "recompiling": FIX_CODE,
    "debug_apis_on": FIX_CODE,
    "garbage_collection": FIX_CODE,
    "slow_checkpoint": None,
    "slow_output": FIX_CODE,
    "contended_lock": FIX_CODE,
    "copy_bound": FIX_CODE,
    "allocator_thrash": FIX_CODE,
    "synchronising": FIX_CODE,
    "host_bound_python": FIX_CODE,
    "wrong_precision": FIX_CODE,
    "slow_attention_fallback": FIX_CODE,
    "memory_bound_gpu": None,
    "underfilled_gpu": FIX_CODE,
    "regressed": None,
    # healthy
    "gpu_bound": NOTHING,
    "cpu_training": NOTHING,
    "balanced": NOTHING,
}
_OF_RETRY = {YES: RESTART, NO: FIX_CODE, AFTER_FIXING: FIX_CODE}
_RETRY_OF = {RESTART: YES, REPLACE_NODE: YES, FIX_CODE: AFTER_FIXING}


def action_of(verdict: Verdict) -> str | None:
    """One of ``verdict.ACTIONS``; None where nothing can be said."""
    if verdict.cause is None or (verdict.confidence < Level.HIGH and verdict.state not in ("busy", "healthy")):
        return None
    action = ACTION_OF.get(verdict.cause)
    if action == REPLACE_NODE or verdict.state != "gone":
        return action
    if verdict.sub_cause in NAMES and NAMES[verdict.sub_cause].weight == ECHO:
        return None  # ended by a signal, say: a person may have meant it
    return _OF_RETRY.get(verdict.retry or "", action)


def retry_of(hung: Verdict) -> str | None:
    """The ``retry`` of a run that hung: if the same command may succeed when it is started again; None where that is not known."""
    return _RETRY_OF.get(action_of(hung) or "")
