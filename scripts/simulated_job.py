"""A training job that exists only as a /proc of files, a clock and the answers of probes: a day of it takes minutes.

Two ranks (``--ranks``) train; each epoch starts new loader workers and a new helper thread in each rank, as real ones do. Now and
then the training stands for three minutes and goes on. The probes of files, the family tree, the loop, the rules and the recorder are
the real ones; py-spy, the agent and the driver are played.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from perfwatch.watching.probes_of_job import Look
from perfwatch_probes import readings as r
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable

LAUNCHER, FIRST_RANK, FIRST_WORKER = 4_200_000, 4_200_001, 4_300_000  # above any pid of a real machine
STEP_SECONDS = 0.25
STAND_SECONDS = 180.0
LIBRARY = "/opt/lib/python3.11/site-packages/torch"
MAPS = f"7f00-7f01 r-xp 0 08:01 1 {LIBRARY}/lib/libtorch_cpu.so\n7f01-7f02 r-xp 0 08:01 1 /opt/bin/python3.11\n"
TRAINS = (r.Frame("step", f"{LIBRARY}/optim/sgd.py", 90), r.Frame("train", "/app/train.py", 20))
LEARNS = (r.Frame("_engine_run_backward", f"{LIBRARY}/autograd/graph.py", 9), r.Frame("train", "/app/train.py", 19))
STANDS = (r.Frame("wait_for_licence", "/app/train.py", 40), r.Frame("train", "/app/train.py", 21))
FETCHES = (r.Frame("fetch", f"{LIBRARY}/utils/data/_utils/fetch.py", 50),)


class Clock:
    """Seconds, moved by whoever simulates."""

    now = 0.0

    def __call__(self) -> float:
        """The time that it shows."""
        return self.now


class SimulatedJob:
    """The processes, as files below ``proc``.

    Args:
        proc: an empty folder.
        ranks: how many train.
        workers: of each rank.
        epoch_seconds: how long workers live.
        stand_every_seconds: how often the training stands for a while.
    """

    def __init__(self, proc: Path, ranks: int, workers: int, epoch_seconds: float, stand_every_seconds: float) -> None:
        self.proc, self.workers = proc, workers
        self.ranks = [FIRST_RANK + number for number in range(ranks)]
        self.epoch_seconds, self.stand_every_seconds = epoch_seconds, stand_every_seconds
        self.worked_seconds = 0.0
        self.standing = False
        self._now = 0.0
        self._epoch = -1
        self._alive: list[int] = []
        self.processes_so_far = 0
        (proc / "self").mkdir(parents=True)
        self._process(LAUNCHER, 1, "torchrun")
        for pid in self.ranks:
            self._process(pid, LAUNCHER, "python", rank=pid - FIRST_RANK)

    @property
    def steps(self) -> int:
        """That each rank has made."""
        return int(self.worked_seconds / STEP_SECONDS)

    def move(self, now: float) -> None:
        """Be what it is at this time."""
        late = now % self.stand_every_seconds
        self.standing = now > self.stand_every_seconds and late < STAND_SECONDS
        if not self.standing:
            self.worked_seconds += now - self._now
        self._now = now
        if int(now / self.epoch_seconds) != self._epoch:
            self._epoch = int(now / self.epoch_seconds)
            self._renew()
        for pid in self.ranks:
            self._thread(pid, pid, 0.9 * self.worked_seconds, "S" if self.standing else "R")

    def _renew(self) -> None:
        for pid in self._alive:
            shutil.rmtree(self.proc / str(pid))
        self._alive = []
        for rank in self.ranks:
            for helper in (self.proc / str(rank) / "task").iterdir():
                if int(helper.name) != rank:
                    shutil.rmtree(helper)
            self._thread(rank, FIRST_WORKER + self.processes_so_far + 500_000, 0.01, "S")
            for _ in range(self.workers):
                pid = FIRST_WORKER + self.processes_so_far
                self._process(pid, rank, "pt_data_worker", rank=rank - FIRST_RANK)
                self._alive.append(pid)

    def _process(self, pid: int, parent: int, name: str, rank: "int | None" = None) -> None:
        folder = self.proc / str(pid)
        self.processes_so_far += 1
        (folder / "task").mkdir(parents=True)
        self._parent, self._name = getattr(self, "_parent", {}), getattr(self, "_name", {})
        self._parent[pid], self._name[pid] = parent, name
        environment = "" if rank is None else f"RANK={rank}\0LOCAL_RANK={rank}\0WORLD_SIZE={len(self.ranks)}\0"
        files = {
            "cmdline": "python\0/opt/bin/torchrun\0train.py\0" if pid == LAUNCHER else "python\0train.py\0",
            "environ": environment,
            "maps": MAPS,
            "statm": "40401 2816 1550 1 0 5758 0\n",
            "io": "rchar: 1\nwchar: 1\nsyscr: 1\nsyscw: 1\nread_bytes: 0\nwrite_bytes: 0\n",
        }
        for file, text in files.items():
            (folder / file).write_text(text)
        self._thread(pid, pid, 0.01, "S")

    def _thread(self, pid: int, tid: int, ran_seconds: float, state: str) -> None:
        folder = self.proc / str(pid) / "task" / str(tid)
        folder.mkdir(exist_ok=True)
        ticks = int(100 * ran_seconds)
        fields = (
            f"{state} {self._parent[pid]} 1 1 0 -1 4194304 1380 0 0 0 {ticks} 1 0 0 20 0 3 0 {pid} 165482496 2782 "
            + "0 " * 28
        )
        status = f"Name:\t{self._name[pid]}\nUid:\t0\t0\t0\t0\nTgid:\t{pid}\nPid:\t{tid}\nNSpid:\t{tid}\n"
        status += f"voluntary_ctxt_switches:\t{ticks}\nnonvoluntary_ctxt_switches:\t1\n"
        call = "running\n" if state == "R" else "202 0x1 0x0 0x0 0x0 0x0 0x0 0x7ffe 0x7f7b\n"
        files = {
            "stat": f"{tid} ({self._name[pid]}) {fields}\n",
            "status": status,
            "schedstat": f"{int(1e9 * ran_seconds)} 1000 {ticks}\n",
            "syscall": call,
        }
        for file, text in files.items():
            (folder / file).write_text(text)
            if pid == tid and file in ("stat", "status"):
                (self.proc / str(pid) / file).write_text(text)


class SimulatedLook(Look):
    """The real probes on the simulated /proc; what py-spy, the agent and the machine would say is played."""

    def __init__(
        self, sink: Callable[[Sequence[r.Reading]], None], job: SimulatedJob, clock: Clock, cards: int
    ) -> None:
        super().__init__(sink, None, Filesystem(proc=job.proc), clock, gpus=SimulatedGpus(job, clock, cards))  # type: ignore[arg-type]
        self._job, self._now, self._tell = job, clock, sink
        self._told_steps = 0
        self._recording: list[tuple[float, int]] = []

    def steps(self) -> list[r.Reading]:
        """As the agent's pages have them."""
        fresh, self._told_steps = self._job.steps - self._told_steps, self._job.steps
        ago = self._now() % STEP_SECONDS if not self._job.standing else self._now() % self._job.stand_every_seconds
        found: list[r.Reading] = [
            r.Steps(
                pid=pid,
                tid=pid,
                count=self._job.steps,
                step_ago_seconds=ago,
                interval_seconds=(STEP_SECONDS,) * min(64, fresh),
            )
            for pid in self._job.ranks
            if self._job.steps
        ]
        return self.take("steps", "agent", lambda: found)

    def dump(self, pids: Sequence[int], texts: bool = False) -> list[r.Reading]:
        """As py-spy would."""
        return self.take(
            "stacks", f"{len(pids)} processes", lambda: [s for pid in pids for s in self._stacks(pid, 1, 0.0)]
        )

    def record(self, pid: int, seconds: float) -> bool:
        """Begin, where it was not begun before."""
        if pid in [one for _, one in self._recording]:
            return False
        self._recording.append((self._now() + seconds, pid))
        return True

    def collect(self) -> list[tuple[float, r.Reading]]:
        """Those that are over."""
        over = [one for one in self._recording if one[0] <= self._now()]
        self._recording = [one for one in self._recording if one[0] > self._now()]
        return [(0.0, stack) for _, pid in over for stack in self._stacks(pid, 15, 0.75)]

    def _stacks(self, pid: int, samples: int, seconds: float) -> list[r.Reading]:
        if pid not in self._job.ranks:
            return [r.Stack(pid=pid, tid=pid, frames=FETCHES, samples=samples, span_seconds=seconds)]
        shown = (STANDS,) * 4 if self._job.standing else (TRAINS, LEARNS, TRAINS, LEARNS)
        return [r.Stack(pid=pid, tid=pid, frames=frames, samples=samples, span_seconds=seconds) for frames in shown]

    def machine(self, pids: Sequence[int]) -> None:
        """An idle one."""
        at = self._now()
        host = r.Host(
            cpus_online=8, user_seconds=2 * at, system_seconds=0.0, idle_seconds=6 * at, iowait_seconds=0.0, steal_seconds=0.0,
            memory_total_bytes=2**36, memory_available_bytes=2**35,
        )  # fmt: skip
        self.take("host", "host", lambda: [host])

    def output(self, pids: Sequence[int]) -> None:
        """Nothing is written."""

    def kernel_log(self) -> None:
        """The kernel is silent."""

    def native(self, pid: int, tid: int) -> None:
        """Nobody profiles it."""

    def source(self, pid: int, frame: r.Frame) -> None:
        """There is no file."""


class SimulatedGpus:
    """A sampler's readings: one a second of each card, ten while the job is suspect."""

    trouble: "Unavailable | None" = None
    cpu_seconds = 0.0

    def __init__(self, job: SimulatedJob, clock: Clock, cards: int) -> None:
        self._job, self._clock, self._told = job, clock, 0.0
        self._fresh: list[tuple[float, r.Reading]] = [
            (0.0, r.Gpu(uuid=f"GPU-{card}", index=card, name="NVIDIA H200", gpm=True)) for card in range(cards)
        ]
        self._cards = [f"GPU-{card}" for card in range(cards)]

    def look(self, full: bool = False) -> list[tuple[float, r.Reading]]:
        """What has come since the last look."""
        found, self._fresh = self._fresh, []
        every = 0.1 if full else 1.0
        while self._cards and self._told + every <= self._clock():
            self._told += every
            busy = 0.0 if self._job.standing else 0.95
            for uuid in self._cards:
                found.append(
                    (
                        self._told,
                        r.GpuSample(uuid=uuid, utilisation=busy, power_watts=120.0 + 500 * busy, sm_clock_mhz=1600),
                    )
                )
                activity = r.GpuActivity(
                    uuid=uuid, interval_seconds=every, graphics=busy, sm_active=busy, dram=0.4 * busy
                )
                found.append((self._told, activity))
        return found

    def close(self) -> None:
        """There is no process."""
