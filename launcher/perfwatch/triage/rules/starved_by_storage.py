"""The training thread waits for data because the workers wait for reads of files."""

from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.producing import work
from perfwatch.triage.shares.starving import starving
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("starved_by_storage", "slow", "storage", (Thread, Stack))


def judge(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers wait for files more than they compute."""
    found = starving(case)
    if found is None:
        return None
    does = work(case, found)
    if does.mostly != "files":
        return None
    where = f" ({does.where})" if does.where else ""
    return found.finding(
        case,
        CAUSE,
        summary=found.summary(case, f"waiting for file reads{where}"),
        evidence=(
            case.saw(
                "thread",
                found.kind,
                "wait for files",
                f"in {does.files:.0%} of looks, {does.bytes_per_second / 2**20:.1f} MiB/s from disk",
                "hardly ever",
            ),
        ),
        alternatives=(
            Alternative(cause="starved_by_transforms", refuted_by=f"the workers run only {does.runs:.0%} of the time"),
        ),
        next=("iostat -x 1", "raise num_workers, or keep the data on a local disk"),
    )


RULES = (Rule(CAUSE, judge),)
