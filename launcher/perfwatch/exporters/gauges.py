"""Stands between the watch and its recorder, counts what passes, and says at any time what is known of the job."""

import bisect
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from perfwatch.exporters.own_cost import own_cost
from perfwatch.exporters.snapshot import STEP_BUCKETS, Card, RankSteps, Snapshot
from perfwatch.ownership import labels
from perfwatch.recording.recording import Sink
from perfwatch.recording.session import Session
from perfwatch.text import clean
from perfwatch.triage.history import History
from perfwatch.triage.job import rank_ranges
from perfwatch.triage.questions import regime
from perfwatch.verdict import Verdict
from perfwatch_probes import readings as r

GPU_SECONDS = 15.0  # a calm card is read once a second, one of many every five
REMEMBER_SECONDS = 60.0
FORGET_RANK_SECONDS = 600.0  # after its last word: ranks come and go
LONGEST_COMMAND = 120
LONGEST_NUMBER = 15
NO_RANK = "none"
# Of ``verdict.JobLabels``: the others are labels of their own, or change while a job lives.
LABELS = (
    "user", "host", "world_size", "slurm_job_id", "slurm_job_name", "namespace", "pod", "pod_uid", "container", "run_id",
    "wandb_run",
)  # fmt: skip
_OF_CARDS = r.Gpu | r.GpuSample | r.GpuActivity


class Gauges:
    """Passes everything on to ``recorder`` (None: no disk took one).

    Args:
        recorder: what records.
        session: the job, as recorded.
        name: of the session, as people know it.
        wall: unix time.
        cost: CPU seconds and bytes that we use ourselves.
    """

    def __init__(
        self,
        recorder: Sink | None,
        session: Session,
        name: str,
        wall: Callable[[], float] = time.time,
        cost: Callable[[], tuple[float, int]] = own_cost,
    ) -> None:
        self._recorder, self._session, self._name, self._wall, self._cost = recorder, session, name, wall, cost
        self._cards = History()
        self._processes: dict[int, r.Process] = {}
        self._groups: dict[str, None] = {}
        self._steps: dict[int, tuple[float, int]] = {}  # when last told, and how many
        self._buckets = [0] * (len(STEP_BUCKETS) + 1)
        self._step_seconds = 0.0
        self._told: Counter[str] = Counter()
        self._verdict: Verdict | None = None
        self._judged_at = 0.0
        self._suspected = ""
        self._at = 0.0
        self._forgot_at = 0.0
        self.lost_lines = 0

    def append(self, at: float, readings: Sequence[r.Reading], known_at: float = 0.0) -> None:
        """Record readings made ``at`` seconds after the session began."""
        self._at = max(self._at, at)
        for reading in readings:
            if isinstance(reading, r.Steps):
                self._count(at, reading)
            elif isinstance(reading, _OF_CARDS):
                self._cards.add(at, reading)
            elif isinstance(reading, r.Process):
                self._processes[reading.pid] = reading
            elif isinstance(reading, r.ProcessEnded):
                self._processes.pop(reading.pid, None)
            elif isinstance(reading, r.Cgroup):
                self._groups[reading.path] = None
        if self._at - self._forgot_at > REMEMBER_SECONDS:
            self._forget()
        if self._recorder is not None:
            self._recorder.append(at, readings, known_at)

    def event(
        self, at: float, kind: str, text: str, verdict: Verdict | None = None, facts: dict[str, Any] | None = None
    ) -> None:
        """Record an event; a verdict among them is what the job is now."""
        if kind == "suspicion":
            self._suspected = (verdict.suspect.cause if verdict is not None and verdict.suspect else "") or "unknown"
        elif verdict is not None and kind in ("verdict", "retraction", "outcome"):
            self._suspected = ""
            self._verdict, self._judged_at = verdict, self._session.created + at
            self._told[verdict.state] += 1
        if self._recorder is not None:
            self._recorder.event(at, kind, text, verdict, facts)

    def pin(self, first_at: float, last_at: float, incident: bool = False) -> None:
        """Protect what a verdict rests on."""
        if self._recorder is not None:
            self._recorder.pin(first_at, last_at, incident)

    def snapshot(self, posted: int = 0, not_posted: int = 0) -> Snapshot:
        """What is known now."""
        verdict = self._verdict
        seconds, resident = self._cost()
        silent = None if verdict is None or verdict.silent_seconds is None else self._judged_at - verdict.silent_seconds
        return Snapshot(
            session=self._name,
            mode=self._session.mode,
            root_pid=self._session.root_pids[0] if self._session.root_pids else 0,
            command=clean(" ".join(self._session.command))[:LONGEST_COMMAND],
            looked=round(self._wall(), 3),
            began=round(self._session.created, 3),
            job=self._labels(),
            state=verdict.state if verdict else "",
            cause=(verdict.cause if verdict else None) or "",
            owner=verdict.owner if verdict else "",
            action=(verdict.action if verdict else None) or "",
            confidence=verdict.confidence if verdict else None,
            judged=round(self._judged_at, 3) if verdict else None,
            silent_since=None if silent is None else round(silent, 3),
            suspected=self._suspected,
            told=dict(self._told),
            ranks=self._rank_steps(),
            steps_wanted=self._declared("PERFWATCH_STEPS"),
            ends_by=self._declared("SLURM_JOB_END_TIME"),
            step_buckets=tuple(self._buckets),
            step_seconds=round(self._step_seconds, 6),
            cards=self._card_gauges(),
            own_cpu_seconds=seconds,
            own_memory_bytes=resident,
            lost_lines=self.lost_lines,
            posted=posted,
            not_posted=not_posted,
        )

    def _labels(self) -> dict[str, str]:
        """Whose job it is, before the first verdict too."""
        if self._verdict is not None and self._verdict.job is not None:
            job = self._verdict.job
        else:
            seen = sorted(self._processes.values(), key=lambda one: (one.rank is None, one.rank, one.pid))
            ranked = [one for one in seen if one.rank is not None]
            ranks = rank_ranges(one.rank for one in ranked if one.rank is not None)
            world_size = next((one.world_size for one in ranked if one.world_size is not None), None)
            job = labels(self._session, ranked or seen, "\n".join(self._groups), ranks, world_size)
        return {name: str(value) for name in LABELS if (value := getattr(job, name)) is not None}

    def _declared(self, variable: str) -> int | None:
        """A number that the environment of the ranks says, where it says one."""
        said = {one.environment.get(variable, "") for one in self._processes.values()} - {""}
        text = said.pop() if len(said) == 1 else ""
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER else None

    def _rank_steps(self) -> tuple[RankSteps, ...]:
        """Of processes without a number the one that has made most counts as all of them: a pid makes a new series each time."""
        found: dict[str, int] = {}
        for pid, (_, count) in self._steps.items():
            process = self._processes.get(pid)
            rank = NO_RANK if process is None or process.rank is None else str(process.rank)
            found[rank] = max(count, found.get(rank, 0))
        return tuple(RankSteps(rank, count) for rank, count in sorted(found.items()))

    def _count(self, at: float, reading: r.Steps) -> None:
        _, before = self._steps.get(reading.pid, (at, 0))
        self._steps[reading.pid] = at, reading.count
        fresh = max(0, reading.count - before)
        for interval in reading.interval_seconds[-fresh:] if fresh else ():
            self._buckets[bisect.bisect_left(STEP_BUCKETS, interval)] += 1
            self._step_seconds += interval

    def _card_gauges(self) -> tuple[Card, ...]:
        self._cards.at = self._at
        found = []
        for (uuid,) in self._cards.entities(r.Gpu):
            seen, now = self._cards.latest(r.Gpu, uuid), regime(self._cards, uuid, GPU_SECONDS)
            sample = self._cards.latest(r.GpuSample, uuid)
            found.append(
                Card(
                    gpu="" if seen is None else str(seen.reading.index),
                    uuid=uuid,
                    model="" if seen is None else clean(seen.reading.name),
                    memory_used_bytes=None if sample is None else sample.reading.memory_used_bytes,
                    memory_bytes=None if seen is None else seen.reading.memory_bytes,
                    regime=now.kind,
                    resident=now.graphics,
                    sm_active=now.sm_active,
                    tensor=now.tensor,
                    dram=now.dram,
                    power_watts=now.power_watts,
                )
            )
        return tuple(found)

    def _forget(self) -> None:
        self._forgot_at = self._at
        self._cards.forget(self._at - REMEMBER_SECONDS)
        for pid in [pid for pid, (at, _) in self._steps.items() if self._at - at > FORGET_RANK_SECONDS]:
            del self._steps[pid]
