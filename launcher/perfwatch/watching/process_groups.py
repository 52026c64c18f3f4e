"""What NCCL's RAS service and the ranks' flight recorders say about the job's process groups.

Both are queried only on suspicion, in a separate process, so that neither the job nor the watch waits for an answer. A query of a
flight recorder leaves a line on the job's standard error, so it is made only while the ranks do not move.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from perfwatch.triage.case import Case
from perfwatch.triage.job import Member
from perfwatch.triage.questions import has_aborted, ranks_stand, ranks_wait_for_each_other
from perfwatch.watching.failures import as_unavailable
from perfwatch.watching.recorder_turns import RecorderTurns
from perfwatch_probes import readings as r
from perfwatch_probes.errand import Errand
from perfwatch_probes.filesystem import Absent, Filesystem
from perfwatch_probes.flight_recorder import MEMORY_BYTES, FlightRecorderProbe, Rank
from perfwatch_probes.guest import Guests
from perfwatch_probes.nccl_ras import Job, NcclRasProbe
from perfwatch_probes.probe import Unavailable

RAS, RECORDER, WRITTEN = "nccl_ras", "flight_recorder", "flight_recorder files"
# Two answers so far apart show whether counts grow. A thousand ranks are a megabyte for RAS to gather: less often then.
RAS_SECONDS, RAS_MANY_SECONDS, MANY_RANKS = 2.0, 6.0, 128
RAS_CERTAIN_SECONDS = 20.0  # after a hang was told
# A job that has no NCCL yet may begin to use it any moment, one that has none for long hardly will.
ABSENT_SECONDS, LONGEST_ABSENT_SECONDS = 2.0, 32.0
WRITTEN_SECONDS = 10.0
RAS_DEADLINE_SECONDS, RECORDER_DEADLINE_SECONDS = 8.0, 10.0
NCCL_THREADS = ("pt_nccl", "NCCL", "nccl")  # watchdog, heartbeat, proxies, RAS
LAST_SECONDS, LAST_LOOK_SECONDS = 0.1, 0.005  # run ends at most 0.2 s after its child
MOST_RECORDED = 64  # ranks whose recorders are asked at once


class Groups:
    """Asks about the collectives of one job.

    Args:
        sink: takes the readings, and how each question went.
        filesystem: where /proc is.
        clock: monotonic seconds.
        errand: sends a question off, of what ``Errand`` takes.
        guests: know the job's processes.
    """

    def __init__(
        self,
        sink: Callable[[Sequence[r.Reading]], None],
        filesystem: Filesystem | None = None,
        clock: Callable[[], float] = time.monotonic,
        errand: Callable[..., Errand] = Errand,
        guests: Guests | None = None,
    ) -> None:
        self._sink, self._clock, self._errand = sink, clock, errand
        self._filesystem = filesystem or Filesystem()
        self._guests = guests or Guests(self._filesystem.proc)
        self._under_way: dict[str, Errand] = {}
        self._due: dict[str, float] = {}
        self._turns = RecorderTurns(clock)
        self._failed: dict[str, str] = {}
        # How long it was waited before the last question that went unanswered.
        self._absent: dict[str, float] = {}
        self._nccl = self._answered = False
        self._aborted: tuple[int, ...] = ()  # ranks whose last dumps were asked for

    def look(self, case: Case, suspicious: bool, certain: bool) -> bool:
        """Take what has been answered, ask what is due; whether an answer is awaited. Never waits, nor raises what a probe does.

        certain: a hang was told already.
        """
        for name in list(self._under_way):
            self._collect(name)
        self._ask_the_aborted(case)
        if not suspicious:
            self._absent.clear()
            return bool(self._under_way)
        ranks = case.ranks
        if ranks and (case.job.world_size or len(ranks)) >= 2:
            many = (case.job.world_size or len(ranks)) > MANY_RANKS
            every = RAS_CERTAIN_SECONDS if certain else RAS_MANY_SECONDS if many else RAS_SECONDS
            self._ask(
                RAS,
                every,
                RAS_DEADLINE_SECONDS,
                lambda: NcclRasProbe(self._filesystem, guests=self._guests).look(_job(case)),
            )
            if self._uses_nccl(case):
                self._recorders(case, certain)
        return bool(self._under_way)

    def last_look(self, case: Case) -> None:
        """Take what the ranks wrote before they ended, which is not waited for long: the job has ended, and we end with it."""
        self._ask_the_aborted(case)
        ends = self._clock() + LAST_SECONDS
        while WRITTEN in self._under_way and self._clock() < ends:
            time.sleep(LAST_LOOK_SECONDS)
            self._collect(WRITTEN)

    def close(self) -> None:
        """End what is under way."""
        for errand in self._under_way.values():
            errand.close()
        self._under_way.clear()

    def _uses_nccl(self, case: Case) -> bool:
        """gloo has a recorder too, and no pipe to ask it through. When NCCL is first seen, those that were absent are asked anew."""
        if not self._nccl and _nccl_threads(case):
            self._nccl = True
            for name in self._absent:
                self._due.pop(name, None)
            self._absent.clear()
        return self._nccl

    def _ask_the_aborted(self, case: Case) -> None:
        """What ranks have written that NCCL's watchdog ended, once for each generation: all dumps are there when all have ended."""
        pids = tuple(member.pid for member in case.job.ranks)
        if case.ranks or pids == self._aborted or len(pids) < 2 or not has_aborted(case):
            return
        ranks = [_rank(case, member, index) for index, member in enumerate(case.job.ranks[:MOST_RECORDED])]
        self._due.pop(WRITTEN, None)
        ask = FlightRecorderProbe(self._filesystem, guests=self._guests).look
        if self._ask(WRITTEN, WRITTEN_SECONDS, RECORDER_DEADLINE_SECONDS, lambda: ask(ranks, ask=False), MEMORY_BYTES):
            self._aborted = pids

    def _recorders(self, case: Case, certain: bool) -> None:
        """Ranks that rest are asked what they have called; one that was timed out has said so by itself."""
        ranks = [_rank(case, member, index) for index, member in enumerate(case.ranks[:MOST_RECORDED])]
        probe = FlightRecorderProbe(self._filesystem, guests=self._guests)
        free = RECORDER not in self._under_way and self._clock() >= self._due.get(RECORDER, 0.0)
        if free and self._turns.due(lambda: ranks_wait_for_each_other(case), certain):
            if self._ask(RECORDER, 0.0, RECORDER_DEADLINE_SECONDS, lambda: probe.look(ranks), MEMORY_BYTES):
                self._turns.asked()
        if ranks_stand(case) and not self._answered:  # a rank that can be asked says the same, and newer
            self._ask(
                WRITTEN, WRITTEN_SECONDS, RECORDER_DEADLINE_SECONDS, lambda: probe.look(ranks, ask=False), MEMORY_BYTES
            )

    def _ask(
        self,
        name: str,
        every_seconds: float,
        deadline_seconds: float,
        ask: Callable[[], Iterable[r.Reading]],
        memory_bytes: int | None = None,
    ) -> bool:
        now = self._clock()
        if name in self._under_way or now < self._due.get(name, 0.0):
            return False
        self._due[name] = now + every_seconds
        try:
            self._under_way[name] = self._errand(ask, deadline_seconds, memory_bytes, self._clock)
        except Exception as error:
            self._say(name, 0.0, 0.0, as_unavailable(error))
            return False
        return True

    def _collect(self, name: str) -> None:
        errand = self._under_way[name]
        trouble: Unavailable | None = None
        found: list[r.Reading] | None = []
        try:
            found = errand.poll()
        except Exception as error:
            trouble = as_unavailable(error)
        if found is None:
            return
        del self._under_way[name]
        errand.close()
        if isinstance(trouble, Absent):
            pause = min(LONGEST_ABSENT_SECONDS, 2 * self._absent.get(name, ABSENT_SECONDS / 2))
            self._due[name] = max(self._due.get(name, 0.0), self._clock() + pause)
            self._absent[name] = pause
            if name == RECORDER:
                self._turns.unheard()
        else:
            self._absent.pop(name, None)
        if name == RECORDER:  # a rank that was too late for the question may have written since
            self._answered = trouble is None and not any(isinstance(one, r.ProbeCall) for one in found)
        self._sink(found)
        self._say(name, self._clock() - errand.began, errand.cpu_seconds, trouble)

    def _say(self, name: str, seconds: float, cpu_seconds: float, trouble: Unavailable | None) -> None:
        """How it went; a failure is recorded when it is new. Files that no rank had a reason to write are not missing."""
        reason = trouble.reason if trouble else ""
        absent = isinstance(trouble, Absent) or (trouble is not None and name == WRITTEN)
        if trouble is not None and self._failed.get(name) == reason and not cpu_seconds:
            return
        self._failed[name] = reason
        self._sink(
            [
                r.ProbeCall(
                    probe=name,
                    entity="job",
                    duration_seconds=round(seconds, 6),
                    cpu_seconds=round(cpu_seconds, 6),
                    outcome="absent" if absent else "unavailable" if trouble else "ok",
                    reason=reason,
                    advice=trouble.advice if trouble else "",
                )
            ]
        )


def _nccl_threads(case: Case) -> bool:
    if case.history.entities(r.Communicator):
        return True
    pids = {rank.pid for rank in case.ranks}
    names = (case.history.latest(r.Thread, *key) for key in case.history.entities(r.Thread) if key[0] in pids)
    return any(seen is not None and seen.reading.name.startswith(NCCL_THREADS) for seen in names)


def _job(case: Case) -> Job:
    """The living first: one of them is asked. Those that have ended are known too, for the service still names them."""
    ended = [member.process for member in case.job.ranks if not member.alive]
    processes = [*(member.process for member in case.ranks), *ended]
    inner: Mapping[int, int] = {p.namespace_pid: p.pid for p in processes if p.namespace_pid is not None}
    return Job(tuple(process.pid for process in processes), inner, case.job.world_size)


def _rank(case: Case, member: Member, index: int) -> Rank:
    seen = case.history.latest(r.Process, member.pid)
    age = member.process.age_seconds
    since = None if age is None or seen is None else age + case.at - seen.at
    return Rank(
        member.pid, index if member.rank is None else member.rank, since, member.process.environment, member.process.uid
    )
