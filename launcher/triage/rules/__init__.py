"""The catalogue of verdicts: one file per cause, listed in order of precedence (the first sure finding names the cause).

Gone before hung, hung before busy, busy before slow, slow before healthy; within a state the end of the wait chain comes
before what it causes.
"""

from perfwatch.triage.rule import Rule
from perfwatch.triage.rules import (
    balanced,
    blocked_child,
    blocked_network,
    blocked_pipe,
    blocked_rendezvous,
    blocked_storage,
    checkpointing,
    compiling,
    computing_on_host,
    cpu_training,
    crashed,
    dead_worker,
    deadlocked_locks,
    downloading,
    endless_python,
    evaluating,
    finished,
    held_gil,
    hung_at_exit,
    killed,
    mismatched_collective,
    out_of_memory,
    stalled_collective,
    starting,
    starved_by_transforms,
    stopped,
    stuck_pin_memory,
    stuck_worker,
    waiting_for_file,
    waiting_for_input,
)

RULES: tuple[Rule, ...] = (
    # gone
    out_of_memory,
    crashed,
    killed,
    finished,
    # hung
    stopped,
    waiting_for_input,
    stalled_collective,
    mismatched_collective,
    hung_at_exit,
    dead_worker,
    held_gil,
    blocked_storage,
    blocked_network,
    blocked_rendezvous,
    blocked_child,
    blocked_pipe,
    waiting_for_file,
    stuck_worker,
    stuck_pin_memory,
    deadlocked_locks,
    endless_python,
    # busy
    checkpointing,
    compiling,
    downloading,
    starting,
    computing_on_host,
    evaluating,
    # slow
    starved_by_transforms,
    # healthy
    cpu_training,
    balanced,
)
