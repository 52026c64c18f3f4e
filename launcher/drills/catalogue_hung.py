"""The drills that hang: what each does, what it must be called and who is to blame.

A fault carries the name of its cause, with a suffix for a further way to make it.
"""

from perfwatch.drills.catalogue_gone import GONE_DRILLS
from perfwatch.drills.catalogue_lookalikes import HANG_LOOKALIKES
from perfwatch.drills.drill import STRENGTHS, Culprit, Drill

LOUD_AND_MASKED = ("loud", "masked")


def _hung(
    name: str,
    program: str,
    summary: str,
    culprit: Culprit,
    strengths: tuple[str, ...] = LOUD_AND_MASKED,
    also: tuple[str, ...] = (),
    ranks: int = 1,
    needs: tuple[str, ...] = (),
    culprit_from_start: Culprit | None = None,
) -> Drill:
    """Describe a hang; its cause is the part of ``name`` before a hyphen, ``also`` are names that are right as well."""
    cause = name.split("-")[0]
    return Drill(
        name,
        f"{program}.py",
        summary,
        "hung",
        (cause, *also),
        strengths=strengths,
        ranks=ranks,
        needs=needs,
        culprit=culprit,
        culprit_from_start=culprit_from_start,
    )


HANGS: tuple[Drill, ...] = (
    _hung(
        "stalled_collective",
        "stalled_collective_sleep",
        "rank 1 sleeps between two steps while rank 0 waits for it in the gradient all_reduce",
        Culprit("rank", "refresh_curriculum", rank=1),
        STRENGTHS,
        ranks=2,
    ),
    _hung(
        "stalled_collective-loader",
        "stalled_collective_loader",
        "a DataLoader worker of rank 1 never returns its sample while rank 0 waits in the all_reduce",
        Culprit("worker", "decode", rank=1),
        STRENGTHS,
        ranks=2,
    ),
    _hung(
        "mismatched_collective",
        "mismatched_collective",
        "rank 0 is in all_reduce while rank 1, one batch ahead, is in all_gather",
        Culprit("rank"),
        (),
        ranks=2,
    ),
    _hung(
        "dead_worker",
        "dead_worker_pool",
        "a multiprocessing.Pool worker was killed in the middle of a task and pool.map waits for ever",
        Culprit("main"),
    ),
    _hung(
        "dead_worker-queue",
        "dead_worker_queue",
        "the process that feeds the trainer's queue is gone and the queue stays empty",
        Culprit("child"),
    ),
    _hung(
        "stuck_worker",
        "stuck_worker_sleep",
        "a DataLoader worker sleeps for days in __getitem__",
        Culprit("worker", "__getitem__"),
        STRENGTHS,
    ),
    _hung(
        "stuck_worker-lock",
        "stuck_worker_lock",
        "DataLoader workers wait for a lock that was held when they were forked",
        Culprit("worker", "cached"),
        STRENGTHS,
        also=("deadlocked_locks",),
    ),
    _hung(
        "stuck_worker-loop",
        "stuck_worker_loop",
        "a DataLoader worker draws crops in an endless loop and burns a core",
        Culprit("worker", "sample_crop"),
        ("loud", "quiet"),
        also=("endless_python",),
    ),
    _hung(
        "stuck_worker-filter",
        "stuck_worker_filter",
        "a DataLoader worker filters an endless stream and rejects everything",
        Culprit("worker", "stream"),
        also=("endless_python",),
    ),
    _hung(
        "stuck_pin_memory",
        "stuck_pin_memory",
        "a worker's queue feeder waits for a lock while it pickles the batch",
        Culprit("worker", "__getstate__"),
        STRENGTHS,
    ),
    _hung(
        "deadlocked_locks",
        "deadlocked_locks_order",
        "the trainer and a publisher thread take two locks in opposite order",
        Culprit("main", "train"),
    ),
    _hung(
        "deadlocked_locks-condition",
        "deadlocked_locks_condition",
        "trainer and prefetcher both wait on a condition that nobody notifies",
        Culprit("main"),
    ),
    _hung(
        "deadlocked_locks-unreleased",
        "deadlocked_locks_unreleased",
        "a thread died between acquire and release; the trainer waits for its lock",
        Culprit("main", "main"),
        culprit_from_start=Culprit("thread", "upload"),
    ),
    _hung(
        "deadlocked_locks-producer",
        "deadlocked_locks_producer",
        "a thread that reads ahead died of a bad shard; the trainer waits for its next batch",
        Culprit("main", "<module>"),
        culprit_from_start=Culprit("thread", "decode"),
    ),
    _hung(
        "held_gil",
        "held_gil_sleep",
        "a side thread sleeps in C without releasing the GIL",
        Culprit("thread", "query_license_server"),
        (),
    ),
    _hung(
        "held_gil-regex",
        "held_gil_regex",
        "a catastrophic regular expression in the trainer owns the GIL, a logger thread waits for it",
        Culprit("main", "clean"),
        (),
        also=("endless_python",),
    ),
    _hung(
        "endless_python",
        "endless_python_loop",
        "the training thread searches for something that does not exist",
        Culprit("main", "hard_negative"),
    ),
    _hung(
        "endless_python-sleep",
        "endless_python_sleep",
        "the training thread sleeps for 300,000 seconds instead of milliseconds",
        Culprit("main", "rest"),
    ),
    _hung(
        "blocked_storage",
        "blocked_storage_worker",
        "the FUSE mount that a DataLoader worker reads from has stopped answering",
        Culprit("worker", "load"),
        STRENGTHS,
        needs=("root", "fuse"),
    ),
    _hung(
        "blocked_storage-mmap",
        "blocked_storage_main",
        "the training thread waits for a page of a memory-mapped file whose FUSE mount is silent",
        Culprit("main", "tokens"),
        (),
        needs=("root", "fuse"),
    ),
    _hung(
        "blocked_network",
        "blocked_network_main",
        "the trainer waits for a tracking server that took the request and never answers",
        Culprit("main", "log"),
    ),
    _hung(
        "blocked_network-worker",
        "blocked_network_worker",
        "the object store has sent half of a shard and then nothing; the worker waits in recv",
        Culprit("worker", "fetch"),
        STRENGTHS,
    ),
    _hung(
        "blocked_rendezvous",
        "blocked_rendezvous_rank",
        "one rank of a world of three waits in init_process_group",
        Culprit("main", "setup"),
    ),
    _hung(
        "blocked_rendezvous-store",
        "blocked_rendezvous_store",
        "the trainer waits for a key in the TCPStore that nobody sets",
        Culprit("main", "learning_rate"),
        (),
    ),
    _hung(
        "blocked_child",
        "blocked_child_wait",
        "the trainer waits for a conversion tool that sleeps",
        Culprit("child", "convert"),
    ),
    _hung(
        "blocked_child-output",
        "blocked_child_output",
        "the trainer reads the output of an evaluation script that has deadlocked",
        Culprit("child"),
    ),
    _hung(
        "blocked_pipe",
        "blocked_pipe_stdout",
        "standard output is a full pipe whose reader has stopped reading",
        Culprit("main", "log"),
    ),
    _hung(
        "blocked_pipe-fifo",
        "blocked_pipe_fifo",
        "a DataLoader worker opens a FIFO that nobody writes to",
        Culprit("worker", "__getitem__"),
        STRENGTHS,
    ),
    _hung(
        "waiting_for_file",
        "waiting_for_file_flag",
        "the trainer polls for a flag file that nobody writes",
        Culprit("main", "wait_for_preprocessing"),
    ),
    _hung(
        "waiting_for_file-flock",
        "waiting_for_file_flock",
        "the trainer waits for an flock that an idle other job holds",
        Culprit("main", "__enter__"),
    ),
    _hung(
        "waiting_for_file-database",
        "waiting_for_file_database",
        "every step writes to an SQLite file that another program has locked for good",
        Culprit("main", "note"),
    ),
    _hung(
        "waiting_for_file-baton",
        "waiting_for_file_baton",
        "a stale lock file in torch's extension build folder",
        Culprit("main"),
    ),
    _hung(
        "stopped",
        "stopped_main",
        "the run was suspended with SIGSTOP",
        Culprit("main"),
        (),
    ),
    _hung(
        "stopped-rank",
        "stopped_rank",
        "rank 1 of two was suspended with SIGSTOP",
        Culprit("rank", rank=1),
        ranks=2,
    ),
    _hung(
        "stopped-worker",
        "stopped_worker",
        "a DataLoader worker was suspended with SIGSTOP",
        Culprit("worker"),
        STRENGTHS,
    ),
    _hung(
        "waiting_for_input",
        "waiting_for_input_pdb",
        "a forgotten breakpoint() waits at a terminal",
        Culprit("main", "check"),
        needs=("pty",),
    ),
    _hung(
        "waiting_for_input-prompt",
        "waiting_for_input_prompt",
        "input() asks whether to overwrite a folder",
        Culprit("main", "confirm"),
        (),
        needs=("pty",),
    ),
    _hung(
        "hung_at_exit",
        "hung_at_exit_thread",
        "training has ended; a thread that is not a daemon keeps the process",
        Culprit("process"),
    ),
    _hung(
        "hung_at_exit-atexit",
        "hung_at_exit_atexit",
        "training has ended; an atexit handler waits for an uploader",
        Culprit("main", "flush"),
        (),
    ),
)

HUNG_DRILLS: tuple[Drill, ...] = HANGS + GONE_DRILLS + HANG_LOOKALIKES
