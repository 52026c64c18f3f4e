"""Who is behind where data is waited for: workers, a lock that they share, a server, whoever empties a buffer or fills a queue."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import GIVING, Descriptor, Frame, Reading, SourceLine, Stack, Steps, Thread
from tests.recorded import RECORDINGS, load_case
from tests.training import FORWARD, PID, SLEEP, TRAIN, Training, confidence_in
from tests.triage.rank_looks import (
    FIRST,
    FOR_EVER,
    MODULE,
    STOPPED,
    judged,
    process,
    runs,
    stands,
    uses,
)
from tests.triage.rank_looks import (
    job as ranks,
)
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
    """What one of the job's own waits for no other task knows."""
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


C10D = "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
GATHERS = (Frame("all_gather_object", C10D, 3501), MODULE)
PICKLES = Frame("_object_to_tensor", C10D, 3405)


@pytest.mark.parametrize(
    ("inner", "works"),
    [
        ([(Frame("rows", TRAIN, line), PICKLES) for line in (10, 11)], True),
        ([(PICKLES,)], True),
        ([(Frame("all_gather", C10D, 4287),)], False),
    ],
    ids=["its own rows", "pickle", "the others"],
)
def test_to_turn_ones_own_part_into_bytes_is_work_and_no_wait_for_the_others(
    inner: list[tuple[Frame, ...]], works: bool
) -> None:
    """Though it happens in the call in which they wait."""
    history, until = ranks(2), STOPPED + 80.0
    stands(history, FIRST + 1, (Frame("all_gather", C10D, 4287), *GATHERS), FOR_EVER, until)
    runs(history, FIRST, [(*frames, *GATHERS) for frames in inner], STOPPED, until)
    uses(history, FIRST, 0.95, 0.0, until)
    verdict = judged(history, until)

    assert ((verdict.state, verdict.cause) == ("busy", "waiting_on_work")) is works
    assert [one.rank for one in verdict.culprits] == ([0] if works else [])


RESTS = RECORDINGS / "waiting_on_work" / "fires" / "shards_of_a_thread_that_rests"
LEASE = RECORDINGS / "stalled_collective" / "fires" / "lease_that_is_looked_for"
EVENT_LOOP = RECORDINGS / "deadlocked_locks" / "lookalike" / "event_loop_of_another_thread"
PUTS, GETS = "self.out.put", "feed.out.get"
# By the method that waits: those of the same object that let it go on (CPython: queue, threading).
LET_GO_ON = [
    *((waits, call) for waits in ("wait", "wait_for") for call in ("set", "notify", "notify_all")),
    ("get", "put"),
    ("get", "put_nowait"),
    ("put", "get"),
    ("put", "get_nowait"),
    ("join", "task_done"),
    ("acquire", "release"),
]


def told_otherwise(case: Path, instead: str = PUTS, asks: str = GETS) -> Verdict:
    """With another call in place of the one that puts into the queue, or of the one that takes from it."""
    recording = load_case(case)
    records = [
        msgspec.structs.replace(one, reading=_with(one.reading, {PUTS: instead, GETS: asks}))
        if isinstance(one.reading, SourceLine)
        else one
        for one in recording.records
    ]
    return diagnose(replace(recording, records=tuple(records)), expected_of(case).at)


def _with(line: SourceLine, instead: dict[str, str]) -> SourceLine:
    calls, loop = ([instead.get(call, call) for call in calls] for calls in (line.calls, line.loop_calls))
    return msgspec.structs.replace(line, calls=tuple(calls), loop_calls=tuple(loop))


@pytest.mark.parametrize(("waits", "call"), LET_GO_ON)
def test_the_thread_that_lets_it_go_on_is_waited_for(waits: str, call: str) -> None:
    """It sleeps for half a minute before its next try, and the training thread has waited for more than one."""
    verdict = told_otherwise(RESTS, f"self.out.{call}", f"feed.out.{waits}")

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "from thread prefetch" in verdict.wait_chain[0].waits_for


def test_all_calls_that_let_a_thread_go_on_are_read_from_the_source() -> None:
    """What the probe leaves out no rule can find."""
    assert {call for _, call in LET_GO_ON} == GIVING


@pytest.mark.parametrize("call", ["self.errors.put", "self.out.clear", "self.out.release"])
def test_one_that_calls_something_else_is_not(call: str) -> None:
    """A queue of another name, or another method of that queue: who brings the item is not known."""
    verdict = told_otherwise(RESTS, call)

    assert verdict.cause != "waiting_on_work"
    assert "from thread" not in verdict.wait_chain[0].waits_for


def test_a_rank_that_looks_for_a_file_again_and_again_may_come() -> None:
    """Alone it is no surer that the file never comes: the lease of a process that had ended ran out after two minutes."""
    verdict = told_otherwise(LEASE)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "stalled_collective", 0.65)


def test_an_event_loop_in_another_thread_may_bring_what_is_awaited() -> None:
    """Behind the timer that is due next there may be others: nothing is sure before the patience is over."""
    verdict = told_otherwise(EVENT_LOOP)

    assert verdict.state == "inconclusive"
    assert verdict.suspect is not None
    assert verdict.suspect.cause == "deadlocked_locks"


AT_POOL = (
    Frame("wait", "/usr/lib/python3.12/threading.py", 355),
    Frame("get", "/usr/lib/python3.12/multiprocessing/pool.py", 768),
)
MAKES = [
    (Frame("tokenise", TRAIN, line), Frame("worker", "/usr/lib/python3.12/multiprocessing/pool.py", 125))
    for line in (26, 27)
]
CHILD = 800


def awaits_a_pool(seconds: float, *stacks: tuple[Frame, ...]) -> Training:
    """A training thread that is nearly always blocked in these stacks, while a worker of a pool computes."""
    job = Training(card=False)
    job.add(process(CHILD, PID, "python train.py"))
    for number in range(round(2 * seconds)):
        at = (number + 1) / 2
        worker = Thread(pid=CHILD, tid=CHILD, name="python", state="R", cpu_seconds=at, run_seconds=at,
                        ran_ago_seconds=0.01, voluntary_switches=number)  # fmt: skip
        job.history.add(at, worker)
        job.history.add(at, Stack(pid=CHILD, tid=CHILD, frames=MAKES[number % 2], samples=5, span_seconds=0.4))
    return job.goes_on(seconds, stacks, run_share=0.02, wait=SLEEP)


@pytest.mark.parametrize(
    ("ago", "longest", "starves"),
    [
        (0.4, 0.5, True),
        (13.0, 0.001, False),  # it made steps before, and makes none now
        (13.0, 9.0, True),  # steps as long as that
    ],
)
def test_a_pool_is_waited_for_by_training_only_while_steps_are_made(ago: float, longest: float, starves: bool) -> None:
    """By the agent's count; else it may work for a preparation, which is no slow training."""
    job = awaits_a_pool(30, (*AT_POOL, Frame("prepare", TRAIN, 21)))
    job.history.add(1.0, Steps(pid=PID, tid=PID, count=9, step_ago_seconds=0.0, interval_seconds=(longest,) * 8))
    verdict = job.steps(20, *[longest] * 9, ago=ago).verdict()

    assert ((verdict.state, verdict.cause) == ("slow", "starved_by_transforms")) is starves


INNER, OUTER = Frame("table", TRAIN, 18), Frame("train", TRAIN, 44)
TRAINS = ("table", "loss.backward", "optimizer.step")


@pytest.mark.parametrize(
    ("loops", "hands_out", "seconds", "beside", "starves"),
    [
        (("for",), False, 20.0, (), False),  # results are gathered between two steps
        (("for",), False, 8.0, (), False),  # it may be one long step: nothing is said yet
        (("for",), False, 20.0, (FORWARD,), True),  # it is a part of each
        (("for",), False, 20.0, ((OUTER,),), True),  # it was left, and entered anew
        (("for",), True, 20.0, (), True),  # a generator: the loop that asks it for more trains
        ((), False, 20.0, (), True),  # one result for each turn of the loop that trains
    ],
)
def test_a_loop_over_a_pools_results_that_makes_no_step_is_a_phase_when_it_lasts(
    loops: tuple[str, ...], hands_out: bool, seconds: float, beside: tuple[tuple[Frame, ...], ...], starves: bool
) -> None:
    """A table is built by a pool every so many steps, in a function that the training loop calls."""
    job = awaits_a_pool(seconds, *[(*AT_POOL, INNER, OUTER)] * 4, *beside)
    job.add(SourceLine(file=TRAIN, line=18, text="for s in results:", loops=loops, hands_out=hands_out))
    job.add(SourceLine(file=TRAIN, line=44, text="t = table()", loops=("for",), loop_calls=TRAINS))

    assert (confidence_in(job.verdict(), "starved_by_transforms") > 0) is starves
