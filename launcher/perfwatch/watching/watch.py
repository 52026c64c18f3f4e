"""The loop that watches one job: read each probe when it is due, append, judge again, report changes.

Detail follows suspicion. In a calm job it reads a step counter, one thread per rank, and a short sample of stacks per minute (in a
large job every few minutes). A suspect job is swept, sampled and judged until the verdict is clear. Nothing here blocks on the job or
on a disk.
"""

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from perfwatch.recording.recording import AT_DECIMALS, Sink, redacted
from perfwatch.recording.session import Session
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import judge
from perfwatch.triage.history import History
from perfwatch.triage.job import Job, read_job
from perfwatch.triage.questions import late_seconds, seconds_since_step, training_threads
from perfwatch.verdict import Verdict
from perfwatch.watching import cadence
from perfwatch.watching.attention import Interest, Schedule, alarm, feeding, nearest
from perfwatch.watching.departed import departed
from perfwatch.watching.forgetting import forget
from perfwatch.watching.news import News, Teller
from perfwatch.watching.probes_of_job import Look
from perfwatch.watching.process_groups import Groups
from perfwatch.watching.sampling import Sampling
from perfwatch.watching.sources import Sources
from perfwatch.watching.turns import turn
from perfwatch_probes import readings as r
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.gpu import GpuProbe

WELL = ("", "healthy")  # what was told of a job, if anything


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
        gpus: asks the NVIDIA driver.
        look: makes the probes, of what takes their readings; those of this machine by default.
    """

    def __init__(
        self,
        roots: Sequence[int],
        session: Session,
        *,
        recorder: Sink | None = None,
        agent_folder: AgentFolder | None = None,
        on_news: Callable[[News], None] = lambda _: None,
        eager: bool = False,
        clock: Callable[[], float] = time.monotonic,
        gpus: GpuProbe | None = None,
        look: Callable[[Callable[[Sequence[r.Reading]], None]], Look] | None = None,
    ) -> None:
        self.roots = list(roots)
        self.session = session
        self.look = look(self._append) if look is not None else Look(self._append, agent_folder, gpus=gpus)
        self.suspicious = eager
        self._ended_lately = False
        self.last: Verdict | None = None
        self._recorder = recorder
        self._teller = Teller(session, recorder, on_news)
        self._clock = clock
        self._began = clock()
        self._history = History()
        self._schedule = Schedule(lambda: self.at)
        self._suspected_at, self._glances = 0.0, 0
        self.judged_at = 0.0  # the moment of ``last``: judged at it, the recording gives the same
        self._known_job: Job | None = None
        self._revision = -1
        self._appended = 0  # readings, ever
        self._newest_case = (-1.0, 0)  # its moment, and how many readings were appended before it
        self._settled_at: float | None = None
        self._sources, self._interest = Sources(self.look), Interest()
        self._groups = Groups(self._append, self.look.filesystem, clock, guests=self.look.guests)
        self._sampling = Sampling(self.look, self._sources, self._history, self._schedule, lambda: self.at)

    @property
    def at(self) -> float:
        """Seconds since the session began, as finely as the recording has them."""
        return round(self._clock() - self._began, AT_DECIMALS)

    @property
    def _pace(self) -> float:
        """Seconds between looks at a suspect job; a hang that has been told needs only to be seen moving again."""
        return cadence.CERTAIN_SECONDS if self._certain else cadence.SUSPECT_SECONDS

    @property
    def _certain(self) -> bool:
        """True if a hang was told and still is one; a job that may be moving again is looked at closely."""
        return self._teller.state == "hung" and (self.last is None or self.last.state == "hung")

    def sooner(self) -> tuple[int, ...]:
        """What is readable when a process of the job has ended: worth a ``tick`` before it is due, if one has not just been."""
        return () if self._ended_lately else (self.look.endings.fileno(),)

    def add_root(self, pid: int) -> None:
        """Follow one more tree (another rank's launcher registered it)."""
        if pid not in self.roots:
            self.roots.append(pid)
            self._schedule.hasten("tree")

    def attend(self) -> None:
        """A user asks about the job: sample closely, as a suspect one."""
        if not self.suspicious:
            self._suspect()

    def tick(self, leaving: Callable[[], bool] = lambda: False) -> float:
        """Do what is due; returns the seconds until something is due again.

        leaving: True from when the user leaves: then nothing else is begun, for on a busy machine each part may take a second.
        """
        self._ended_lately = self.look.endings.news()
        sampled = self._collect()
        self._gpus()
        if self._schedule.due("tree", cadence.tree_seconds(self.suspicious, self.at)):
            self.look.processes(self.roots)
        elif self._ended_lately or self.suspicious or self._schedule.due("ended", cadence.CALM_ENDED_SECONDS):
            self.look.ended()
        if self._schedule.due("steps", cadence.CALM_SECONDS):
            self.look.steps()
        if leaving():
            return 0.0
        self._counters(self._job())
        if leaving():
            return 0.0
        case = self.case()
        awaited = self._groups.look(case, self.suspicious, certain=self._teller.state == "hung")
        if self.suspicious:
            self._sampling.of_suspect(case, self.last, certain=self._certain)
            early = self.at - self._suspected_at <= cadence.EARLY_SECONDS
            few = len(self.look.known) <= cadence.SAMPLED_PROCESSES
            if leaving():
                return 0.0
            if self._schedule.due("judge", cadence.judge_seconds(early and few)) or not self.look.known:
                self._judge(case)
        else:
            self._glance(case, sampled)
        pause = self._pace if self.suspicious else cadence.CALM_SECONDS
        awaited = (awaited or bool(self.look.records)) and self.suspicious  # nothing else that is under way is urgent
        return min(pause, cadence.COLLECT_SECONDS) if awaited or self._ended_lately else pause

    def verdict(self) -> Verdict:
        """Judge now, from memory."""
        self._collect()
        return self._verdict_on(self.case())

    def take(self, readings: Sequence[r.Reading]) -> None:
        """Evidence from elsewhere: what a capture has found out about the job."""
        self._append(readings)

    def note(self, kind: str, text: str, verdict: Verdict | None, facts: dict[str, Any]) -> None:
        """Record an event of now that later verdicts rest on."""
        self._teller.note(self.at, kind, text, verdict, facts)

    def ended(self, exit_code: int | None, signal: int | None) -> Verdict:
        """The child of ``run`` is gone: how it ended is known for certain. Judge once more."""
        self.look.ended()  # a launcher may end well after its ranks did not
        for pid in self.roots[:1]:
            seen = self._history.latest(r.Process, pid)
            process = self.look.known.get(pid) or (seen.reading if seen else None)
            start = process.start_ticks if process else 0
            self._append([r.ProcessEnded(pid=pid, start_ticks=start, exit_code=exit_code, signal=signal)])
        self.look.steps()
        self.look.kernel_log()
        self._groups.last_look(self.case())
        return self.verdict()

    def close(self) -> None:
        """End our own children; the job is not touched."""
        self._groups.close()
        self.look.close()

    def _append(self, readings: Sequence[r.Reading], ago_seconds: float = 0.0) -> None:
        self._appended += len(readings)
        now = self.at
        at = round(max(0.0, now - ago_seconds), AT_DECIMALS)
        readings = [redacted(reading) for reading in readings]
        for reading in readings:
            self._history.add(at, reading)
        if self._recorder is not None:
            self._recorder.append(at, readings, now if at < now else 0.0)

    def case(self) -> Case:
        """The job as it is known now."""
        case = Case(self._history, self.session, self._teller.events, self._job())
        self._newest_case = case.at, self._appended
        return case

    def _up_to_date(self, case: Case) -> Case:
        """The same case, or a new one where readings were appended since it was made: stacks of a dump, lines of source, costs.

        The recording, judged at the moment of the case, must give the same verdict; so whatever was derived is derived again.
        """
        return case if self._newest_case == (case.at, self._appended) else self.case()

    def _job(self) -> Job:
        """Who is who now."""
        self._history.at = self.at
        if self._schedule.due("forget", cadence.REMEMBER_SECONDS / 4):
            forget(self._history, self.look, self._known_job or read_job(self._history), cadence.REMEMBER_SECONDS)
            self._known_job = None
        revision = self._history.added(r.Process, r.ProcessEnded, r.Stack)
        if revision != self._revision:
            self._known_job, self._revision = None, revision
        self._known_job = self._known_job or read_job(self._history)
        return self._known_job

    def _collect(self) -> bool:
        found = self.look.collect()
        for ago, reading in found:
            self._append([reading], ago)
        return bool(found)

    def _gpus(self) -> None:
        """What the GPUs did: ten looks a second at the start of a suspicion, one a second otherwise."""
        certain = self._certain or self.at - self._suspected_at > cadence.GPU_DETAIL_SECONDS
        found = self.look.gpus.look(full=self.suspicious and not certain)
        for ago, made_then in groupby(found, key=itemgetter(0)):
            self._append([reading for _, reading in made_then], ago)

    def _counters(self, job: Job) -> None:
        """Of the whole job when suspicious, of the ranks when calm."""
        alive = list(self.look.known)
        ranks = [rank.pid for rank in job.ranks if rank.alive] or alive[:1]
        swept = nearest(job, alive, cadence.MOST_SWEPT)
        outside = feeding(self._history, alive) if self.suspicious else []
        if self._schedule.due("usage", cadence.USAGE_SECONDS if self.suspicious else cadence.CALM_USAGE_SECONDS):
            self.look.usage([*swept, *outside] if self.suspicious else ranks)
        if self._schedule.due("machine", cadence.MACHINE_SECONDS if self.suspicious else cadence.CALM_MACHINE_SECONDS):
            self.look.machine(swept or ranks)
            if self.suspicious:
                self.look.output(ranks[: cadence.MOST_SAMPLED])
                self.look.traffic(ranks[: cadence.MOST_SWEPT])
        if self._schedule.due("bindings", cadence.tree_seconds(self.suspicious, self.at)):
            self._append(self.look.gpus.bind(ranks, self.look.known))
        if self.suspicious and self._schedule.due("sweep", self._pace):
            found = [thread for pid in swept for thread in self.look.threads(pid)]
            for pid in outside:
                self.look.threads(pid)
            self._append(departed(self._history, self.look.filesystem, swept))
            if self._schedule.due("descriptors", 2 * self._pace):
                self.look.behind(found)

    def _glance(self, case: Case, sampled: bool) -> None:
        """Look at a calm job: does anything ask for more? A sample of stacks now and then is judged when it is there."""
        self._glances += 1
        for rank in turn(case.ranks, self._glances, cadence.MOST_GLANCED):
            self.look.threads(rank.pid, training_threads(case, rank))
        why = alarm(case)
        if why or not self.look.known:
            self._suspect()
        elif sampled:
            self._judge(case)
        elif self.at > cadence.CALM_SECONDS and self._schedule.due(
            "calm_sample", cadence.calm_sample(self._teller.state, self.at, len(self.look.known))
        ):
            self._sampling.of_calm(case, self._teller.state in WELL)

    def _suspect(self) -> None:
        self.suspicious = True
        self._suspected_at = self.at
        self._sampling.begin()
        self._settled_at = None
        self._schedule.hasten("tree", "usage", "machine", "sweep", "descriptors", "dump", "sample", "judge")

    def _verdict_on(self, case: Case) -> Verdict:
        self.last, self.judged_at = judge(case), case.at
        return self.last

    def _judge(self, case: Case) -> None:
        """Judge once, on the case of this tick and what was read since it was made, and tell what is new."""
        self._sources.of_busiest(case)
        self._collect()
        case = self._up_to_date(case)
        verdict = self._verdict_on(case)
        if not self.suspicious and self._teller.state in WELL and self._interest.asks(case, verdict):
            self._suspect()  # only the ranks were sampled: who keeps them waiting shows in the others
            return
        if self.suspicious and verdict.state in ("healthy", "slow"):
            self._settled_at = self.at if self._settled_at is None else self._settled_at
            if self.at - self._settled_at > cadence.CALM_AFTER_SECONDS:
                self.suspicious = False
                self._interest.answered(case)
                self._schedule.due("calm_sample", cadence.CALM_SAMPLE_SECONDS)
        else:
            self._settled_at = None
        self._teller.tell(verdict, self.judged_at, late_seconds(case), seconds_since_step(case))
        if verdict.suspect is not None and verdict.suspect.decides_in_seconds > 0.0:
            self._schedule.sooner("judge", max(cadence.COLLECT_SECONDS, verdict.suspect.decides_in_seconds))
