"""A task that never returns gives nobody a result: who waits for a pool does not wait for the service that runs in another one."""

import pytest

from perfwatch_probes.readings import SourceLine, Stack
from tests.recorded import RECORDINGS, load_case
from tests.triage.retold import retold, same

CASE = RECORDINGS / "deadlocked_locks" / "lookalike" / "pool_that_may_wait_for_another_pool"
FILE = next(
    frame.file
    for one in load_case(CASE).records
    if isinstance(one.reading, Stack)
    for frame in one.reading.frames
    if frame.file.endswith("p01_triplets.py")
)


LOOKS = ("time.sleep", "rng.choice", "np.quantile")
SLEEPS = ("time.sleep",)


@pytest.mark.parametrize(
    ("endless", "here", "calls", "state"),
    [
        (True, SLEEPS, LOOKS, "hung"),
        (False, SLEEPS, LOOKS, "inconclusive"),  # what it brings when it ends may be waited for
        (True, SLEEPS, (*LOOKS, "future.set_result"), "busy"),  # a batcher completes the futures of others
        (True, SLEEPS, (*LOOKS, "self.orders.get"), "busy"),
        (True, ("self.engine.tick",), (*LOOKS, "self.engine.tick"), "inconclusive"),  # it works: who knows for whom
    ],
)
def test_a_pool_that_waits_for_itself_is_told_beside_a_service_of_another_pool(
    endless: bool, here: tuple[str, ...], calls: tuple[str, ...], state: str
) -> None:
    """By the text of the other one's loop: it is never left, and hands nothing over."""
    service = SourceLine(
        file=FILE, line=57, text="...", calls=here, loops=("while",), loop_calls=calls, endless=endless
    )

    verdict = retold(CASE, same, service)

    assert verdict.state == state
    if state == "hung":
        assert verdict.cause == "deadlocked_locks"
        assert {one.frame for one in verdict.culprits} == {"mined_pair (p01_triplets.py:34)"}
