"""The drills that hang by the job's own doing: workers that die or stop, locks, the GIL, endless loops."""

from perfwatch.drills.describing import hung
from perfwatch.drills.drill import STRENGTHS, Culprit, Drill

STUCK: tuple[Drill, ...] = (
    hung(
        "dead_worker",
        "dead_worker_pool",
        "a multiprocessing.Pool worker was killed in the middle of a task and pool.map waits forever",
        Culprit("main"),
        ends={"loud": "structural", "masked": "structural"},  # the pool has a new worker: nobody dead is in sight
    ),
    hung(
        "dead_worker-queue",
        "dead_worker_queue",
        "the process that feeds the trainer's queue is gone and the queue stays empty",
        Culprit("child"),
    ),
    hung(
        "stuck_worker",
        "stuck_worker_sleep",
        "a DataLoader worker sleeps for days in __getitem__",
        Culprit("worker", "__getitem__"),
        STRENGTHS,
    ),
    hung(
        "stuck_worker-lock",
        "stuck_worker_lock",
        "DataLoader workers wait for a lock that was held when they were forked",
        Culprit("worker", "cached"),
        STRENGTHS,
        also=("deadlocked_locks",),
    ),
    hung(
        "stuck_worker-loop",
        "stuck_worker_loop",
        "a DataLoader worker draws crops in an endless loop and burns a core",
        Culprit("worker", "sample_crop"),
        ("loud", "quiet"),
        also=("endless_python",),
    ),
    hung(
        "stuck_worker-filter",
        "stuck_worker_filter",
        "a DataLoader worker filters an endless stream and rejects everything",
        Culprit("worker", "stream"),
        also=("endless_python",),
    ),
    hung(
        "stuck_worker-expression",
        "stuck_worker_expression",
        "a DataLoader worker is in a regular expression that goes wild on one text",
        Culprit("worker", "is_sentence"),
        also=("endless_python", "held_gil"),
    ),
    hung(
        "stuck_pin_memory",
        "stuck_pin_memory",
        "a worker's queue feeder waits for a lock while it pickles the batch",
        Culprit("worker", "__getstate__"),
        STRENGTHS,
    ),
    hung(
        "deadlocked_locks",
        "deadlocked_locks_order",
        "the trainer and a publisher thread take two locks in opposite order",
        Culprit("main", "train"),
    ),
    hung(
        "deadlocked_locks-condition",
        "deadlocked_locks_condition",
        "trainer and prefetcher both wait on a condition that no thread notifies",
        Culprit("main"),
    ),
    hung(
        "deadlocked_locks-unreleased",
        "deadlocked_locks_unreleased",
        "a thread died between acquire and release; the trainer waits for its lock",
        Culprit("main", "main"),
        culprit_from_start=Culprit("thread", "upload"),
    ),
    hung(
        "deadlocked_locks-producer",
        "deadlocked_locks_producer",
        "a thread that reads ahead died of a bad shard; the trainer waits for its next batch",
        Culprit("main", "<module>"),
        culprit_from_start=Culprit("thread", "decode"),
        ends={"masked": "temporal"},  # a thread that is at work might yet bring the batch
    ),
    hung(
        "unknown",
        "unknown",
        "trainer and shuffler pass turns over eventfds, one turn is lost, and each waits for the other",
        Culprit("main", "next_order"),
        (),
    ),
    hung(
        "held_gil",
        "held_gil_sleep",
        "a side thread sleeps in C without releasing the GIL",
        Culprit("thread", "query_license_server"),
        (),
    ),
    hung(
        "held_gil-regex",
        "held_gil_regex",
        "a catastrophic regular expression in the trainer owns the GIL, a logger thread waits for it",
        Culprit("main", "clean"),
        (),
        also=("endless_python",),
    ),
    hung(
        "endless_python",
        "endless_python_loop",
        "the training thread searches for something that does not exist",
        Culprit("main", "hard_negative"),
    ),
    hung(
        "endless_python-forward",
        "endless_python_forward",
        "a layer of the model turns in a loop without an end",
        Culprit("main", "forward"),
    ),
    hung(
        "endless_python-sleep",
        "endless_python_sleep",
        "the training thread sleeps for 300,000 seconds instead of milliseconds",
        Culprit("main", "rest"),
    ),
)
