"""Which processes of a job are its ranks.

By the numbers that a launcher gave them (``placement``), the outermost process with a given number; a DataLoader worker inherits
that of its rank. Where nobody numbered them (a plain spawn sets ``RANK`` inside of the process, where it cannot be seen) by
what their parent waits for. A driver that only starts trainings (a sweep, folds of a cross-validation) is no rank: they are,
each by itself, as under Ray (``ray_train``). Nor is what a training has started to work for it (an inference engine), be it in a
process group of its own.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from perfwatch.triage.roles.placement import Placement, launches, placement, program_of
from perfwatch.triage.roles.ray_train import ray_ranks, untold_ranks
from perfwatch.triage.roles.sights import Sights
from perfwatch.triage.words.frames import any_tag, is_user, short_name, tags
from perfwatch.triage.words.vocabulary import SERVICES
from perfwatch_probes import readings as r
from perfwatch_probes.lineage import lineage

WORKER_THREAD = "pt_data_worker"  # the name that torch gives a DataLoader worker's main thread
TRAINING = ("optimizer", "backward", "loader", "forward")
OUR_NAME = "perfwatch"  # launchers, watchers and writers of ours name themselves so: never part of what they watch
WAITS_FOR_CHILDREN = ("child_wait", "mp_join")
JOINS = ("spawn_join", *WAITS_FOR_CHILDREN)

_SERVICE = re.compile(SERVICES)
_OF_MULTIPROCESSING = re.compile(
    r"\.(?:resource_tracker|forkserver|semaphore_tracker)\b"
)  # imported by a ``-c``, or run by ``-m``


Ranks = dict[int, int | None]  # by pid; None: nobody numbered it, and nothing says that it is one of a group


@dataclass(frozen=True)
class Found:
    """The ranks of a job, the world size where anybody says it, and whether a launcher numbered them (or we did)."""

    ranks: Ranks
    world_size: int | None
    numbered: bool
    doubt: str = ""  # about their numbers


def find_ranks(sights: Sights, processes: dict[int, r.Process]) -> Found:
    """Who trains."""
    candidates = {
        pid: one for pid, one in processes.items() if one.python and not is_service(one) and not launches(one)
    }
    of_ray = ray_ranks(candidates, sights.for_ray, sights.ended, sights.stores)
    if of_ray:  # whatever they inherited is the number of their driver
        group = [pid for pid, rank in of_ray.items() if rank is not None]
        return Found(of_ray, None, numbered=False, doubt=untold_ranks(group, sights.stores))
    told = {pid: Placement(one.rank, one.world_size) for pid, one in candidates.items() if one.rank is not None}
    if not told:
        told = {pid: place for pid, one in candidates.items() if (place := placement(one)) is not None}
    told = {pid: place for pid, place in told.items() if not _helps(sights, pid, processes)}
    told = _passed_on(sights, told, processes)
    if told:
        return _placed(sights, told, processes)
    programs = [p for p in processes.values() if p.python and not is_service(p)]
    roots = [p for p in programs if _nearest_python(p, processes) is None]
    found: Ranks = {}
    for root in sorted(roots, key=lambda p: (p.start_ticks, p.pid)):
        found.update(_descend(sights, root, processes))
    if len(found) > 1 and set(found.values()) == {None} and not sights.in_group.isdisjoint(found):
        found = {pid: number for number, pid in enumerate(found)}  # of a launcher of somebody's own, in its order
    return Found(found, _largest(processes[pid].world_size for pid in found), numbered=False)


def _passed_on(sights: Sights, told: dict[int, Placement], processes: dict[int, r.Process]) -> dict[int, Placement]:
    """The same, but a number that only a DataLoader worker shows is that of the process which made it.

    A program that sets ``RANK`` itself cannot be seen to have it; what it spawns inherits it.
    """
    found: dict[int, Placement] = {}
    for pid, place in told.items():
        above = _nearest_python(processes[pid], processes)
        made_by = above is not None and above not in told and is_worker(sights, processes[pid])
        found.setdefault(above if made_by and above is not None else pid, place)
    return found


def _helps(sights: Sights, pid: int, processes: dict[int, r.Process]) -> bool:
    """Whether a process without torch lies below one that has it and does not merely start others.

    What was numbered within the training's own process (MPI does so in ``MPI_Init``) can be seen in its children alone.
    """
    above = _nearest_python(processes[pid], processes)
    if above is None or processes[pid].torch_loaded is not False or not processes[above].torch_loaded:
        return False
    return not launches(processes[above]) and not any_tag(sights.of_main(above), *JOINS)


def _placed(sights: Sights, told: dict[int, Placement], processes: dict[int, r.Process]) -> Found:
    """The outermost process with each number; one that spawned ranks and waits for them stands for its host, not for a rank."""
    found: Ranks = {}
    sizes: list[int | None] = []
    for pid, place in told.items():
        if _inherits(pid, told, processes):
            continue
        below = list(_descend(sights, processes[pid], processes)) if "spawn_join" in sights.of_main(pid) else [pid]
        for index, one in enumerate(below):
            found[one] = place.rank * len(below) + index
        sizes.append(place.size * len(below) if place.size is not None else None)
    return Found(found, _largest(sizes), numbered=True)


def _largest(sizes: Iterable[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=None)


def _descend(sights: Sights, process: r.Process, processes: dict[int, r.Process]) -> dict[int, int | None]:
    """The rank(s) at or below a top Python process: past launchers, and into the children of a plain spawn."""
    children = [
        p
        for p in processes.values()
        if p.python and _nearest_python(p, processes) == process.pid and not is_service(p) and not is_worker(sights, p)
    ]
    grouped = [child for child in children if child.pid in sights.in_group]
    if _work_for(sights, process.pid, [child.pid for child in grouped]):
        grouped = []
    supervises = any_tag(sights.of_main(process.pid), "spawn_join", "mp_join") or process.pid not in sights.in_group
    if "spawn_join" in sights.of_main(process.pid) or (grouped and supervises):
        entries = {_entry(sights, child.pid) for child in grouped}
        likely = [
            child
            for child in children
            if child in grouped
            or (child.torch_loaded is not False and (not entries or _entry(sights, child.pid) in {None, *entries}))
        ]
        ordered = sorted(likely, key=lambda p: (p.start_ticks, p.pid))
        return {child.pid: index for index, child in enumerate(ordered)}
    if grouped:  # it trains as the first rank itself
        ordered = sorted(grouped, key=lambda p: (p.start_ticks, p.pid))
        return {one.pid: index for index, one in enumerate([process, *ordered])}
    started = _started(sights, process, children, processes)
    if started:
        return started
    heavy = [child for child in children if child.torch_loaded]
    trains = len(heavy) == 1 and any_tag(sights.of(heavy[0].pid), *TRAINING)
    joins = trains and "mp_join" in sights.of_main(process.pid)
    above = process.torch_loaded is False or joins or launches(process) or _only_launches(sights, process.pid)
    if len(heavy) == 1 and above:
        return _descend(sights, heavy[0], processes)
    return {process.pid: None}


def _work_for(sights: Sights, pid: int, grouped: list[int]) -> bool:
    """Whether the members of process groups below one train nothing and work for it: an inference engine has a group of its own.

    Who trains without them, and in no group, needs no more to be known. One that has not trained yet may only supervise them, and
    is taken for the rank while a lone one asks for its next task: an engine of a server that stands at anything else is looked at.
    """
    if not grouped or any_tag(sights.of_main(pid), *JOINS) or any(map(sights.trains, grouped)):
        return False
    if sights.trains(pid):
        return pid not in sights.in_group or all(map(sights.has_asked, grouped))
    return len(grouped) == 1 and sights.asks(grouped[0])


def _started(sights: Sights, driver: r.Process, children: list[r.Process], processes: dict[int, r.Process]) -> Ranks:
    """The trainings below a process that makes no steps itself; none where it trains, or where that cannot be told.

    Where steps are counted below it and never in it, it need not be seen to wait.
    """
    if sights.counts(driver.pid) or sights.was_at(driver.pid, *TRAINING):
        return {}
    below = [_descend(sights, one, processes) for one in children if _trains_below(sights, one, processes)]
    waits = any_tag(sights.of_main(driver.pid), *WAITS_FOR_CHILDREN)
    if not waits and not any(sights.counts(pid) for found in below for pid in found):
        return {}
    if len(below) > 1 and any(number is not None for found in below for number in found.values()):
        return {}  # several groups: their numbers would be taken for those of one
    return {pid: number for found in below for pid, number in found.items()}


def _trains_below(sights: Sights, process: r.Process, processes: dict[int, r.Process]) -> bool:
    if sights.trains(process.pid):
        return True
    below = [one for one in processes.values() if one.python and _nearest_python(one, processes) == process.pid]
    return any(_trains_below(sights, one, processes) for one in below)


def _entry(sights: Sights, pid: int) -> tuple[str, str] | None:
    """The function that a process of ``multiprocessing`` was made to run: ranks share it, a server beside them has its own."""
    stack = sights.main.get(pid)
    inside: list[r.Frame] = []
    for frame in stack.frames if stack is not None else ():
        if short_name(frame.function) == "_bootstrap":
            return next(((one.file, one.function) for one in reversed(inside) if is_user(one)), None)
        inside.append(frame)
    return None


def _only_launches(sights: Sights, pid: int) -> bool:
    """Whether the main thread waits for a child below nothing but an installed command (accelerate, deepspeed)."""
    stack = sights.main.get(pid)
    if stack is None or not any_tag(tags(stack), "child_wait", "mp_join"):
        return False
    return all(not is_user(frame) or "/bin/" in frame.file for frame in stack.frames)


def _inherits(pid: int, told: dict[int, Placement], processes: dict[int, r.Process]) -> bool:
    """Whether an ancestor in the job has the same number, so that this one only inherited it."""
    return any(one.pid in told and told[one.pid].rank == told[pid].rank for one in _above(processes[pid], processes))


def _nearest_python(process: r.Process, processes: dict[int, r.Process]) -> int | None:
    """The Python process that this one descends from, with nothing between but shells, profilers and services."""
    return next((one.pid for one in _above(process, processes) if one.python and not is_service(one)), None)


def _above(process: r.Process, processes: dict[int, r.Process]) -> Iterator[r.Process]:
    """The ancestors, nearest first."""
    return islice(lineage(process, lambda one: processes.get(one.parent_pid)), 1, None)


def is_service(process: r.Process) -> bool:
    """Whether a process is a helper of Python's own, of a library's, or of ours."""
    if process.name.startswith(OUR_NAME):
        return True
    if _SERVICE.search(" ".join(process.command[:1])) or _SERVICE.search(program_of(process.command) or ""):
        return True
    return any(_OF_MULTIPROCESSING.search(part) for part in process.command)


def is_worker(sights: Sights, process: r.Process) -> bool:
    """Whether a process is a DataLoader worker."""
    return process.name.startswith(WORKER_THREAD) or "worker" in sights.of(process.pid)
