"""The loop that watches one job: read each probe when it is due, append, judge again, say what changed.

Detail follows suspicion. A calm job costs a step counter, one thread per rank and one aggregate per process and second; a
suspect one is swept, sampled and judged until the verdict is clear. Nothing here blocks on the job or on a disk.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from perfwatch.look import Look
from perfwatch.probes import readings as r
from perfwatch.recording import AT_DECIMALS, Event
from perfwatch.session import Session
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.frames import user_frame
from perfwatch.triage.history import History
from perfwatch.triage.verdict import Verdict

LOOK_SECONDS = 0.5  # between sweeps of a suspect job
CALM_SECONDS = 1.0  # between looks at a calm one
USAGE_SECONDS = 1.0
MACHINE_SECONDS = 2.0
CALM_MACHINE_SECONDS = 10.0
JUDGE_SECONDS = 1.0
CALM_JUDGE_SECONDS = 10.0
CALM_SAMPLE_SECONDS = 60.0  # one record of a calm job now and then, so that slowness is seen
RECORD_SECONDS = 3.0
MOST_SAMPLED = 6  # processes sampled at once
MOST_SWEPT = 24  # processes swept at once; the ranks first
DUMP_EVERY_SECONDS = 0.7  # in the first moments of a suspicion, see MOST_EARLY_DUMPS
MOST_EARLY_DUMPS = 3
LATE_DUMP_SECONDS = 4.0
CALM_AFTER_SECONDS = 6.0  # of steps going on
REMEMBER_SECONDS = 600.0  # in memory; the recording keeps what its disk budget allows
MOST_SOURCE_LINES = 6  # newly read per round


class Sink(Protocol):
    """What takes the readings to disk: ``perfwatch.recording.Recorder``."""

    def append(self, at: float, readings: Sequence[r.Reading]) -> None: ...  # noqa: D102
    def event(self, at: float, kind: str, text: str, verdict: Verdict | None = None) -> None: ...  # noqa: D102
    def pin(self, first_at: float, last_at: float) -> None: ...  # noqa: D102


@dataclass(frozen=True)
class News:
    """Something to tell the user: suspicion, verdict, retraction or note."""

    kind: str
    at: float
    text: str
    verdict: Verdict | None = None


class Watch:
    """One watched job.

    Args:
        roots: any pids of the job's tree(s); everything below them is followed.
        session: what the recording says of itself; its ``conditions`` hold ``patience_seconds``.
        recorder: takes readings and events to disk; None keeps them in memory only.
        agent_folder: where the agent writes, when the job was started armed.
        on_news: called for each suspicion, verdict and retraction.
        eager: begin with everything (attach) instead of calmly (run).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        roots: Sequence[int],
        session: Session,
        *,
        recorder: Sink | None = None,
        agent_folder: Path | None = None,
        on_news: Callable[[News], None] = lambda _: None,
        eager: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.roots = list(roots)
        self.session = session
        self.look = Look(self._append, agent_folder)
        self.suspicious = eager
        self.last: Verdict | None = None
        self._recorder = recorder
        self._on_news = on_news
        self._clock = clock
        self._began = clock()
        self._history = History()
        self._events: list[Event] = []
        self._due: dict[str, float] = {}
        self._suspected_at: float | None = 0.0 if eager else None
        self._early_dumps = 0
        self._moving_since: float | None = None
        self._read_lines: set[tuple[str, int]] = set()
        self._told: tuple[str, str | None] | None = None

    @property
    def at(self) -> float:
        """Seconds since the session began."""
        return self._clock() - self._began

    def add_root(self, pid: int) -> None:
        """Follow one more tree (another rank's launcher registered it)."""
        if pid not in self.roots:
            self.roots.append(pid)
            self._due.pop("tree", None)

    def tick(self) -> float:
        """Do what is due; returns the seconds until something is due again."""
        self._collect()
        if self._is_due("tree", CALM_SECONDS):
            self.look.processes(self.roots)
            self.look.steps()
        case = self._case()
        ranks = [rank.pid for rank in case.ranks] or list(self.look.known)[:1]
        self._readings(case, ranks)
        if self.suspicious:
            self._stacks(case, ranks)
        elif self._is_due("calm_sample", CALM_SAMPLE_SECONDS) and self.at > 1.0:
            self._sample(case, ranks)
        if self._is_due("judge", JUDGE_SECONDS if self.suspicious else CALM_JUDGE_SECONDS) or not self.look.known:
            self._judge()
        return self._until_due()

    def verdict(self) -> Verdict:
        """Judge now, from memory."""
        self._collect()
        self.last = judge(self._case())
        return self.last

    def ended(self, exit_code: int | None, signal: int | None) -> Verdict:
        """The child of ``run`` is gone: how it ended is known for certain. Judge once more."""
        for pid in self.roots[:1]:
            process = self.look.known.get(pid)
            start = process.start_ticks if process else 0
            self._append([r.ProcessEnded(pid=pid, start_ticks=start, exit_code=exit_code, signal=signal)])
        self.look.steps()
        return self.verdict()

    def close(self) -> None:
        """End our own children; the job is not touched."""
        self.look.close()

    def _append(self, readings: Sequence[r.Reading], ago_seconds: float = 0.0) -> None:
        at = round(max(0.0, self.at - ago_seconds), AT_DECIMALS)
        for reading in readings:
            self._history.add(at, reading)
        if self._recorder is not None:
            self._recorder.append(at, readings)

    def _case(self) -> Case:
        self._history.at = self.at
        if self._is_due("forget", REMEMBER_SECONDS / 4):
            self._history.forget(self.at - REMEMBER_SECONDS)
        return Case(self._history, self.session, self._events)

    def _collect(self) -> None:
        for ago, stack in self.look.collect():
            self._append([stack], ago)

    def _is_due(self, what: str, every: float) -> bool:
        now = self.at
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every
        return True

    def _until_due(self) -> float:
        pause = LOOK_SECONDS if self.suspicious else CALM_SECONDS
        if self.look.records:
            pause = min(pause, 0.2)
        return max(0.02, min(pause, min(self._due.values(), default=pause) - self.at if self._due else pause))

    def _readings(self, case: Case, ranks: Sequence[int]) -> None:
        """Counters: of the whole job when suspicious, of the ranks' training threads when calm."""
        pids = list(self.look.known)
        if self._is_due("usage", USAGE_SECONDS if self.suspicious else 5 * USAGE_SECONDS):
            self.look.usage(pids[:MOST_SWEPT] if self.suspicious else ranks)
        if self._is_due("machine", MACHINE_SECONDS if self.suspicious else CALM_MACHINE_SECONDS):
            self.look.machine([*ranks, *(pid for pid in pids if pid not in ranks)][:MOST_SWEPT])
            if self.suspicious:
                self.look.output(list(ranks)[:MOST_SAMPLED])
        if self.suspicious and self._is_due("sweep", LOOK_SECONDS):
            found: list[r.Thread] = []
            for pid in self._nearest(case, ranks, MOST_SWEPT):
                found += self.look.threads(pid)
            if self._is_due("descriptors", 2 * LOOK_SECONDS):
                self.look.behind(found)
        elif not self.suspicious and self._is_due("calm_threads", CALM_SECONDS):
            for rank in case.ranks:
                self.look.threads(rank.pid, [case.progress[rank.pid].thread])
            self._notice(case)

    def _nearest(self, case: Case, ranks: Sequence[int], most: int) -> list[int]:
        """The ranks, then what they wait for, then the rest."""
        order = list(ranks)
        for rank in case.ranks:
            order += [
                member.pid for member in case.job.members.values() if member.alive and member.rank_pid == rank.pid
            ]
        order += [
            pid
            for pid in self.look.known
            if case.job.members.get(pid) is None or case.job.members[pid].role != "service"
        ]
        return [pid for pid in dict.fromkeys(order) if pid in self.look.known][:most]

    def _notice(self, case: Case) -> None:
        """A calm job that stops moving, or loses a process, is suspect."""
        for rank in case.ranks:
            if case.progress[rank.pid].kind in ("still", "busy"):
                self._suspect(
                    f"rank {rank.rank if rank.rank is not None else rank.pid}: {case.progress[rank.pid].basis}"
                )
                return
        if any(member.ended for member in case.job.ranks):
            self._suspect("a rank has ended")

    def _suspect(self, why: str) -> None:
        if self.suspicious:
            return
        self.suspicious = True
        self._suspected_at = self.at
        self._early_dumps = 0
        self._moving_since = None
        for what in ("sweep", "descriptors", "dump", "sample", "machine", "judge"):
            self._due.pop(what, None)

    def _stacks(self, case: Case, ranks: Sequence[int]) -> None:
        """A few dumps at the start of a suspicion, then records: cheaper, and they show motion."""
        pids = [pid for pid in self._nearest(case, ranks, MOST_SWEPT) if self.look.known[pid].python]
        if not pids:
            return
        early = self._early_dumps < MOST_EARLY_DUMPS
        if self._is_due("dump", DUMP_EVERY_SECONDS if early else LATE_DUMP_SECONDS):
            self.look.dump(pids[: MOST_SWEPT if self._early_dumps == 0 else 2 * MOST_SAMPLED])
            self._early_dumps += 1
            self._sources()
        if self._early_dumps and self._is_due("sample", RECORD_SECONDS + 0.5):
            self._sample(case, pids)

    def _sample(self, case: Case, pids: Sequence[int]) -> None:
        for pid in self._nearest(case, pids, MOST_SAMPLED):
            if self.look.known[pid].python:
                self.look.record(pid, RECORD_SECONDS)

    def _sources(self) -> None:
        """Text of the lines that threads stand at, each read once."""
        fresh = 0
        for key in self._history.entities(r.Stack):
            seen = self._history.latest(r.Stack, *key)
            frame = user_frame(seen.reading) if seen is not None and seen.at > self.at - 2.0 else None
            if frame is None or (frame.file, frame.line) in self._read_lines:
                continue
            self._read_lines.add((frame.file, frame.line))
            self.look.source(key[0], frame)
            fresh += 1
            if fresh >= MOST_SOURCE_LINES:
                return

    def _judge(self) -> None:
        verdict = self.verdict()
        now = (verdict.state, verdict.cause)
        if self.suspicious and verdict.state in ("healthy", "slow") and self._suspected_at is not None:
            self._moving_since = self.at if self._moving_since is None else self._moving_since
            if self.at - self._moving_since > CALM_AFTER_SECONDS:
                self.suspicious, self._suspected_at = False, None
        else:
            self._moving_since = None
        if now == self._told:
            return
        before = self._told
        if verdict.suspect is not None and (before is None or before[0] in ("healthy", "slow", "busy")):
            self._tell(News("suspicion", self.at, verdict.summary, verdict))
        elif verdict.state != "inconclusive":
            if before is not None and before[0] == "hung" and verdict.state in ("healthy", "slow", "busy"):
                self._tell(News("retraction", self.at, f"moves again: {verdict.summary}", verdict))
            else:
                self._tell(News("verdict", self.at, verdict.summary, verdict))
        else:
            return
        self._told = now

    def _tell(self, news: News) -> None:
        self._events.append(Event(news.at, self.session.created + news.at, news.kind, news.text, news.verdict))
        if self._recorder is not None:
            self._recorder.event(news.at, news.kind, news.text, news.verdict)
            if news.kind == "verdict":
                self._recorder.pin(max(0.0, self.at - 30.0), self.at)
        self._on_news(news)
