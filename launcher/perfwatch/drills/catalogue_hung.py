"""The drills that hang, with the expected verdict and culprit of each; those that end and those that only look hung are added.

A fault has the name of its cause, with a suffix for a further way to cause it.
"""

from perfwatch.drills.catalogue_gone import GONE_DRILLS
from perfwatch.drills.catalogue_lookalikes import HANG_LOOKALIKES
from perfwatch.drills.catalogue_stuck import STUCK
from perfwatch.drills.describing import hung
from perfwatch.drills.drill import STRENGTHS, Culprit, Drill

HANGS: tuple[Drill, ...] = (
    hung(
        "stalled_collective",
        "stalled_collective_sleep",
        "rank 1 sleeps between two steps while rank 0 waits for it in the gradient all_reduce",
        Culprit("rank", "refresh_curriculum", rank=1),
        STRENGTHS,
        ranks=2,
        ends={"quiet": "temporal"},  # naps between looks whether it may go on
    ),
    hung(
        "stalled_collective-loader",
        "stalled_collective_loader",
        "a DataLoader worker of rank 1 never returns its sample while rank 0 waits in the all_reduce",
        Culprit("worker", "decode", rank=1),
        STRENGTHS,
        ranks=2,
    ),
    hung(
        "mismatched_collective",
        "mismatched_collective",
        "rank 0 is in all_reduce while rank 1, one batch ahead, is in all_gather",
        Culprit("rank"),
        (),
        ranks=2,
    ),
    *STUCK,
    hung(
        "blocked_storage",
        "blocked_storage_worker",
        "the FUSE mount that a DataLoader worker reads from has stopped answering",
        Culprit("worker", "load"),
        STRENGTHS,
        needs=("root", "fuse"),
    ),
    hung(
        "blocked_storage-mmap",
        "blocked_storage_main",
        "the training thread waits for a page of a memory-mapped file whose FUSE mount is silent",
        Culprit("main", "tokens"),
        (),
        needs=("root", "fuse"),
    ),
    hung(
        "blocked_network",
        "blocked_network_main",
        "the trainer waits for a tracking server that took the request and never answers",
        Culprit("main", "log"),
    ),
    hung(
        "blocked_network-worker",
        "blocked_network_worker",
        "the object store has sent half of a shard and then nothing; the worker waits in recv",
        Culprit("worker", "fetch"),
        STRENGTHS,
    ),
    hung(
        "blocked_rendezvous",
        "blocked_rendezvous_rank",
        "one rank of a world of three waits in init_process_group",
        Culprit("main", "setup"),
    ),
    hung(
        "blocked_rendezvous-store",
        "blocked_rendezvous_store",
        "the trainer waits for a key in the TCPStore that is never set",
        Culprit("main", "learning_rate"),
        (),
    ),
    hung(
        "blocked_child",
        "blocked_child_wait",
        "the trainer waits for a conversion tool that sleeps",
        Culprit("child", "convert"),
    ),
    hung(
        "blocked_child-output",
        "blocked_child_output",
        "the trainer reads the output of an evaluation script that has deadlocked",
        Culprit("child"),
    ),
    hung(
        "blocked_pipe",
        "blocked_pipe_stdout",
        "standard output is a full pipe whose reader has stopped reading",
        Culprit("main", "log"),
    ),
    hung(
        "blocked_pipe-fifo",
        "blocked_pipe_fifo",
        "a DataLoader worker opens a FIFO that is never written to",
        Culprit("worker", "__getitem__"),
        STRENGTHS,
    ),
    hung(
        "waiting_for_file",
        "waiting_for_file_flag",
        "the trainer polls for a flag file that is never written",
        Culprit("main", "wait_for_preprocessing"),
    ),
    hung(
        "waiting_for_file-flock",
        "waiting_for_file_flock",
        "the trainer waits for an flock that an idle other job holds",
        Culprit("main", "__enter__"),
    ),
    hung(
        "waiting_for_file-database",
        "waiting_for_file_database",
        "every step writes to an SQLite file that another program has locked for good",
        Culprit("main", "note"),
    ),
    hung(
        "waiting_for_file-baton",
        "waiting_for_file_baton",
        "a stale lock file in torch's extension build folder",
        Culprit("main"),
    ),
    hung(
        "stopped",
        "stopped_main",
        "the run was suspended with SIGSTOP",
        Culprit("main"),
        (),
    ),
    hung(
        "stopped-rank",
        "stopped_rank",
        "rank 1 of two was suspended with SIGSTOP",
        Culprit("rank", rank=1),
        ranks=2,
    ),
    hung(
        "stopped-worker",
        "stopped_worker",
        "a DataLoader worker was suspended with SIGSTOP",
        Culprit("worker"),
        STRENGTHS,
    ),
    hung(
        "waiting_for_input",
        "waiting_for_input_pdb",
        "a forgotten breakpoint() waits at a terminal",
        Culprit("main", "check"),
        needs=("pty",),
    ),
    hung(
        "waiting_for_input-prompt",
        "waiting_for_input_prompt",
        "input() asks whether to overwrite a folder",
        Culprit("main", "confirm"),
        (),
        needs=("pty",),
    ),
    hung(
        "hung_at_exit",
        "hung_at_exit_thread",
        "training has ended; a thread that is not a daemon keeps the process",
        Culprit("process"),
    ),
    hung(
        "hung_at_exit-atexit",
        "hung_at_exit_atexit",
        "training has ended; an atexit handler waits for an uploader",
        Culprit("main", "flush"),
        (),
    ),
)

HUNG_DRILLS: tuple[Drill, ...] = HANGS + GONE_DRILLS + HANG_LOOKALIKES
