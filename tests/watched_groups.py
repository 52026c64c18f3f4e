"""Questions to process groups with a clock that is moved, for tests."""

import time
from collections.abc import Callable, Sequence

from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.watching.process_groups import Groups
from perfwatch_probes.errand import Errand
from perfwatch_probes.readings import Process, Reading, RecordedGroup
from tests.sessions import session


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


class Watched:
    """Groups, with what they have said."""

    def __init__(self, pids: Sequence[int], world_size: int = 2, errand: Callable[..., Errand] = Errand) -> None:
        self.said: list[Reading] = []
        self.clock = Clock()
        self.groups = Groups(self.said.extend, clock=self.clock, errand=errand)
        history = History()
        for rank, pid in enumerate(pids):
            who = Process(pid=pid, start_ticks=1, parent_pid=1, name="python", command=("python",), python=True,
                          rank=rank, world_size=world_size)  # fmt: skip
            history.add(0.0, who)
        self.case = Case(history, session())

    def look(self, suspicious: bool = True, certain: bool = False) -> list[Reading]:
        """One look, and what came of it when everything was answered."""
        self.said.clear()
        while self.groups.look(self.case, suspicious, certain) and not self.said:
            time.sleep(0.01)
        return list(self.said)


def dumps(said: Sequence[Reading]) -> list[tuple[int, int | None, str]]:
    """Rank, last call and origin of the dumps that were read."""
    return sorted((one.rank, one.enqueued, one.origin) for one in said if isinstance(one, RecordedGroup))
