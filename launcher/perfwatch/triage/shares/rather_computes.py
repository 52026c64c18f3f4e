"""Lines on which one call writes and another may compute: which of them takes the time, the kernel tells.

To write costs time in the kernel, or sleep; arithmetic costs neither (utime and stime of /proc/PID/task/TID/stat, proc(5)).
"""

from collections.abc import Collection

from perfwatch.triage.case import Case
from perfwatch.triage.words.code import names
from perfwatch.triage.words.frames import inner_frames, of_torch
from perfwatch_probes.readings import Stack, Thread

WINDOW_SECONDS = 15.0
RUNS = 0.5  # of the time
IN_KERNEL = 0.1  # of what it runs: less of it is no writing
# What a line calls besides to say something: none of them takes a while.
SAYS = frozenset(
    "print write writelines flush info debug warning error log save dump dumps format str repr int float round len join item"
    " tolist keys values items get time perf_counter monotonic strftime now state_dict cpu detach open Path basename dict list"
    " range min max sum zip enumerate isinstance getattr".split()
)


def rather_computes(case: Case, stack: Stack, calls: Collection[str]) -> bool:
    """Whether a line calls something that may compute, and its thread runs nearly all of its time outside of the kernel.

    Where frames of another library than torch lie below the line, they do it: a table that is laid out to be printed.
    """
    if names(calls) <= SAYS or not all(map(of_torch, inner_frames(stack))):
        return False
    ran = case.history.rate(Thread, stack.pid, stack.tid, of=lambda one: one.run_seconds, seconds=WINDOW_SECONDS)
    system = case.history.rate(Thread, stack.pid, stack.tid, of=lambda one: one.system_seconds, seconds=WINDOW_SECONDS)
    return ran is not None and system is not None and ran >= RUNS and system < IN_KERNEL * ran
