"""A worker that asks again and again for what does not come: one look that cost more than the others ends no suspicion, several do."""

from itertools import accumulate

import msgspec
import pytest

from perfwatch_probes.readings import Thread
from tests.recorded import RECORDINGS, load_case
from tests.triage.retold import retold, same

CASE = RECORDINGS / "stuck_worker" / "fires" / "retries_for_a_shard_that_is_gone"
USUAL = 8
LAST = next(
    one.reading
    for one in reversed(load_case(CASE).records)
    if isinstance(one.reading, Thread) and one.reading.name == "pt_data_worker" and one.reading.pid == one.reading.tid
)


def looks(costly: int) -> list[Thread]:
    """Eight more looks at the worker, four wake-ups apart, and so many of which each used 20 ms of CPU."""
    assert LAST.run_seconds is not None
    assert LAST.voluntary_switches is not None
    used = [0.0007] * USUAL + [0.02] * costly
    return [
        msgspec.structs.replace(
            LAST, run_seconds=LAST.run_seconds + ran, voluntary_switches=LAST.voluntary_switches + 4 * n
        )
        for n, ran in enumerate(accumulate(used), 1)
    ]


@pytest.mark.parametrize(("costly", "cause"), [(0, "stuck_worker"), (1, "stuck_worker"), (3, None)])
def test_one_costly_look_is_a_crowded_machine_and_several_are_work(costly: int, cause: str | None) -> None:
    """What a worker computes between two looks may be what it will deliver."""
    assert retold(CASE, same, *looks(costly)).cause == cause
