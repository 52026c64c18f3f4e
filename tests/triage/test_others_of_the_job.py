"""Who is behind, where the workers wait for somebody else of the job: a lock that they share, a server, whoever empties a buffer."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from perfwatch.triage.shares.profile import at_training
from perfwatch.triage.words.frames import inner_tags, tags
from perfwatch_probes.readings import Descriptor, Frame, Reading, SourceLine, Stack, Thread
from tests.recorded import RECORDINGS, load_case
from tests.triage.retold import retold, same

LOCK = RECORDINGS / "contended_lock" / "fires" / "workers_share_a_lock_in_memory"
SERVER = RECORDINGS / "starved_by_transforms" / "fires" / "a_server_of_the_job"
BUFFER = RECORDINGS / "starved_by_transforms" / "fires" / "waits_for_a_free_buffer"
UPLOAD = RECORDINGS / "starved_by_transforms" / "fires" / "waits_for_the_last_upload"
THREADS = RECORDINGS / "oversubscribed_threads" / "fires" / "threads_of_its_own"
FETCH = RECORDINGS / "contended_lock" / "fires" / "lock_in_its_own_fetch"
GROUP = RECORDINGS / "mismatched_collective" / "fires" / "new_group_by_some_ranks"
HOLDER = RECORDINGS / "stalled_collective" / "fires" / "lock_of_one_who_waits"
TWICE = RECORDINGS / "deadlocked_locks" / "fires" / "taken_twice_over_rpc"
BACKWARD = RECORDINGS / "straggling_rank" / "fires" / "a_backward_of_its_own"
PICKLES = Frame("_object_to_tensor", "/usr/lib/torch/distributed/distributed_c10d.py", 3405)
SOMEBODY = 4  # no process of the job
THREAD = RECORDINGS / "mismatched_collective" / "fires" / "thread_of_another_order-nccl"


SERVES = 22598  # its pid there


def _server_rests(reading: Reading) -> Reading:
    if not isinstance(reading, Thread) or reading.pid != SERVES:
        return reading
    return msgspec.structs.replace(reading, run_seconds=(reading.run_seconds or 0.0) / 10, run_delay_seconds=0.0)


def _server_is_elsewhere(reading: Reading) -> Reading:
    if not isinstance(reading, Descriptor) or reading.socket is None:
        return reading
    return msgspec.structs.replace(reading, socket=msgspec.structs.replace(reading.socket, peer_pids=()))


def test_a_server_of_the_job_that_computes_is_named_instead_of_the_network() -> None:
    """With its own line, and no advice to start more workers, which would all ask it."""
    verdict = retold(SERVER)

    assert (verdict.cause, verdict.culprits[0].frame) == ("starved_by_transforms", "serve (tokens.py:15)")
    assert "num_workers" not in " ".join(verdict.next)


@pytest.mark.parametrize(("changed", "surely"), [(_server_rests, False), (_server_is_elsewhere, True)])
def test_one_that_rests_itself_or_is_elsewhere_leaves_the_network_to_blame(
    changed: Callable[[Reading], Reading], surely: bool
) -> None:
    """What one of the job's own waits for nobody knows."""
    verdict = retold(SERVER, changed)

    assert verdict.cause == "starved_by_network"
    assert (verdict.confidence > 0.9) is surely


def test_workers_that_seldom_wait_for_their_lock_compute() -> None:
    """A counter that they share costs them nothing."""

    def changed(reading: Reading) -> Reading:
        if not isinstance(reading, Stack) or not reading.frames or reading.frames[0].function != "SemLock.__enter__":
            return reading
        return msgspec.structs.replace(reading, frames=(decodes, *reading.frames[2:]))

    stacks = (one.reading for one in load_case(LOCK).records if isinstance(one.reading, Stack))
    decodes = next(one.frames[0] for one in stacks if one.frames and one.frames[0].function == "Locked.decode")

    assert retold(LOCK).cause == "contended_lock"
    assert retold(LOCK, changed).cause == "starved_by_transforms"


@pytest.mark.parametrize("case", [BUFFER, UPLOAD], ids=lambda case: case.name)
def test_a_wait_whose_outcome_no_step_uses_is_no_sure_lack_of_data(case: Path) -> None:
    """And more workers are not advised."""

    def used(reading: Reading) -> Reading:
        return msgspec.structs.replace(reading, result="") if isinstance(reading, SourceLine) else reading

    verdict = retold(case)

    assert verdict.confidence <= 0.7
    assert "num_workers" not in " ".join(verdict.next)
    assert retold(case, used).confidence > 0.9


def test_threads_that_the_program_has_started_are_named_where_they_crowd_its_cpus() -> None:
    """Fewer threads of OpenMP, of which there is one, would not help."""
    verdict = retold(THREADS)

    assert {one.frame for one in verdict.culprits} == {"index (indexed.py:8)"}
    assert "OMP_NUM_THREADS" not in " ".join(verdict.next)


def test_a_fetch_that_waits_for_a_lock_is_no_loading() -> None:
    """Whoever has the lock is named, not the lack of workers."""
    assert {one.cause for one in retold(FETCH).findings} & {"serial_loading"} == set()


def test_a_rank_that_computes_in_a_backward_of_its_own_is_named_by_that_line() -> None:
    """Below ``backward`` only the reduction waits for the others."""
    assert [one.frame for one in retold(BACKWARD).culprits] == ["backward (regularised.py:12)"]


def test_a_thread_that_waits_for_the_card_is_whom_a_launch_waits_for() -> None:
    """The driver copies under the lock of its context; the thread that spins meanwhile does no work for anybody."""
    verdict = retold(THREAD)

    assert verdict.state == "hung"
    assert {one.frame for one in verdict.culprits} == {"run (score_beside.py:47)", "work (score_beside.py:81)"}
    assert not {"downloading", "waiting_on_work"} & {one.cause for one in verdict.findings}


def test_ranks_that_make_a_group_which_others_do_not_make_are_told_with_these() -> None:
    """Neither side has failed to appear: they are in different calls, and both lines are named."""
    verdict = retold(GROUP)

    assert verdict.cause == "mismatched_collective"
    assert {(one.rank, one.frame) for one in verdict.culprits} == {
        *((rank, "build_metric_group (metrics.py:7)") for rank in (0, 1)),
        *((rank, "main (metrics.py:18)") for rank in (2, 3)),
    }


def test_a_lock_whose_holder_waits_for_the_one_that_asks_for_it_is_a_cycle() -> None:
    """No patience is needed, and both are to blame; where another process holds it that is not known."""

    def by_another(reading: Reading) -> Reading:
        if not isinstance(reading, Descriptor) or not reading.lock_holders:
            return reading
        return msgspec.structs.replace(reading, lock_holders=(SOMEBODY,))

    verdict = retold(HOLDER)

    assert verdict.state == "hung"
    assert [one.rank for one in verdict.culprits] == [1, 0]
    assert "that is rank 0, which waits at prepare (caches.py:19) itself" in verdict.summary
    assert retold(HOLDER, by_another).state == "inconclusive"


def test_a_lock_that_a_thread_takes_twice_is_told_so_and_those_who_wait_beside_it_are_victims() -> None:
    """Unless one of them stands within a ``with`` of that name: then it may have it."""

    stacks = (one.reading for one in load_case(TWICE).records if isinstance(one.reading, Stack))
    main = next(frame for one in stacks for frame in one.frames if frame.function == "main")
    within = SourceLine(file=main.file, line=main.line, text="rpc.shutdown()", within=("self.lock",))

    verdict = retold(TWICE)

    assert "a lock that it has taken itself at apply (parameters.py:16)" in verdict.summary
    assert [one.frame for one in verdict.culprits] == ["snapshot (parameters.py:20)"]
    assert "has taken itself" not in retold(TWICE, same, within).summary


@pytest.mark.parametrize(
    ("inner", "waits"),
    [
        ((Frame("rows", "/home/user/job/train.py", 10), PICKLES), False),
        ((PICKLES,), False),
        ((Frame("all_gather", PICKLES.file, 4287),), True),
    ],
    ids=["its own rows", "pickle", "the others"],
)
def test_to_turn_ones_own_part_into_bytes_is_work_and_no_wait_for_the_others(
    inner: tuple[Frame, ...], waits: bool
) -> None:
    """Though it happens in the call in which they wait."""
    gathers = Frame("all_gather_object", PICKLES.file, 3501)
    stack = Stack(pid=1, tid=1, frames=(*inner, gathers, Frame("main", "/home/user/job/train.py", 24)))

    assert ("collective" in tags(stack)) is waits
    assert ("collective" in inner_tags(stack)) is waits
    assert at_training(stack) is waits
