"""Data: which loop waits for it, and who is behind."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from perfwatch.gauntlet.recorded import expected_of
from perfwatch.triage.diagnose import diagnose
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import (
    GIVING,
    Descriptor,
    Frame,
    Process,
    Reading,
    Socket,
    SourceLine,
    Stack,
    Steps,
    Thread,
    Wait,
)
from tests.recorded import RECORDINGS, load_case
from tests.training import BACKWARD as DATA_WAITS_BACKWARD
from tests.training import FORWARD, OPTIMIZER, PID, SLEEP, TORCH, TRAIN, Training, confidence_in, level
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

# Who is behind where data is waited for: workers, a lock that they share, a server, whoever empties a buffer or fills a queue.


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


# A training thread that waits for data: which loop waits, and how long a wait lasts as far as samples tell.


LOADER = f"{TORCH}/utils/data"
WAITS = Frame("_try_get_data", f"{LOADER}/dataloader.py", 1275)
FETCHES = (Frame("fetch", f"{LOADER}/_utils/fetch.py", 52), Frame("_worker_loop", f"{LOADER}/_utils/worker.py", 349))
POLL = Wait(call="poll", number=7, kind="poll", remaining_seconds=4.0)


WORKERS = (710, 711)


def with_workers(job: Training) -> Training:
    """A training that has two DataLoader workers."""
    for pid in WORKERS:
        job.add(Process(pid=pid, start_ticks=2, parent_pid=PID, name="pt_data_worker", command=("python",), python=True,
                        torch_loaded=True))  # fmt: skip
    return job


def work(job: Training, line: int) -> None:
    """The workers compute, now in this line."""
    at = job.history.at
    for pid in WORKERS:
        job.add(
            Thread(pid=pid, tid=pid, name="pt_data_worker", state="R", cpu_seconds=at, run_seconds=at,
                   voluntary_switches=0, read_calls=0, write_calls=0),
            Stack(pid=pid, tid=pid, frames=(Frame("__getitem__", TRAIN, line), *FETCHES), samples=5, span_seconds=0.4),
        )  # fmt: skip


def waits_for_data(job: Training, function: str) -> Verdict:
    """The verdict after this function has waited 20 s for the batches of two workers, which compute."""
    with_workers(job)
    for look in range(40):
        job.goes_on(0.5, [(WAITS, Frame(function, TRAIN, 44))], run_share=0.01, wait=POLL)
        work(job, 60 + look % 3)
    return job.verdict()


@pytest.mark.parametrize(
    ("waits_in", "passes", "starved"),
    [
        ("train", (DATA_WAITS_BACKWARD, OPTIMIZER), True),
        ("importance", (DATA_WAITS_BACKWARD, OPTIMIZER), False),  # after the training, in a loop of its own
        ("importance", (DATA_WAITS_BACKWARD,), True),  # it was not seen which loop makes steps
    ],
)
def test_a_training_starves_where_the_loop_that_makes_steps_waits_for_data(
    waits_in: str, passes: tuple[tuple[Frame, ...], ...], starved: bool
) -> None:
    """Another that gathers statistics may be as slow as its data."""
    verdict = waits_for_data(Training(card=False).goes_on(10.0, [FORWARD, *passes]), waits_in)

    assert ((verdict.state, verdict.cause) == ("slow", "starved_by_transforms")) is starved


@pytest.mark.parametrize(("called", "starved"), [(("loss.backward",), False), (("loss.backward", "opt.step"), True)])
def test_a_loop_that_makes_gradients_and_by_its_text_no_step_does_not_train(
    called: tuple[str, ...], starved: bool
) -> None:
    """An estimate of the Fisher information."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=44, text="for x in loader:", loops=("for",), loop_calls=called))

    assert (waits_for_data(job, "importance").cause == "starved_by_transforms") is starved


@pytest.mark.parametrize(
    ("called", "cause"), [(("next",), "computing_on_host"), (("next", "self.step"), "starved_by_transforms")]
)
def test_a_loop_that_takes_batches_and_does_nothing_with_them_is_no_slow_training(
    called: tuple[str, ...], cause: str
) -> None:
    """A run that resumes skips what it has seen: how fast it does so is no step time."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=44, text="next(batches)", loops=("for",), loop_calls=called))

    assert waits_for_data(job, "resume").cause == cause


@pytest.mark.parametrize(("watched", "cause"), [(True, "bursty_loading"), (False, "starved_by_transforms")])
def test_what_happens_between_two_records_of_stacks_is_no_part_of_a_wait(watched: bool, cause: str) -> None:
    """Four steps, and then a wait that was sampled for 0.65 s, or only seen to begin: it may have ended at once."""
    job, wait = with_workers(Training(card=False)), (WAITS, Frame("train", TRAIN, 11))
    while job.history.at < 40.0:
        began = job.history.at
        for number in range(12):
            frames = (FORWARD, DATA_WAITS_BACKWARD, OPTIMIZER)[number % 3]
            sample = Stack(pid=PID, tid=PID, frames=frames, samples=1, span_seconds=0.04)
            job.history.add(began + 0.04 * (number + 1), sample)
        ended = began + 0.48 + (0.65 if watched else 0.05)
        seen = Stack(pid=PID, tid=PID, frames=wait, samples=13 if watched else 3, span_seconds=ended - began - 0.48)
        job.history.add(ended, seen)
        job.history.at = began + 1.13
        job.add(Thread(pid=PID, tid=PID, name="python", state="S", cpu_seconds=began / 2, run_seconds=began / 2, wait=POLL,
                       voluntary_switches=0, ran_ago_seconds=0.01, read_calls=0, write_calls=0))  # fmt: skip
        work(job, 60 + int(began) % 3)

    assert job.verdict().cause == cause


RECEIVE = Wait(call="recvfrom", number=45, kind="recv", fd=6, forever=True)
DATA_WAITS_SERVER = 720


def asks(
    job: Training,
    seconds: float,
    serves: float = 0.01,
    rate: float = 100.0,
    peers: tuple[int, ...] = (DATA_WAITS_SERVER,),
) -> Training:
    """The training thread waits for a server of the job, answer by answer.

    Args:
        serves: share of the time that the server computes.
        rate: bytes that it sends, a second.
    """
    job.add(
        Process(
            pid=DATA_WAITS_SERVER,
            start_ticks=3,
            parent_pid=PID,
            name="python",
            command=("python", "serve.py"),
            python=True,
        )
    )
    for turn in range(round(seconds / 0.5)):
        socket = Socket(family="tcp", state="ESTABLISHED", peer="127.0.0.1:7000", peer_pids=peers,
                        received_bytes=int(rate * job.history.at))  # fmt: skip
        job.add(Descriptor(pid=PID, fd=6, kind="socket", target="socket:[6]", inode=6, socket=socket))
        job.goes_on(0.5, [(Frame("lookup", TRAIN, 50), Frame("train", TRAIN, 11))], run_share=0.01, wait=RECEIVE)
        at = job.history.at
        job.add(
            Thread(pid=PID, tid=PID, name="python", state="S", cpu_seconds=at / 100, run_seconds=at / 100, wait=RECEIVE,
                   voluntary_switches=20 * turn, ran_ago_seconds=0.01, read_calls=0, write_calls=0),
            Thread(pid=DATA_WAITS_SERVER, tid=DATA_WAITS_SERVER, name="python", state="S", cpu_seconds=at * serves, run_seconds=at * serves,
                   voluntary_switches=20 * turn, ran_ago_seconds=0.01),
            Stack(pid=DATA_WAITS_SERVER, tid=DATA_WAITS_SERVER, frames=(Frame("serve", "/app/serve.py", 9),), samples=5, span_seconds=0.4),
        )  # fmt: skip
    return job


@pytest.mark.parametrize(
    ("serves", "cause", "culprit"),
    [(0.01, "starved_by_network", "lookup (train.py:50)"), (0.9, "starved_by_transforms", "serve (serve.py:9)")],
)
def test_a_training_thread_that_asks_a_server_for_its_data_is_starved_by_it(
    serves: float, cause: str, culprit: str
) -> None:
    """By the way there, or by what the server computes for each answer."""
    job = Training(card=False)
    for _ in range(8):
        asks(job.goes_on(0.5, [FORWARD, DATA_WAITS_BACKWARD, OPTIMIZER]).goes_on(0.5, [OPTIMIZER]), 2.0, serves)
    verdict = job.verdict()

    assert (verdict.state, verdict.cause, verdict.culprits[0].frame) == ("slow", cause, culprit)


def _steps(count: int, *each: float) -> Steps:
    return Steps(pid=PID, tid=PID, count=count, step_ago_seconds=0.1, interval_seconds=each)


@pytest.mark.parametrize(("each", "starved"), [(2.0, True), (30.0, False)], ids=["each step", "once"])
def test_one_long_wait_between_counted_steps_is_no_lack_of_data(each: float, starved: bool) -> None:
    """A pause that is over, however much of the last seconds it took."""
    job, count = Training(card=False), 1000
    for _ in range(round(30.0 / each)):
        asks(job, each)
        count += 2
        job.add(_steps(count, 0.1, each))
    for _ in range(4):
        job.goes_on(0.5, [FORWARD, DATA_WAITS_BACKWARD, OPTIMIZER])
        count += 5
        job.add(_steps(count, *(0.1,) * 5))
    verdict = job.verdict()

    assert ("starved_by_network" in {verdict.cause, *(one.cause for one in verdict.findings)}) is starved


@pytest.mark.parametrize(("sender", "starved"), [(DATA_WAITS_SERVER, True), (PID + 1, False)], ids=["server", "rank"])
def test_what_comes_from_another_rank_is_no_data_that_is_asked_for(sender: int, starved: bool) -> None:
    """mpi4py shows no frame of its own: the line of the program receives from a rank, which may be late."""
    job = Training(card=False)
    for rank in (0, 1):
        job.add(Process(pid=PID + rank, start_ticks=1, parent_pid=1, name="python", command=("python",), python=True,
                        torch_loaded=True, rank=rank, world_size=2))  # fmt: skip
    for _ in range(8):
        asks(
            job.goes_on(0.5, [FORWARD, DATA_WAITS_BACKWARD, OPTIMIZER]).goes_on(0.5, [OPTIMIZER]), 2.0, peers=(sender,)
        )
    verdict = job.verdict()

    assert ("starved_by_network" in {verdict.cause, *(one.cause for one in verdict.findings)}) is starved


@pytest.mark.parametrize(
    ("called", "rate", "seconds", "said"),
    [
        (("loss.backward", "opt.step"), 100.0, 60.0, ("slow", "starved_by_network", "medium")),
        (("loss.backward", "opt.step"), 1e6, 60.0, ("slow", "starved_by_network", "medium")),
        (("loss.backward", "opt.step"), 100.0, 15.0, ("inconclusive", None, "low")),  # a pause between two steps?
        (("rows.append",), 1e6, 60.0, ("busy", "downloading", "certain")),  # a table that is fetched ahead of training
        (("rows.append",), 100.0, 60.0, ("busy", "waiting_on_work", "medium")),  # mere answers
    ],
)
def test_what_is_asked_for_is_for_steps_where_the_loop_around_makes_them(
    called: tuple[str, ...], rate: float, seconds: float, said: tuple[str, str | None, str]
) -> None:
    """None is long enough to be met in a sample."""
    job = Training(card=False)
    job.add(SourceLine(file=TRAIN, line=11, text="x = lookup(keys)", loops=("while",), loop_calls=called))
    verdict = asks(job, seconds, rate=rate).verdict()

    assert (verdict.state, verdict.cause, level(verdict.confidence)) == said
