"""Processes that a loop steps by turns: who waits for the next order is not at work on data."""

import msgspec

from perfwatch_probes.readings import Frame, Reading, Stack
from tests.recorded import RECORDINGS
from tests.triage.retold import retold

CASES = RECORDINGS / "starved_by_transforms" / "lookalike"
CASE = CASES / "environments_that_wait_for_orders"
FETCHES = Frame("fetch_page", "/home/user/train/pages.py", 12)


def fetches(reading: Reading) -> Reading:
    """The processes wait on a pipe as well, for what a function of their own asks for somewhere else."""
    frames = reading.frames if isinstance(reading, Stack) else ()
    at = next((number for number, frame in enumerate(frames) if frame.function == "env_proc"), 0)
    if not at or "recv" not in frames[at - 1].function:
        return reading
    return msgspec.structs.replace(reading, frames=(*frames[:at], FETCHES, *frames[at:]))


def test_environments_that_wait_for_their_next_step_starve_nobody() -> None:
    """The trainer computes most of the time, and waits for theirs in turn."""
    verdict = retold(CASE)

    assert (verdict.state, verdict.cause) == ("healthy", "cpu_training")


def test_who_waits_for_what_a_function_of_its_own_asks_for_is_at_its_task() -> None:
    """A page that is fetched for the trainer, for one."""
    assert retold(CASE, fetches).cause == "starved_by_transforms"
