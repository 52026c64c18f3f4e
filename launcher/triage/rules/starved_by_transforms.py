"""The training thread waits for data because the workers' own computing is too slow.

What it means
    Steps go on, but a good part of each is spent waiting for the next batch, while the DataLoader workers compute at full
    speed: decoding, augmenting, tokenising.

How it is recognised
    The training thread's samples are in the loader's wait; the workers' main threads run at a full core (or wait for one) in
    the program's own or a library's code, with little waiting on files or sockets.

What it is mistaken for
    ``starved_by_storage`` and ``starved_by_network``: there the workers wait instead of running. ``contended_cpu``,
    ``throttled_cpu``, ``oversubscribed_threads``: there the workers want to run and may not.

What to do next
    More workers (if cores are free), cheaper or batched transforms, or preprocessing ahead of training.
"""

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause
from perfwatch.triage.starving import Starving, running_share, starving
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("starved_by_transforms", "slow", "data", (Thread, Stack))

RUNNING_SHARE = 0.5  # of a core, mean over the workers: below it they wait more than they compute


def judge(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers burn CPU."""
    found = starving(case)
    if not isinstance(found, Starving):
        return found
    share = running_share(case, found)
    if share is None or share < RUNNING_SHARE:
        return None
    line = found.worker_line(case)
    return found.finding(
        case,
        CAUSE,
        summary=f"the training thread waits for data {found.waiting:.0%} of the time while {found.workers} workers compute"
        + (f", mostly at {line}" if line else ""),
        evidence=(
            case.saw(
                "thread",
                f"{found.workers} DataLoader workers",
                "compute",
                f"{share:.0%} of a core each",
                "idle between batches",
            ),
        ),
        alternatives=(
            Alternative(
                cause="starved_by_storage", refuted_by=f"the workers run {share:.0%} of the time instead of waiting"
            ),
        ),
        next=("raise num_workers or make the transform cheaper",),
    )
