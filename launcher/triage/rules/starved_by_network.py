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
from perfwatch.triage.shares.producing import work
from perfwatch.triage.shares.starving import starving
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("starved_by_network", "slow", "network", (Thread, Stack))


def judge(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers wait for sockets more than they compute."""
    found = starving(case)
    if found is None:
        return None
    does = work(case, found)
    if does.mostly != "sockets":
        return None
    peer = f" ({does.where})" if does.where else ""
    return found.finding(
        case,
        CAUSE,
        summary=found.summary(case, f"waiting for the network{peer}"),
        evidence=(
            case.saw(
                "thread",
                found.kind,
                "wait for sockets",
                f"in {does.sockets:.0%} of looks",
                "hardly ever",
            ),
        ),
        alternatives=(
            Alternative(cause="starved_by_transforms", refuted_by=f"the workers run only {does.runs:.0%} of the time"),
        ),
        next=("ss -tni", "raise num_workers, or cache the data near the job"),
    )
