"""The catalogue of causes, in order of precedence: the first sure finding names the cause.

Gone before hung, hung before busy, busy before slow, slow before healthy; within a state the end of the wait chain comes
before what it causes. ``../explain`` has a page for each cause.
"""

from perfwatch.triage.rule import Rule
from perfwatch.triage.rules import (
    busy,
    by_graph,
    collectives,
    data,
    endless,
    files,
    gone,
    gpu,
    gpu_stuck,
    healthy,
    late_ranks,
    locks,
    machine,
    network,
    processes,
    python,
    steps,
    writes,
)

_ENDS_AND_HANGS = (by_graph, collectives, endless, files, gone, gpu_stuck, locks, network, processes)
_THE_REST = (busy, data, gpu, healthy, late_ranks, machine, python, steps, writes)
MODULES = _ENDS_AND_HANGS + _THE_REST
# gone, hung, busy; slow: what the machine does to the job first, then what the job does to itself; healthy
PRECEDENCE = tuple(
    """
    out_of_memory gpu_fault crashed killed finished
    stopped waiting_for_input driver_unresponsive held_gil stalled_collective mismatched_collective wedged_collective
    stuck_kernel hung_at_exit dead_worker blocked_storage blocked_network blocked_rendezvous
    blocked_child blocked_pipe waiting_for_file stuck_worker stuck_pin_memory deadlocked_locks endless_python
    unknown
    checkpointing autotuning compiling downloading starting computing_on_host evaluating waiting_on_work
    retrying throttled_cpu memory_pressure shared_memory_exhausted oversubscribed_threads contended_cpu
    throttled_gpu shared_gpu degraded_link straggling_rank exposed_communication skipping_steps worker_respawn
    bursty_loading starved_by_network starved_by_storage starved_by_transforms serial_loading recompiling
    debug_apis_on garbage_collection slow_checkpoint slow_output contended_lock copy_bound allocator_thrash
    synchronising host_bound_python wrong_precision slow_attention_fallback memory_bound_gpu underfilled_gpu
    regressed
    gpu_bound cpu_training balanced
""".split()
)
_BY_NAME = {rule.cause.name: rule for module in MODULES for rule in module.RULES}
RULES: tuple[Rule, ...] = tuple(_BY_NAME[name] for name in PRECEDENCE)
