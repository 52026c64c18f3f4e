"""The drills that are slow, busy or healthy, each fault beside what looks like it, and what they must be called.

A fault carries the name of its cause, with a suffix for a further way to make it. A program that only looks like
a fault is called what its file is called; ``lookalike_of`` says which verdict would be wrong.
"""

from perfwatch.drills.catalogue_calm import CALM_DRILLS, healthy
from perfwatch.drills.drill import STRENGTHS, Culprit, Drill


def _slow(
    name: str,
    program: str,
    summary: str,
    culprit: Culprit | None = None,
    strengths: tuple[str, ...] = STRENGTHS,
    also: tuple[str, ...] = (),
    ranks: int = 1,
    needs: tuple[str, ...] = (),
    from_start: bool = False,
) -> Drill:
    """Describe a slow run; its cause is the part of ``name`` before a hyphen, ``also`` are right as well."""
    cause = name.split("-")[0]
    return Drill(
        name,
        f"{program}.py",
        summary,
        "slow",
        (cause, *also),
        None,
        strengths,
        ranks,
        needs,
        culprit,
        from_start=from_start,
    )


_LOADING: tuple[Drill, ...] = (
    _slow(
        "starved_by_transforms",
        "starved_by_transforms",
        "a worker blurs photos at a full core and the model waits for nearly every batch",
        Culprit("worker", "augment"),
    ),
    _slow(
        "starved_by_transforms-tokens",
        "starved_by_tokenizing",
        "two workers tokenise text in pure Python more slowly than the model trains",
        Culprit("worker", "encode"),
    ),
    healthy("fast_transforms", "starved_by_transforms", "workers transform all the time and keep up"),
    _slow(
        "starved_by_storage",
        "starved_by_storage",
        "a worker reads samples scattered over a file that is not in the page cache",
        Culprit("worker", "cold_read"),
    ),
    healthy(
        "prefetched_storage",
        "starved_by_storage",
        "workers read the disk all the time, far enough ahead of the model",
    ),
    _slow(
        "starved_by_network",
        "starved_by_network",
        "workers fetch shards from an HTTP store that answers slowly",
        Culprit("worker", "download"),
    ),
    healthy(
        "prefetched_network",
        "starved_by_network",
        "workers wait for a server most of the time, yet far enough ahead of the model",
    ),
    _slow(
        "serial_loading",
        "serial_loading",
        "num_workers=0: the training thread tokenises its text before every step",
        Culprit("main", "tokenize"),
    ),
    healthy(
        "serial_but_cheap",
        "serial_loading",
        "num_workers=0 and samples in memory: loading costs next to nothing",
    ),
    _slow(
        "bursty_loading",
        "bursty_loading",
        "four workers deliver at the same moment: one long wait, then four batches at once",
        Culprit("worker", "fetch"),
        also=("starved_by_network",),
    ),
    healthy(
        "bursty_but_deep",
        "bursty_loading",
        "workers deliver in bursts, and the prefetch is deep enough to hide it",
    ),
    _slow(
        "worker_respawn",
        "worker_respawn",
        "short epochs without persistent_workers: all workers start again each time",
        Culprit("main", "main"),
    ),
    Drill(
        "epoch_index_building",
        "epoch_index_building.py",
        "each epoch begins with an index built in the training thread; the workers stay",
        "slow",
        (),
        "worker_respawn",
    ),
)

_MACHINE: tuple[Drill, ...] = (
    _slow(
        "oversubscribed_threads",
        "oversubscribed_threads",
        "OMP threads far beyond the cores that the process may use",
    ),
    healthy(
        "calm_thread_pool",
        "oversubscribed_threads",
        "as many compute threads as cores, and a dozen Python threads that sleep",
    ),
    healthy(
        "brief_lock",
        "contended_lock",
        "a background thread copies under the trainer's lock and works outside of it",
    ),
    _slow(
        "throttled_cpu",
        "throttled_cpu",
        "a CPU quota below what the loop wants stops it for a part of every 100 ms",
        needs=("root", "cgroup_cpu"),
    ),
    healthy(
        "loose_cpu_quota",
        "throttled_cpu",
        "a CPU quota that the one busy thread never reaches",
        needs=("root", "cgroup_cpu"),
    ),
    _slow("contended_cpu", "contended_cpu", "somebody else's processes burn the core that the job is pinned to"),
    healthy(
        "polite_neighbours",
        "contended_cpu",
        "others burn every core at the lowest priority and take only what is left",
    ),
    Drill(
        "busy_elsewhere",
        "busy_elsewhere.py",
        "the job crowds the one core that it is confined to, while a neighbour burns the others",
        "slow",
        ("oversubscribed_threads", "starved_by_transforms"),
        "contended_cpu",
    ),
    _slow(
        "memory_pressure",
        "memory_pressure",
        "a memory-mapped data set larger than the memory limit leaves: major faults on every step",
        Culprit("main", "gather"),
        needs=("root", "memory_cgroup"),
    ),
    healthy(
        "mapped_and_cached",
        "memory_pressure",
        "a memory-mapped data set read at random, all of it in the page cache",
    ),
    _slow(
        "shared_memory_exhausted",
        "shared_memory_exhausted",
        "/dev/shm is nearly full, so a batch cache spills to disk on every step",
        Culprit("main", "put_on_disk"),
        needs=("root", "mount"),
    ),
    _slow(
        "shared_memory_exhausted-loader",
        "shared_memory_loader_retry",
        "/dev/shm is too small for the workers' batches: they fail and are started again",
        None,
        (),
        needs=("root", "mount"),
    ),
    healthy(
        "roomy_shared_memory",
        "shared_memory_exhausted",
        "/dev/shm holds a large cache, and room enough for the workers' batches",
        needs=("root", "mount"),
    ),
)

_LOOP: tuple[Drill, ...] = (
    _slow(
        "garbage_collection",
        "garbage_collection",
        "a large heap, and gc.collect() called again and again to free memory",
        Culprit("main", "free_memory"),
    ),
    healthy(
        "rare_garbage_collection",
        "garbage_collection",
        "gc.collect() once in two hundred steps on a small heap",
    ),
    _slow(
        "slow_checkpoint",
        "slow_checkpoint",
        "a full checkpoint with fsync every 25 steps",
        Culprit("main", "save_checkpoint"),
    ),
    healthy("rare_checkpoint", "slow_checkpoint", "a small checkpoint every few hundred steps"),
    _slow(
        "recompiling",
        "recompiling",
        "torch.compile meets shapes that never repeat and compiles in the middle of training",
        Culprit("main"),
    ),
    healthy("compiled_once", "recompiling", "torch.compile warmed up in the first steps and never again"),
    _slow(
        "slow_output",
        "slow_output",
        "the loop prints whole tensors to a pipe whose reader is slow",
        Culprit("main"),
    ),
    healthy("fast_output", "slow_output", "prints on every step to a reader that keeps up"),
    _slow("debug_apis_on", "debug_apis_on", "anomaly detection was left on", Culprit("main")),
    _slow(
        "debug_apis_on-profiler",
        "debug_profiler_on",
        "the autograd profiler with stacks was left on",
        Culprit("main"),
        (),
    ),
    _slow(
        "debug_apis_on-around",
        "debug_profiler_around",
        "the whole training runs inside torch's profiler, which has no schedule",
        Culprit("main"),
        (),
    ),
    healthy(
        "profiled_now_and_then",
        "debug_apis_on",
        "torch's profiler with a schedule: two steps out of some thousand are recorded",
    ),
    healthy(
        "many_small_ops",
        "debug_apis_on",
        "hundreds of small operations in each forward pass, no debugging switched on",
    ),
    _slow(
        "skipping_steps",
        "skipping_steps",
        "gradients overflow and the GradScaler skips every optimizer step",
        None,
        (),
    ),
    _slow(
        "skipping_steps-guard",
        "skipping_steps_guard",
        "a guard throws away every update, for no gradient is finite any more",
        Culprit("main", "update"),
        (),
    ),
    healthy("accumulating_gradients", "skipping_steps", "one optimizer step for sixteen backward passes, on purpose"),
    _slow(
        "retrying",
        "retrying",
        "every batch comes from a service that refuses most connections: backoff, again and again",
        Culprit("main", "fetch"),
    ),
    _slow(
        "retrying-helper",
        "retrying_helper",
        "a call that mostly fails goes through a helper that tries anything again, after a while",
        Culprit("main", "persistently"),
    ),
    _slow(
        "retrying-workers",
        "retrying_workers",
        "the workers' object store sends most requests away: they back off and ask again",
        Culprit("worker", "download"),
    ),
    _slow(
        "restart_loop",
        "restart_loop",
        "torchrun restarts a training that fails after a few steps, every time",
        None,
        (),
        also=("retrying", "crashed"),
    ),
    healthy("one_retry", "retrying", "a metrics thread cannot reach its server and retries; training does not care"),
    _slow(
        "straggling_rank",
        "straggling_rank",
        "rank 1 prepares its batches far more slowly than rank 0, which waits in every all_reduce",
        Culprit("rank", "prepare_batch", rank=1),
        ranks=2,
    ),
    healthy(
        "uneven_ranks",
        "straggling_rank",
        "random sequence lengths: now this rank is later, now that one",
        ranks=2,
    ),
    healthy("ranks_in_step", "stalled_collective", "two ranks that meet in an all_reduce on every step", ranks=2),
    _slow("regressed", "regressed", "halfway through, the sequences grow and every step takes longer", from_start=True),
    healthy("varying_lengths", "regressed", "steps of very different length from the start, in no order"),
)

SLOW_DRILLS: tuple[Drill, ...] = _LOADING + _MACHINE + _LOOP + CALM_DRILLS
