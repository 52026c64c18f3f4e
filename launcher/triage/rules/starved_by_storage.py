"""The training thread waits for data because the workers wait for reads of files.

What it means
    Steps go on, but a good part of each is spent waiting for a batch whose file is still being read.

How it is recognised
    The training thread waits for its loader while the workers hardly run, and they are in state D, read from the block layer, or
    stand in reads of files; the disks are busy or tasks stall on io.

What it is mistaken for
    ``starved_by_network``: workers in sockets. ``starved_by_transforms``: workers that compute.

What to do next
    More workers hide latency; a local copy, larger shards or a faster disk removes it.
"""

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause
from perfwatch.triage.starving import Starving, reading_share, running_share, starving
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("starved_by_storage", "slow", "storage", (Thread, Stack))

IDLE_RUN_SHARE = 0.6  # of a core: workers above this compute
READING_SHARE = 0.3  # of the looks at workers


def judge(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers wait for files."""
    found = starving(case)
    if not isinstance(found, Starving):
        return None
    run, reads = running_share(case, found), reading_share(case, found)
    if run is None or run > IDLE_RUN_SHARE or reads.files < READING_SHARE or reads.files <= reads.sockets:
        return None
    line = found.worker_line(case)
    where = f" ({reads.where})" if reads.where else ""
    return found.finding(
        case,
        CAUSE,
        summary=f"the training thread waits for data {found.waiting:.0%} of the time while its workers wait for file reads{where}"
        + (f", mostly at {line}" if line else ""),
        evidence=(
            case.saw(
                "thread",
                f"{found.workers} DataLoader workers",
                "wait for files",
                f"in {reads.files:.0%} of looks, {reads.bytes_per_second / 2**20:.1f} MiB/s from disk",
                "hardly ever",
            ),
        ),
        alternatives=(
            Alternative(cause="starved_by_transforms", refuted_by=f"the workers run only {run:.0%} of the time"),
        ),
        next=("iostat -x 1", "raise num_workers, or keep the data on a local disk"),
    )
