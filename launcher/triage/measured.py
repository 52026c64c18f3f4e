"""Whether a capture of ours keeps the job from moving: what it does meanwhile says nothing about it."""

from perfwatch.probes.readings import CaptureWindow
from perfwatch.triage.case import Case

# ncu runs every kernel of the window many times over: a step of 470 kernels took 20 to 113 s on H200.
STANDS_FOR = ("ncu",)
LONGEST_SECONDS = 300.0  # of a window whose end was not told
RECOVERS_SECONDS = 10.0


def measured_by(case: Case) -> str:
    """The capture for which the job may stand still now; empty without one."""
    for kind in STANDS_FOR:
        seen = case.history.latest(CaptureWindow, kind)
        if seen is not None and case.at - seen.at < (LONGEST_SECONDS if seen.reading.at_work else RECOVERS_SECONDS):
            return kind
    return ""
