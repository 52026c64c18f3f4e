"""Which stacks are sampled, and how: dumps when a suspicion begins, then records, then native stacks if both explain little.

In a calm job only the ranks are sampled, at intervals. If they wait, the other processes are sampled too.
"""

from collections.abc import Callable

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.questions import polled_files
from perfwatch.verdict import Verdict
from perfwatch.watching import cadence
from perfwatch.watching.attention import Schedule, leaves_open, nearest
from perfwatch.watching.probes_of_job import Look
from perfwatch.watching.sources import Sources
from perfwatch.watching.turns import Turns
from perfwatch_probes import readings as r


class Sampling:
    """Takes the stacks of one job.

    Args:
        look: the job's probes.
        sources: reads the lines at which threads stand.
        history: what was read so far.
        schedule: when each thing is due.
        now: seconds since the session began.
    """

    def __init__(
        self, look: Look, sources: Sources, history: History, schedule: Schedule, now: Callable[[], float]
    ) -> None:
        self._look, self._sources, self._history = look, sources, history
        self._schedule, self._now = schedule, now
        self._began = 0.0  # this suspicion
        self._dumps = 0  # in it
        self._turns = Turns()
        self._read_texts: set[tuple[int, int]] = set()  # pid and start: pids are used again

    def begin(self) -> None:
        """A suspicion begins: dumps come first again."""
        self._began, self._dumps = self._now(), 0

    def of_suspect(self, case: Case, last: Verdict | None, *, certain: bool) -> None:
        """A few dumps at the start of a suspicion, then records: cheaper, and they show motion.

        last: the newest verdict; certain: a hang was told and still is one.
        """
        pids = self._python(case)
        if not pids:
            return
        if self._schedule.due("dump", cadence.dump_seconds(self._dumps, certain)):
            self._look.dump(pids if self._dumps == 0 else pids[: 2 * cadence.MOST_SAMPLED])
            self._dumps += 1
            self._sources.of_threads(self._history)
            self._awaited(case)
        if self._dumps and not certain and self._schedule.due("sample", cadence.RECORD_SECONDS + 0.5):
            if not self._record(case, alone=False):  # on a crowded machine the last ones take longer
                self._schedule.sooner("sample", cadence.COLLECT_SECONDS)
        if self._now() - self._began > cadence.NATIVE_AFTER_SECONDS:
            self._native(case, last)

    def of_calm(self, case: Case, well: bool) -> None:
        """A dump of the ranks, then records; ``well``: nothing was told of the job, so the ranks are recorded alone."""
        ranks = [rank.pid for rank in case.ranks][: cadence.MOST_SAMPLED]
        for pid in ranks:
            self._look.threads(pid)
        self._look.dump(ranks)
        self._sources.of_threads(self._history)
        self._record(case, alone=well)

    def _python(self, case: Case) -> list[int]:
        """The processes of the job that run Python, nearest first."""
        known = self._look.known
        return [pid for pid in nearest(case.job, known, cadence.MOST_SWEPT) if known[pid].python]

    def _record(self, case: Case, *, alone: bool) -> bool:
        """Begin to record whose turn it is, if a recorder is free; ``alone``: the ranks only."""
        members = case.job.members
        near = [pid for pid in self._python(case) if pid not in members or members[pid].role != "compile"]
        ranks = [rank.pid for rank in case.ranks if rank.pid in near]
        most = max(0, cadence.MOST_SAMPLED - len(self._look.records))
        chosen = self._turns.take(ranks, [] if alone else near, most, self._now())
        return any([self._look.record(pid, cadence.RECORD_SECONDS) for pid in chosen])

    def _native(self, case: Case, last: Verdict | None) -> None:
        """Where a running thread is in native code: asked only when the stacks alone explain nothing."""
        for rank in case.ranks[:1] if leaves_open(last) else ():
            tid = case.progress[rank.pid].thread
            seen = self._history.latest(r.Thread, rank.pid, tid)
            if seen is not None and seen.reading.state == "R" and self._schedule.due("native", cadence.NATIVE_SECONDS):
                self._look.native(rank.pid, tid)

    def _awaited(self, case: Case) -> None:
        """The path for which a loop waits is in its variables: those of the one suspect are read once. Then: is it there?"""
        polls = polled_files(case)
        self._look.behind((), {pid: path for pid, path in list(polls.items())[: cadence.MOST_SAMPLED] if "/" in path})
        living = {pid: (pid, process.start_ticks) for pid, process in self._look.known.items()}
        self._read_texts.intersection_update(living.values())
        for pid in [pid for pid, path in polls.items() if not path and pid in living]:
            if living[pid] not in self._read_texts:
                self._read_texts.add(living[pid])
                self._look.dump([pid], texts=True)
