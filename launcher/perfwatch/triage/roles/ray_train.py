"""Who trains in a program of Ray: the workers of Ray Train, the trials of Ray Tune. Controllers and other actors only serve them.

The function that trains runs in a thread that Ray made for it, in an actor whose main thread takes calls. Its rank is told to a
worker when it runs, where nobody outside sees it: rank 0 is the one that serves torch's store, the others are counted in the order of
their start, which need not be Ray's (measured: of two workers the second to start was rank 0).

Source: Ray 2.60, ``ray/train/v2/_internal/execution/worker_group`` and ``ray/air/_internal/util.py`` (the older Train, and Tune).
"""

import re
from collections.abc import Collection, Mapping

from perfwatch.triage.words.frames import is_user, tags
from perfwatch_probes import readings as r

RUNS = "train_function"  # tag of the thread that was made for it
_WORKER = re.compile(r"^ray::_?RayTrainWorker\b")
_CONTROLLER = re.compile(r"^ray::_?TrainController\b")


def runs_training(stack: r.Stack) -> bool:
    """True if a thread is in the function that a program gave to Ray to train by; one of Ray's own (a trainer's) is none."""
    return RUNS in tags(stack) and any(map(is_user, stack.frames))


def ray_ranks(
    processes: Mapping[int, r.Process], training: Collection[int], ended: Collection[int], stores: Collection[int]
) -> dict[int, int | None]:
    """The living workers of Ray Train, by pid with their numbers; failing them the trials, each by itself; empty without Ray.

    Those that have ended are no ranks any more: Ray replaces a group as a whole, and ends a trial that is done.
    """
    living = [one for pid, one in processes.items() if pid not in ended and title(one).startswith("ray::")]
    workers = sorted(filter(of_ray_train, living), key=lambda one: (one.pid not in stores, one.start_ticks, one.pid))
    if not workers:
        return {one.pid: None for one in living if one.pid in training}
    one_group = len(workers) > 1 and sum(bool(_CONTROLLER.search(title(one))) for one in living) <= 1
    return {one.pid: index if one_group else None for index, one in enumerate(workers)}


def of_ray_train(process: r.Process) -> bool:
    """True if a process is a worker of Ray Train."""
    return _WORKER.search(title(process)) is not None


def untold_ranks(ranks: Collection[int], stores: Collection[int]) -> str:
    """What to say of the numbers of so many workers of Ray Train; nothing where they cannot be wrong."""
    known = any(pid in stores for pid in ranks)
    if len(ranks) < 2 or (known and len(ranks) == 2):
        return ""
    others = "the workers other than rank 0 are" if known else "they are"
    return f"Ray does not show which worker is which rank: {others} numbered in the order of their start"


def title(process: r.Process) -> str:
    """What a process of Ray calls itself: its class, and the method that ran when it was first looked at."""
    return process.command[0] if process.command else process.name
