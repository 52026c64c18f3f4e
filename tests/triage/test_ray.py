"""Ray: an actor waits for its driver, Ray's own processes work for no job, and the workers of Ray Train report together."""

import msgspec
import pytest

from perfwatch.triage.history import History
from perfwatch.verdict import Verdict
from perfwatch_probes.readings import Descriptor, Frame, Socket, Steps, Wait
from tests.triage.rank_looks import (
    BARRIER,
    BEGAN,
    FIRST,
    FOR_EVER,
    LIB,
    MODULE,
    STEP,
    STOPPED,
    TORCH,
    TRAIN,
    Frames,
    judged,
    looks,
    process,
    runs,
    stands,
    uses,
)

RAY = LIB + "site-packages/ray/_private/"
WORKER = (Frame("main_loop", RAY + "worker.py", 900), Frame("<module>", RAY + "workers/default_worker.py", 300))
GETS: Frames = (Frame("get_objects", RAY + "worker.py", 870), Frame("get", RAY + "worker.py", 2700), MODULE)
LOCKED: Frames = (Frame("take", TRAIN, 55), *WORKER)
ROLLS = [(Frame("play", "/app/env.py", line), Frame("rollout", TRAIN, 20), *WORKER) for line in (10, 11, 12)]
OWN_THREAD: Frames = (Frame("push", TRAIN, 70), Frame("_bootstrap", LIB + "threading.py", 1002))
LOOKS_UP = Wait(call="epoll_wait", number=232, kind="poll", remaining_seconds=0.05)
DRIVER, RAYLET, SERVER, LEARNER, OTHER, THIRD = FIRST, 250, 251, 300, 301, 302
IN_A_LOOP: Frames = (
    Frame("select", LIB + "selectors.py", 468),
    Frame("_run_once", LIB + "asyncio/base_events.py", 1890),
)
UNTIL = STOPPED + 80.0  # beyond the patience


def cluster(*actors: int, driver: bool = True) -> History:
    """A driver that waits in ``ray.get``, Ray's processes below it, and actors below those, of which the learner has made steps."""
    history = History()
    if driver:
        history.add(0.0, process(DRIVER, 1, "python train.py"))
        stands(history, DRIVER, GETS, FOR_EVER, UNTIL, since=BEGAN)
        natives(history, DRIVER)
    history.add(0.0, process(RAYLET, DRIVER, "/v/ray/core/src/ray/raylet/raylet --raylet_socket_name=x"))
    for pid in actors:
        history.add(0.0, process(pid, RAYLET, f"python {RAY}workers/default_worker.py --raylet-name=/tmp/ray/raylet"))
        natives(history, pid)
    if LEARNER in actors:
        runs(history, LEARNER, STEP, BEGAN, STOPPED)
        history.add(
            STOPPED, Steps(pid=LEARNER, tid=LEARNER, count=320, step_ago_seconds=0.1, interval_seconds=(0.25,) * 8)
        )
    return history


def natives(history: History, pid: int) -> None:
    """Threads of gRPC, which look up now and then, beside whatever the main one does."""
    runs(history, pid, (), BEGAN, UNTIL, tid=pid + 1000, share=0.001, wait=LOOKS_UP, name="grpc_global_tim")


def verdict_of(history: History) -> Verdict:
    """Beyond the patience."""
    return judged(history, UNTIL)


def test_a_learner_waits_for_its_next_call_while_other_actors_make_what_it_is_to_learn_from() -> None:
    """A round of rollouts takes longer than the patience; its siblings are below the same driver, not below the learner."""
    history = cluster(LEARNER, OTHER)
    stands(history, LEARNER, WORKER, FOR_EVER, UNTIL)
    runs(history, OTHER, ROLLS, STOPPED, UNTIL)
    uses(history, OTHER, 0.95, 0.0, UNTIL)

    verdict = verdict_of(history)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert "is blocked on a remote call" in verdict.summary
    assert "hung" not in {one.state for one in verdict.findings}


def test_a_learner_that_nobody_calls_because_another_actor_is_stuck_hangs() -> None:
    """The driver waits for that one, and the learner for the driver."""
    history = cluster(LEARNER, OTHER)
    stands(history, LEARNER, WORKER, FOR_EVER, UNTIL)
    stands(history, OTHER, LOCKED, FOR_EVER, UNTIL)
    uses(history, OTHER, 0.0, 0.0, UNTIL)

    assert verdict_of(history).state == "hung"


def test_a_learner_that_spins_in_a_collective_does_no_work_for_the_one_that_is_not_called() -> None:
    """It was called, and the other one was not: a full core of waiting is no sign that a call will come."""
    history = cluster(LEARNER, OTHER)
    for pid in (LEARNER, OTHER):
        runs(history, pid, (BARRIER,), BEGAN, BEGAN + 5)
    stands(history, LEARNER, WORKER, FOR_EVER, UNTIL)
    runs(history, OTHER, ((*BARRIER[:1], *WORKER),), STOPPED, UNTIL, name="NCCL")
    uses(history, OTHER, 0.95, 0.0, UNTIL)

    verdict = verdict_of(history)

    assert verdict.coverage.ranks_seen == 2
    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")


def test_a_thread_of_the_actors_own_that_stands_is_followed() -> None:
    """An actor with several threads takes calls in its main thread."""
    history = cluster(LEARNER)
    stands(history, LEARNER, WORKER, FOR_EVER, UNTIL)
    runs(history, LEARNER, (OWN_THREAD,), STOPPED, UNTIL, tid=LEARNER + 50, share=0.0, wait=FOR_EVER)

    assert "thread" in judged(history, UNTIL).wait_chain[0].waits_for


def test_of_an_actor_whose_driver_is_not_seen_nobody_knows_whether_it_should_be_called() -> None:
    """A suspicion, and no verdict."""
    history = cluster(LEARNER, driver=False)
    stands(history, LEARNER, WORKER, FOR_EVER, UNTIL)

    verdict = verdict_of(history)

    assert verdict.state == "inconclusive"
    assert verdict.suspect is not None
    assert verdict.suspect.state == "hung"


def test_actors_that_call_each_other_hang() -> None:
    """Each waits for what the other is to return, and the driver for both; who lets them go on is known by exclusion only."""
    history = cluster(LEARNER, OTHER)
    for pid in (LEARNER, OTHER):
        stands(history, pid, (*GETS[:2], Frame("act", TRAIN, pid), *WORKER), FOR_EVER, UNTIL)

    verdict = verdict_of(history)

    assert (verdict.state, verdict.cause, verdict.confidence) == ("hung", "deadlocked_locks", 0.8)
    assert {one.frame for one in verdict.culprits} == {"act (train.py:300)", "act (train.py:301)"}
    assert "is blocked on what an actor is to return; so is" in verdict.summary


def test_a_third_actor_that_works_may_be_the_one_that_is_waited_for() -> None:
    """Two wait for what others return, and one of the others is at it: that is work, whomever it is for."""
    history = cluster(LEARNER, OTHER, THIRD)
    for pid in (LEARNER, OTHER):
        stands(history, pid, (*GETS[:2], Frame("act", TRAIN, pid), *WORKER), FOR_EVER, UNTIL)
    runs(history, THIRD, ROLLS, STOPPED, UNTIL)
    uses(history, THIRD, 0.95, 0.0, UNTIL)

    verdict = verdict_of(history)

    assert (verdict.state, verdict.cause) == ("busy", "waiting_on_work")
    assert verdict.culprits[0].pid == THIRD


def test_of_actors_whose_calls_are_coroutines_nobody_is_named() -> None:
    """What such a call waits for is on no stack."""
    history = cluster(LEARNER, OTHER)
    for pid in (LEARNER, OTHER):
        stands(history, pid, (*GETS[:2], Frame("act", TRAIN, pid), *WORKER), FOR_EVER, UNTIL)
    history.add(0.0, process(THIRD, RAYLET, f"python {RAY}workers/default_worker.py"))
    stands(history, THIRD, WORKER, FOR_EVER, UNTIL)
    runs(history, THIRD, (IN_A_LOOP,), BEGAN, UNTIL, tid=THIRD + 50, share=0.001, wait=LOOKS_UP)

    assert "for what cannot be seen" in verdict_of(history).summary


def test_rays_own_processes_do_no_work_for_whoever_waits() -> None:
    """Its control server is never idle, and the only actor waits for a lock."""
    history = cluster(OTHER)
    history.add(0.0, process(SERVER, DRIVER, "/v/ray/core/src/ray/gcs/gcs_server --log_dir=x"))
    stands(history, OTHER, LOCKED, FOR_EVER, UNTIL)
    runs(history, SERVER, (), BEGAN, UNTIL, share=0.06, wait=LOOKS_UP)
    uses(history, SERVER, 0.06, 6000.0, UNTIL)

    assert verdict_of(history).state == "hung"


@pytest.mark.parametrize(("peer", "state"), [("10.0.0.2:6379", "inconclusive"), ("10.0.0.1:6379", "hung")])
def test_a_driver_whose_actors_may_be_on_other_machines_is_only_suspected(peer: str, state: str) -> None:
    """Another machine gives signs of life, of which none is a download; where all is on this one, somebody would be seen at work."""
    history = cluster()
    for at in looks(BEGAN, UNTIL):
        socket = Socket(family="tcp", state="ESTABLISHED", local="10.0.0.1:5", peer=peer, received_ago_seconds=0.5,
                        received_bytes=int(600 * at), sent_bytes=9)  # fmt: skip
        history.add(at, Descriptor(pid=DRIVER, fd=9, kind="socket", target="socket:[9]", inode=9, socket=socket))

    verdict = verdict_of(history)

    assert verdict.state == state
    assert "another machine" in verdict.summary or state == "hung"


@pytest.mark.parametrize(
    ("command", "state"),
    [
        ("/v/ray/core/src/ray/raylet/raylet --x=1", "hung"),
        ("/v/bin/python -u /v/site-packages/ray/dashboard/agent.py --raylet-name=x", "hung"),
        ("/v/bin/python -u /v/site-packages/ray/_private/log_monitor.py", "hung"),
        ("/v/bin/python /v/site-packages/ray/_private/workers/default_worker.py --raylet-name=/tmp/raylet", "busy"),
        ("ray::Learner.train", "busy"),
        ("/v/bin/python train.py --monitor raylet", "busy"),
        ("/v/bin/python train.py --start_method forkserver", "busy"),
        ("/v/bin/python -m joblib.externals.loky.backend.resource_tracker", "hung"),
    ],
)
def test_a_service_of_ray_is_known_by_its_program_and_not_by_its_arguments(command: str, state: str) -> None:
    """A worker is given the name of the raylet as an argument; what it computes is work, and what a service computes is none."""
    history = cluster(LEARNER)
    stands(history, LEARNER, WORKER, FOR_EVER, UNTIL)
    words = tuple(command.split())
    beside = process(OTHER, RAYLET, "python default_worker.py")
    history.add(0.0, msgspec.structs.replace(beside, name=words[0][:15], command=words))
    runs(history, OTHER, ROLLS, STOPPED, UNTIL)
    uses(history, OTHER, 0.95, 0.0, UNTIL)

    assert verdict_of(history).state == state


RAY_PACKAGE = LIB + "site-packages/ray/"
TAKES_CALLS: Frames = (Frame("main_loop", RAY_PACKAGE + "_private/worker.py", 1069),)
GETS_FOR_TRAIN: Frames = (
    Frame("get_objects", RAY_PACKAGE + "_private/worker.py", 1007),
    Frame("get", RAY_PACKAGE + "_private/worker.py", 3009),
)
GIVEN: Frames = (
    Frame("train_fn", RAY_PACKAGE + "train/v2/_internal/util.py", 89),
    Frame("_run_target", RAY_PACKAGE + "train/v2/_internal/execution/worker_group/thread_runner.py", 37),
    Frame("_bootstrap", LIB + "threading.py", 1002),
)
REDUCES: Frames = (
    Frame("_engine_run_backward", TORCH + "autograd/graph.py", 1113),
    Frame("backward", TORCH + "_tensor.py", 623),
    Frame("train_loop", TRAIN, 35),
    *GIVEN,
)
REPORTS: Frames = (
    *GETS_FOR_TRAIN,
    Frame("report", RAY_PACKAGE + "train/v2/_internal/execution/context.py", 474),
    Frame("train_loop", TRAIN, 41),
    *GIVEN,
)
CONTROLLER, REPORTER, WAITER = 299, 300, 301


def train_group() -> History:
    """A driver that has called ``fit``, a controller between two calls, and two workers whose main threads take calls as well."""
    history = History()
    history.add(0.0, process(DRIVER, 1, "python train.py"))
    history.add(0.0, process(RAYLET, DRIVER, "/v/ray/core/src/ray/raylet/raylet --raylet_socket_name=x"))
    stands(history, DRIVER, (*GETS_FOR_TRAIN, *STEP[0][-1:]), FOR_EVER, UNTIL)
    titles = {CONTROLLER: "TrainController.run", REPORTER: "RayTrainWorker", WAITER: "RayTrainWorker"}
    for pid, title in titles.items():
        one = process(pid, RAYLET, f"ray::{title}")
        history.add(0.0, msgspec.structs.replace(one, python=True, torch_loaded=True))
        stands(history, pid, TAKES_CALLS, FOR_EVER, UNTIL)
    return history


def test_the_worker_that_reports_alone_is_named_and_not_the_one_that_waits_for_it_in_its_backward_pass() -> None:
    """``ray.train.report`` returns when every worker has called it."""
    history = train_group()
    stands(history, REPORTER, REPORTS, FOR_EVER, UNTIL, tid=REPORTER + 50)
    stands(history, WAITER, REDUCES, FOR_EVER, UNTIL, tid=WAITER + 50)

    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert [(one.pid, one.frame) for one in verdict.culprits] == [(REPORTER, "train_loop (train.py:41)")]
    assert verdict.coverage.ranks_seen == 2


def test_workers_that_all_report_are_in_no_collective() -> None:
    """Then nobody keeps the others waiting but Ray's controller, which nobody can judge."""
    history = train_group()
    for pid in (REPORTER, WAITER):
        stands(history, pid, REPORTS, FOR_EVER, UNTIL, tid=pid + 50)

    assert judged(history, UNTIL).cause != "stalled_collective"


@pytest.mark.parametrize(
    ("store", "late", "says"), [(None, 0, True), (REPORTER, 0, False), (WAITER, 0, False), (WAITER, 1, True)]
)
def test_rank_0_is_the_worker_that_serves_the_store_and_other_numbers_are_doubted(
    store: int | None, late: int, says: bool
) -> None:
    """Ray numbers its workers by node and card, not in the order of their start."""
    history = train_group()
    stands(history, REPORTER, REPORTS, FOR_EVER, UNTIL, tid=REPORTER + 50)
    stands(history, WAITER, REDUCES, FOR_EVER, UNTIL, tid=WAITER + 50)
    if store is not None:
        runs(history, store, (), STOPPED, UNTIL, tid=store + 60, share=0.0, wait=FOR_EVER, name="pt_tcpstore_uv")
    for pid in range(WAITER + 1, WAITER + 1 + late):
        one = process(pid, RAYLET, "ray::RayTrainWorker")
        history.add(0.0, msgspec.structs.replace(one, python=True, torch_loaded=True))

    verdict = judged(history, UNTIL)

    assert [(one.pid, one.rank) for one in verdict.culprits] == [(REPORTER, 1 if store == WAITER else 0)]
    assert any("numbered in the order of their start" in one.reason for one in verdict.missing) is says
