"""The training thread waits for data because the workers wait for the network.

What it means
    Steps go on, but each batch comes from an object store, a streaming data set or a service that answers slowly.

How it is recognised
    The training thread waits for its loader while the workers hardly run and stand in socket calls (or in HTTP, TLS or cloud
    file system frames); bytes arrive.

What it is mistaken for
    ``blocked_network``: nothing arrives at all. ``starved_by_storage``: files. ``bursty_loading``: waits come in a rhythm.

What to do next
    More workers hide latency; a cache near the job removes it.
"""

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause
from perfwatch.triage.starving import Starving, reading_share, running_share, starving
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("starved_by_network", "slow", "network", (Thread, Stack))

IDLE_RUN_SHARE = 0.6
SOCKET_SHARE = 0.3  # of the looks at workers


def judge(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers wait for sockets."""
    found = starving(case)
    if not isinstance(found, Starving):
        return None
    run, reads = running_share(case, found), reading_share(case, found)
    if run is None or run > IDLE_RUN_SHARE or reads.sockets < SOCKET_SHARE or reads.sockets < reads.files:
        return None
    line = found.worker_line(case)
    peer = f" from {reads.where}" if reads.where else ""
    return found.finding(
        case,
        CAUSE,
        summary=f"the training thread waits for data {found.waiting:.0%} of the time while its workers wait for the network{peer}"
        + (f", mostly at {line}" if line else ""),
        evidence=(
            case.saw(
                "thread",
                f"{found.workers} DataLoader workers",
                "wait for sockets",
                f"in {reads.sockets:.0%} of looks",
                "hardly ever",
            ),
        ),
        alternatives=(
            Alternative(cause="starved_by_transforms", refuted_by=f"the workers run only {run:.0%} of the time"),
        ),
        next=("ss -tni", "raise num_workers, or cache the data near the job"),
    )
