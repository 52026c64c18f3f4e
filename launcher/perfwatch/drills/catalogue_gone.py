"""The drills that end: finished, crashed, killed by a signal, killed because memory ran out."""

from perfwatch.drills.drill import Culprit, Drill

GONE_DRILLS: tuple[Drill, ...] = (
    Drill("finished", "finished.py", "the run ends with exit code 0", "gone", ("finished",)),
    Drill("crashed", "crashed_traceback.py", "the run ends with a traceback", "gone", ("crashed",)),
    Drill("killed", "killed.py", "SIGKILL is sent to the run", "gone", ("killed",)),
    Drill(
        "killed-rank",
        "stalled_collective_dead.py",
        "rank 1 of two is killed; the other raises because gloo has lost it, and who started them does not mind",
        "gone",
        ("killed",),
        culprit=Culprit("rank", rank=1),
    ),
    *(
        Drill(
            f"killed-rank-{word}",
            "stalled_collective_dead.py",
            f"rank 1 of {word} is killed; the others raise because gloo has lost it, and who started them does not mind",
            "gone",
            ("killed",),
            culprit=Culprit("rank", rank=1),
            arguments=("--ranks", number),
        )
        for word, number in (("four", "4"), ("eight", "8"))
    ),
    Drill(
        "out_of_memory",
        "out_of_memory.py",
        "a leak inside a memory cgroup, until the kernel kills the run",
        "gone",
        ("out_of_memory",),
        needs=("memory_cgroup",),
    ),
    Drill(
        "crashed_worker_killed",
        "crashed_worker_killed.py",
        "a DataLoader worker is killed, torch raises and the run crashes: it was not killed itself",
        "gone",
        ("crashed",),
        lookalike_of="killed",
    ),
)
