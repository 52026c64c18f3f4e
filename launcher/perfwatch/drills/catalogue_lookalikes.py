"""The programs that look hung and are not: which fault each resembles, and the expected verdict.

If ``causes`` is empty, any cause is right except the one in ``lookalike_of``.
"""

from perfwatch.drills.drill import Culprit, Drill


def _benign(
    program: str,
    lookalike_of: str,
    state: str,
    causes: tuple[str, ...],
    summary: str,
    ranks: int = 1,
    needs: tuple[str, ...] = (),
    culprit: Culprit | None = None,
) -> Drill:
    """Describe a program that is not what it looks like; it is called what its file is called."""
    return Drill(program, f"{program}.py", summary, state, causes, lookalike_of, (), ranks, needs, culprit)


HANG_LOOKALIKES: tuple[Drill, ...] = (
    _benign("slow_worker_waits", "stuck_worker", "slow", (), "each sample sleeps 8 to 13 s, and then it comes"),
    _benign(
        "slow_pool_tasks",
        "dead_worker",
        "slow",
        ("starved_by_transforms",),
        "8 s pool tasks, a fresh worker process for each",
    ),
    _benign(
        "healthy_unreaped_child", "dead_worker", "healthy", (), "a zombie child that has nothing to do with training"
    ),
    _benign(
        "slow_pickling",
        "stuck_pin_memory",
        "slow",
        ("starved_by_transforms",),
        "the queue feeder compresses each batch for 5 to 7 s",
    ),
    _benign(
        "slow_lock_owner",
        "deadlocked_locks",
        "slow",
        ("contended_lock",),
        "a side thread works 6 to 9 s under the trainer's lock",
    ),
    _benign("slow_eventfd_holder", "unknown", "inconclusive", (), "each order comes over an eventfd after 8 to 12 s"),
    _benign("busy_native_call", "held_gil", "busy", ("computing_on_host",), "a one-minute SVD with the GIL released"),
    _benign(
        "slow_python_step", "endless_python", "slow", ("serial_loading",), "15 to 20 s of pure Python in each step"
    ),
    _benign(
        "straggling_rank_sleep",
        "stalled_collective",
        "slow",
        ("straggling_rank",),
        "rank 1 is 3 s late in each step, and then it comes",
        ranks=2,
        culprit=Culprit("rank", rank=1),
    ),
    _benign(
        "busy_rank_zero_saves",
        "mismatched_collective",
        "busy",
        ("checkpointing",),
        "rank 0 writes a long checkpoint while rank 1 waits in the barrier",
        ranks=2,
    ),
    _benign(
        "busy_checkpoint_fsync", "blocked_storage", "busy", ("checkpointing",), "a checkpoint fsynced piece by piece"
    ),
    _benign(
        "starved_by_slow_mount",
        "blocked_storage",
        "slow",
        ("starved_by_storage",),
        "the FUSE mount answers each read after 1.5 s",
        needs=("root", "fuse"),
    ),
    _benign("busy_trickling_download", "blocked_network", "busy", ("downloading",), "weights arrive at 8 kB/s"),
    _benign(
        "busy_late_rank",
        "blocked_rendezvous",
        "busy",
        ("starting",),
        "rank 1 walks its data set for 150 s before it joins the rendezvous",
        ranks=2,
    ),
    _benign(
        "busy_child_converts",
        "blocked_child",
        "busy",
        ("waiting_on_work",),
        "the trainer waits for a compressor that works",
    ),
    _benign("slow_pipe_reader", "blocked_pipe", "slow", ("slow_output",), "standard output is read at 8 kB/s"),
    _benign(
        "busy_file_lock_owner",
        "waiting_for_file",
        "busy",
        ("waiting_on_work",),
        "the flock's owner builds the index that we wait for",
    ),
    _benign("healthy_brief_stops", "stopped", "healthy", (), "a snapshotting tool stops the run for 0.3 s every 5 s"),
    _benign(
        "healthy_key_listener",
        "waiting_for_input",
        "healthy",
        (),
        "a side thread reads the terminal while the main thread trains",
        needs=("pty",),
    ),
    _benign(
        "busy_final_save",
        "hung_at_exit",
        "busy",
        ("checkpointing",),
        "an atexit handler writes the model for five minutes",
    ),
)
