"""Ray Train: its workers train in a thread of their own, below a raylet, and one that reports alone keeps the others waiting."""

import msgspec
import pytest

from perfwatch.triage.history import History
from perfwatch.triage.roles.job import read_job
from perfwatch_probes.readings import Frame
from tests.triage.rank_looks import (
    FIRST,
    FOR_EVER,
    LIB,
    STEP,
    STOPPED,
    TORCH,
    TRAIN,
    Frames,
    judged,
    process,
    runs,
    stands,
)

RAY = LIB + "site-packages/ray/"
TAKES_CALLS: Frames = (Frame("main_loop", RAY + "_private/worker.py", 1069),)
GETS: Frames = (Frame("get_objects", RAY + "_private/worker.py", 1007), Frame("get", RAY + "_private/worker.py", 3009))
GIVEN: Frames = (
    Frame("train_fn", RAY + "train/v2/_internal/util.py", 89),
    Frame("_run_target", RAY + "train/v2/_internal/execution/worker_group/thread_runner.py", 37),
    Frame("_bootstrap", LIB + "threading.py", 1002),
)
REDUCES: Frames = (
    Frame("_engine_run_backward", TORCH + "autograd/graph.py", 1113),
    Frame("backward", TORCH + "_tensor.py", 623),
    Frame("train_loop", TRAIN, 35),
    *GIVEN,
)
REPORTS: Frames = (
    *GETS,
    Frame("report", RAY + "train/v2/_internal/execution/context.py", 474),
    Frame("train_loop", TRAIN, 41),
    *GIVEN,
)
DRIVER, RAYLET, CONTROLLER, REPORTER, WAITER = FIRST, 250, 299, 300, 301
UNTIL = STOPPED + 80.0  # beyond the patience


def group() -> History:
    """A driver that has called ``fit``, a controller between two calls, and two workers whose main threads take calls as well."""
    history = History()
    history.add(0.0, process(DRIVER, 1, "python train.py"))
    history.add(0.0, process(RAYLET, DRIVER, "/v/ray/core/src/ray/raylet/raylet --raylet_socket_name=x"))
    stands(history, DRIVER, (*GETS, *STEP[0][-1:]), FOR_EVER, UNTIL)
    titles = {CONTROLLER: "TrainController.run", REPORTER: "RayTrainWorker", WAITER: "RayTrainWorker"}
    for pid, title in titles.items():
        one = process(pid, RAYLET, f"ray::{title}")
        history.add(0.0, msgspec.structs.replace(one, python=True, torch_loaded=True))
        stands(history, pid, TAKES_CALLS, FOR_EVER, UNTIL)
    return history


def test_the_worker_that_reports_alone_is_named_and_not_the_one_that_waits_for_it_in_its_backward_pass() -> None:
    """``ray.train.report`` returns when every worker has called it."""
    history = group()
    stands(history, REPORTER, REPORTS, FOR_EVER, UNTIL, tid=REPORTER + 50)
    stands(history, WAITER, REDUCES, FOR_EVER, UNTIL, tid=WAITER + 50)

    verdict = judged(history, UNTIL)

    assert (verdict.state, verdict.cause) == ("hung", "stalled_collective")
    assert [(one.pid, one.frame) for one in verdict.culprits] == [(REPORTER, "train_loop (train.py:41)")]
    assert verdict.coverage.ranks_seen == 2


def test_workers_that_all_report_are_in_no_collective() -> None:
    """Then nobody keeps the others waiting but Ray's controller, which nobody can judge."""
    history = group()
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
    history = group()
    stands(history, REPORTER, REPORTS, FOR_EVER, UNTIL, tid=REPORTER + 50)
    stands(history, WAITER, REDUCES, FOR_EVER, UNTIL, tid=WAITER + 50)
    if store is not None:
        runs(history, store, (), STOPPED, UNTIL, tid=store + 60, share=0.0, wait=FOR_EVER, name="pt_tcpstore_uv")
    for pid in range(WAITER + 1, WAITER + 1 + late):
        one = process(pid, RAYLET, "ray::RayTrainWorker")
        history.add(0.0, msgspec.structs.replace(one, python=True, torch_loaded=True))

    verdict = judged(history, UNTIL)

    assert [rank.rank for rank in read_job(history).ranks if rank.pid == (store or REPORTER)] == [0]
    assert any("numbered in the order of their start" in one.reason for one in verdict.missing) is says
