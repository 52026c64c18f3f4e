"""A process that waits for room in a queue of multiprocessing, whose reader waits for it: two actors and their learner."""

from functools import partial

import msgspec

from perfwatch_probes.readings import Frame, Reading, Stack
from tests.recorded import RECORDINGS
from tests.triage.retold import retold

CASES = RECORDINGS
CASE = CASES / "stuck_worker" / "fires" / "room_in_a_queue_of_the_reader"
LEARNER, ACTOR = 17214, 17217


judged = partial(retold, CASE)


def test_room_in_a_queue_is_said_to_be_made_by_its_reader_alone() -> None:
    """The other actor waits for room in it as well."""
    verdict = judged()

    assert f"waits for room in a queue between processes, which pid {LEARNER} may make;" in verdict.summary
    assert verdict.next[0] == (
        f"pid {LEARNER} reads that queue and waits for pid {ACTOR}: let it keep reading while it waits"
    )


def test_who_waits_for_its_turn_to_write_is_not_said_to_wait_for_room() -> None:
    """``SimpleQueue.put``, further down in the same file, takes a lock and has room for everything."""

    def simple(frame: Frame) -> Frame:
        return msgspec.structs.replace(frame, line=376) if frame.file.endswith("multiprocessing/queues.py") else frame

    def in_a_simple_queue(reading: Reading) -> Reading:
        if not isinstance(reading, Stack):
            return reading
        return msgspec.structs.replace(reading, frames=tuple(map(simple, reading.frames)))

    verdict = judged(in_a_simple_queue)

    assert "waits for a lock between processes" in verdict.summary
    assert "room" not in verdict.summary


def test_where_the_reader_has_left_the_wait_is_for_room_too() -> None:
    """No lock was kept: nobody takes out what was put."""
    verdict = retold(CASES / "dead_worker" / "fires" / "room_in_a_queue_whose_reader_left")

    assert (
        "waits for room in a queue between processes, which only its reader can free; process 4371 has ended"
        in verdict.summary
    )
    assert verdict.next[-1] == "put with a timeout, and check that its reader is alive: process.is_alive()"
