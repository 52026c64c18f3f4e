"""The part of the agent that lets torch's profiler ask the endpoint of ``perfwatch run``; read when a process begins to use CUDA.

Like ``sitecustomize.py``: standard library only, Python 3.8 to 3.14, no output, and no failure of its own reaches the program.
"""

import os
import sys

_PAGE_BYTES, _HEADER_BYTES = (
    4096,
    64,
)  # of the steps page, all slots behind its header: ``probes/perfwatch_probes/steps.py`` has its layout
_MOST_STEPS_BEFORE = 100_000  # made before CUDA began; to count one takes half a microsecond


def arm(directory):
    """What torch does at its import where KINETO_USE_DAEMON is set; not beside a profiler of the program's own."""
    try:
        tracker = sys.modules["torch.autograd.profiler"].KinetoStepTracker
        if "ProfilerStep" in tracker._step_dict or sys.modules["torch"]._C._autograd._profiler_enabled():
            return
        import ctypes

        library = os.path.join(os.path.dirname(sys.modules["torch"].__file__), "lib", "libtorch_cpu.so")
        arm = ctypes.CDLL(library)._ZN5torch18global_kineto_initEv
        arm.restype = None
        os.putenv("KINETO_USE_DAEMON", "1")  # for this call alone: no child inherits it
        try:
            arm()
        finally:
            os.unsetenv("KINETO_USE_DAEMON")
        _count_steps(directory, tracker)
    except Exception:  # another torch: its profiler is not asked
        pass


def _count_steps(directory, tracker):
    """A window of steps needs them counted: torch's own hook for that, and the steps that this process made before."""
    from struct import iter_unpack

    from torch.profiler import _optimizer_post_hook

    try:
        with open(os.path.join(directory, "steps-%d" % os.getpid()), "rb") as file:
            slots = file.read(_PAGE_BYTES)[_HEADER_BYTES:]
        made = max(number for _, _, number in iter_unpack("<QQQ", slots))
    except OSError:  # none
        made = 0
    for _ in range(min(made, _MOST_STEPS_BEFORE)):
        tracker.increment_step("Optimizer")
    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(_optimizer_post_hook)
