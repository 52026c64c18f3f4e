"""Which GPU belongs to which process of the job.

The best witness is the driver: it lists who has a context on a card, by its pid on the host. In a container those numbers say
nothing; then the device files that a process holds tell which cards it may use, and its environment which one it was given. A
reading says how it is known, and holds no card where it is not.
"""

from collections.abc import Collection, Iterable, Sequence

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.gpu_files import DeviceFiles, device_files, sees_host_pids
from perfwatch_probes.gpu_visible import visible
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Gpu, GpuBinding, GpuProcess, Process


class GpuBindingProbe:
    """Reads the device files of processes and puts them beside what the driver says.

    Args:
        filesystem: where /proc is.
    """

    NAME = "gpu binding"
    NEEDS = (
        "the same user as the job, or CAP_SYS_PTRACE; in a container: the same container, or the host's PID namespace"
    )
    COST = "2 us for each open file of a rank, every few seconds"

    def __init__(self, filesystem: Filesystem | None = None) -> None:
        self._filesystem = filesystem or Filesystem()
        self._last: dict[int, GpuBinding] = {}
        self._lists = False  # the driver has listed a process: when it lists none, there is none

    def look(
        self, processes: Iterable[Process], gpus: Sequence[Gpu], contexts: Collection[GpuProcess]
    ) -> list[GpuBinding]:
        """Bindings that have changed. ``contexts``: whom the driver lists now.

        Where no card is described (yet, or in a container without the driver's library), only of processes that use CUDA.
        """
        found = []
        self._lists = self._lists or bool(contexts)
        complete = self._lists and sees_host_pids(self._filesystem)
        for process in processes:
            try:
                files = device_files(self._filesystem, process.pid)
            except Unavailable:
                files = None
            binding = bind(process, gpus, contexts, files, complete)
            if self._last.get(process.pid) != binding and (gpus or binding.cuda):
                self._last[process.pid] = binding
                found.append(binding)
        return found


def bind(
    process: Process,
    gpus: Sequence[Gpu],
    contexts: Collection[GpuProcess],
    files: DeviceFiles | None,
    complete: bool = False,
) -> GpuBinding:
    """The cards of one process, by the best witness that there is. Pure.

    Args:
        process: with its environment and LOCAL_RANK.
        gpus: all cards and MIG devices.
        contexts: whom the driver lists.
        files: its device files; None when they could not be read.
        complete: the driver lists processes, by the pids that we see: who is not listed has no context.
    """
    held = _held(gpus, files)
    allowed = _reconciled(visible(process.environment, gpus), held, gpus)
    listed = tuple(dict.fromkeys(one.uuid for one in contexts if one.local_pid == process.pid and not one.gone))
    cuda = True if listed else False if complete else files.cuda if files is not None else None
    if listed:
        uuids, how = listed, "nvml"
    elif cuda is False:
        uuids, how = (), ""
    else:
        counted = (
            None if any(gpu.stand_in for gpu in gpus) else process.local_rank
        )  # a lost card may be one of those counted
        uuids, how = _guess(counted, held, allowed)
    if allowed is None or not set(listed) <= set(allowed):  # the program may have changed its own environment
        allowed = listed
    return GpuBinding(pid=process.pid, uuids=_ordered(uuids, allowed), visible=allowed, how=how, cuda=cuda)


def _held(gpus: Sequence[Gpu], files: DeviceFiles | None) -> tuple[str, ...]:
    minors = files.minors if files is not None else frozenset()
    return tuple(gpu.uuid for gpu in gpus if gpu.minor in minors and gpu.parent_uuid is None)


def _reconciled(allowed: tuple[str, ...] | None, held: tuple[str, ...], gpus: Sequence[Gpu]) -> tuple[str, ...] | None:
    """What is visible, as far as the process holds its files; in a container of its own the numbers are not ours."""
    if not held or allowed is None:
        return held or allowed
    cards = {gpu.uuid: gpu.parent_uuid or gpu.uuid for gpu in gpus}
    both = tuple(uuid for uuid in allowed if cards[uuid] in held)
    return both or held


def _guess(
    local_rank: int | None, held: tuple[str, ...], allowed: tuple[str, ...] | None
) -> tuple[tuple[str, ...], str]:
    """Without the driver's word: device files, if they leave one card, then the environment, then LOCAL_RANK."""
    if allowed is not None and len(allowed) == 1:
        return allowed, "device_files" if held else "environment"
    if allowed is not None and local_rank is not None and local_rank < len(allowed):
        return (allowed[local_rank],), "local_rank"
    return (), ""


def _ordered(uuids: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    places = {uuid: place for place, uuid in enumerate(order)}
    return tuple(sorted(uuids, key=lambda uuid: places.get(uuid, len(order))))
