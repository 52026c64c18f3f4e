"""The drills that are slow, busy or healthy: each fault beside its look-alikes, with the expected verdicts."""

from perfwatch.drills.catalogue_calm import CALM_DRILLS
from perfwatch.drills.catalogue_loop import LOOP_DRILLS
from perfwatch.drills.describing import healthy, slow
from perfwatch.drills.drill import Culprit, Drill

_LOADING: tuple[Drill, ...] = (
    slow(
        "starved_by_transforms",
        "starved_by_transforms",
        "a worker blurs photos at a full core and the model waits for nearly every batch",
        Culprit("worker", "augment"),
    ),
    slow(
        "starved_by_transforms-tokens",
        "starved_by_tokenizing",
        "two workers tokenise text in pure Python more slowly than the model trains",
        Culprit("worker", "encode"),
    ),
    healthy("fast_transforms", "starved_by_transforms", "workers transform all the time and keep up"),
    slow(
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
    slow(
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
    slow(
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
    slow(
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
    slow(
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
    slow(
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
    slow(
        "contended_lock-gil",
        "contended_lock_gil",
        "a background thread computes in Python without a pause and has the GIL",
        Culprit("thread", "count_words_for_ever"),
        strengths=(),
    ),
    healthy(
        "busy_threads_without_gil",
        "contended_lock",
        "a background thread computes without a pause in native code that has released the GIL",
    ),
    slow(
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
    slow("contended_cpu", "contended_cpu", "processes of another job burn the core that the job is pinned to"),
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
    slow(
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
    slow(
        "shared_memory_exhausted",
        "shared_memory_exhausted",
        "/dev/shm is nearly full, so a batch cache spills to disk on every step",
        Culprit("main", "put"),
        needs=("root", "mount"),
    ),
    slow(
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

SLOW_DRILLS: tuple[Drill, ...] = _LOADING + _MACHINE + LOOP_DRILLS + CALM_DRILLS
