"""What is known of every process of a job when its ranks are looked for, gathered in one pass."""

from collections.abc import Collection

from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import was_at
from perfwatch.triage.roles.ray_train import runs_training
from perfwatch.triage.words.frames import any_tag, is_user, own_frames, tags
from perfwatch_probes import readings as r

ASKS_FOR_TASKS = ("queue_get", "mp_queue_get", "mp_receive")
# How torch and its backends name the threads of a process group (gloo's loop, NCCL's watchdog, heartbeat and proxy).
GROUP_THREADS = ("gloo", "pt_nccl", "NCCL", "nccl", "pt_gloo")
STORE_THREAD = "pt_tcpstore"  # how torch names the thread of a TCPStore's server (torch 2.1 to 2.13)


class Sights:
    """What is known of every process, gathered in one pass: a job can have thousands of threads."""

    def __init__(self, history: History, ended: Collection[int] = ()) -> None:
        self._history, self.ended = history, ended
        self.all: dict[int, set[str]] = {}  # tags of all its threads' newest stacks
        self.main: dict[int, r.Stack] = {}
        # Belongs to a process group, by its stacks or by a thread that torch made for one.
        self.in_group: set[int] = set()
        self.for_ray: set[int] = set()  # A thread of it runs a training that was given to Ray.
        self.stores: set[int] = set()  # It serves torch's store, which rank 0 does.
        for pid, tid in history.entities(r.Stack):
            seen = history.latest(r.Stack, pid, tid)
            if seen is None:
                continue
            self.all.setdefault(pid, set()).update(tags(seen.reading))
            if pid == tid:
                self.main[pid] = seen.reading
            elif runs_training(seen.reading):
                self.for_ray.add(pid)
        for pid, tid in history.entities(r.Thread):
            thread = history.latest(r.Thread, pid, tid)
            if thread is not None and thread.reading.name.startswith(GROUP_THREADS):
                self.in_group.add(pid)
            if thread is not None and thread.reading.name.startswith(STORE_THREAD):
                self.stores.add(pid)
        self.in_group |= {pid for pid, found in self.all.items() if any_tag(found, "collective", "rendezvous")}

    def of(self, pid: int) -> frozenset[str]:
        """Tags of all threads of a process."""
        return frozenset(self.all.get(pid, ()))

    def of_main(self, pid: int) -> frozenset[str]:
        """Tags of its main thread."""
        return tags(self.main[pid]) if pid in self.main else frozenset()

    def counts(self, pid: int) -> bool:
        """True if the agent has counted steps in it."""
        counted = self._history.latest(r.Steps, pid)
        return counted is not None and counted.reading.count > 0

    def trains(self, pid: int) -> bool:
        """True if it lives and has made steps, or was seen in the midst of one."""
        return pid not in self.ended and (self.counts(pid) or self.was_at(pid, "backward", "optimizer"))

    def asks(self, pid: int) -> bool:
        """True if its main thread is in a library's own loop, which takes its next task from a queue."""
        return pid in self.main and _asks(self.main[pid])

    def has_asked(self, pid: int) -> bool:
        """True if it was ever seen there; the newest stack is looked at first."""
        return any(_asks(one.reading) for one in reversed(self._history.series(r.Stack, pid, pid)))

    def was_at(self, pid: int, *any_of: str) -> bool:
        """True if its main thread was ever seen in a stack with one of these tags."""
        return was_at(self._history, pid, pid, *any_of)


def _asks(stack: r.Stack) -> bool:
    return any_tag(tags(stack), *ASKS_FOR_TASKS) and not any(map(is_user, own_frames(stack)))
