"""Lower the priority of commands that observe a job or compute beside one: nice 5 and SCHED_BATCH, before anything else.

Only ``os`` is imported here, so that the imports of a command also run at the lower priority.
"""

import os
from collections.abc import Mapping

# A third of the weight of nice 0 (sched_prio_to_weight in kernel/sched/core.c). With four spinning processes on two cores a verdict took
# 7 to 14 s, at nice 0 5 to 8 s and at nice 10 14 to 17 s.
POLITE_NICE = 5
# These start the user's program, which keeps the caller's priority, or are a service, whose unit sets it (Nice=5). The watcher
# of ``run`` keeps it as well: a SIGTERM reaches the job only after the watcher's last sample, or 0.25 s without one.
KEEP_PRIORITY = frozenset({"run", "ncu", "drill", "daemon"})


def give_way(environment: Mapping[str, str]) -> None:
    """Set nice 5 and SCHED_BATCH for this process and all that it starts. Never raises a priority.

    A process that is nicer or SCHED_IDLE already stays so. PERFWATCH_NICE sets another value, and 0 keeps the priority, for a
    machine without an idle core. The kernel compares nice values within one cgroup, and with autogroup within one session, see
    ``perfwatch_probes.sessions``.
    """
    wanted = environment.get("PERFWATCH_NICE", "")
    nice = int(wanted) if wanted.isdecimal() else POLITE_NICE
    if nice == 0:
        return
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) < nice:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        current = os.sched_getscheduler(0)
        reset_on_fork = current & os.SCHED_RESET_ON_FORK  # may not be taken back without a privilege
        if current & ~os.SCHED_RESET_ON_FORK != os.SCHED_IDLE:
            os.sched_setscheduler(0, os.SCHED_BATCH | reset_on_fork, os.sched_param(0))
    except OSError:
        pass  # refused by a seccomp filter: the command works as well without it
