"""Threads of the program's own that have ended: what they would have brought, whoever waits for it waits for ever."""

from dataclasses import dataclass

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import last_words, raised_at
from perfwatch.triage.moving.motion import has_ended
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import Node, culprit, node_of
from perfwatch.triage.words.frames import is_user, show
from perfwatch.verdict import Culprit, Evidence
from perfwatch_probes.readings import Stack, ThreadError

ENDED_SECONDS = 90.0  # before the wait began; a calm job's stacks are read once a minute
LASTS_SECONDS = 5.0  # what a thread has put into a queue keeps the training going so long, when it has ended
ONE_LOOK_SECONDS = 0.5  # the stacks of one look differ by so much


@dataclass(frozen=True)
class EndedThread:
    """A thread that is no more, as it was last seen, and the error that it ended with, if any is known."""

    node: Node
    error: ThreadError | None

    @property
    def where(self) -> str | None:
        """Its last known line, ``function (file:line)``."""
        return (raised_at(self.error) if self.error is not None else None) or show(self.node.frame)

    @property
    def told(self) -> str:
        """That it has ended, in words."""
        name = f"thread {self.node.name or self.node.tid}"
        if self.error is None:
            return f"{name}, last seen at {self.where}, has ended"
        return f"{name} has ended at {self.where} with {last_words(self.error)}"

    @property
    def culprit(self) -> Culprit:
        """The thread as somebody to blame."""
        return msgspec.structs.replace(culprit(self.node), frame=self.where)

    def evidence(self, case: Case) -> Evidence:
        """What speaks for it."""
        entity = f"pid {self.node.pid} thread {self.node.tid}"
        if self.error is not None:
            return case.saw("traceback", entity, "ended with an error", last_words(self.error), "no exception")
        return case.saw("thread", entity, "is gone", f"last seen at {self.where}", "lives as long as it is waited for")


def ended_beside(case: Case, chain: Chain) -> list[EndedThread]:
    """Those of the waiting thread's process that ended when the wait began, or not long before.

    One without an error must have been seen in the last look that was made well before the wait, or after it: one that had
    ended by then ended as it should, for the job went on without it.
    """
    end, history = chain.end.node, case.history
    if end.wait is not None and end.wait.shared:
        return []
    began = case.at - (chain.end.silent_seconds or 0.0)
    since = began - ENDED_SECONDS
    looks = [one.at for one in history.series(Stack, end.pid, end.pid) if one.at < began - LASTS_SECONDS]
    stacks = {tid: history.series(Stack, end.pid, tid)[-1] for _, tid in history.of(Stack, end.pid)}
    errors = {tid: history.series(ThreadError, end.pid, tid)[-1] for _, tid in history.of(ThreadError, end.pid)}
    seen = [
        tid
        for tid, last in stacks.items()
        if tid not in errors and last.at >= since and any(map(is_user, last.reading.frames))
        if not looks or last.at >= looks[-1] - ONE_LOOK_SECONDS
    ]
    raised = [tid for tid, error in errors.items() if error.at >= since]
    return [
        EndedThread(node_of(history, case.job, end.pid, tid), errors[tid].reading if tid in errors else None)
        for tid in (*raised, *seen)
        if tid in errors or has_ended(history, end.pid, tid)
    ]
