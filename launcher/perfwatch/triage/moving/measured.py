"""Whether a capture of ours keeps the job from moving: what it does meanwhile says nothing about it."""

from perfwatch.triage.case import Case
from perfwatch_probes.readings import CaptureWindow

# ncu runs every kernel of the window many times over: a step of 470 kernels took 20 to 113 s on H200.
STANDS_FOR = ("ncu",)
LONGEST_SECONDS = 300.0  # of a window whose end nothing shows


def measured_by(case: Case) -> str:
    """The capture for which the job may stand still now; empty without one.

    A window that took too long is given up before ncu is done with it: it has ended when a step was made after it.
    """
    for kind in STANDS_FOR:
        seen = case.history.latest(CaptureWindow, kind)
        if seen is None or case.at - seen.at >= LONGEST_SECONDS:
            continue
        since = case.at - seen.at
        clocks = [now.steps for now in case.progress.values() if now.steps is not None]
        stepped = any(clock.ago_seconds is not None and clock.ago_seconds < since for clock in clocks)
        if seen.reading.at_work or not stepped:
            return kind
    return ""
