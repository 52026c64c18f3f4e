"""Time shared fairly between the users of a machine: one with many processes, or slow ones, delays its own alone."""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

LEAST_SECONDS = 2e-5  # charged for each turn: a clock may stand still meanwhile
REMEMBERED_SHARE = 0.5  # of the time used before, at each round: a debt is forgotten after a few


class Shares:
    """Who has used how much lately.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used: dict[int, float] = {}

    def turns(self, waiting: Mapping[int, Sequence[T]], budget_seconds: float) -> Iterator[T]:
        """What waits, by uid: the user that has used the least goes next, until the budget is used up.

        What the caller does with one item is charged to its user. Where one item takes longer than the budget, the other users
        still get their shares of it.
        """
        self._used = {uid: REMEMBERED_SHARE * used for uid, used in self._used.items() if used > LEAST_SECONDS}
        queue = [(self._used.get(uid, 0.0), uid, 0) for uid, items in waiting.items() if items]
        heapq.heapify(queue)
        ends = self._clock() + budget_seconds
        share = budget_seconds / max(1, len(queue))
        in_round = dict.fromkeys(waiting, 0.0)
        while queue:
            _, uid, index = heapq.heappop(queue)
            began = self._clock()
            if began >= ends and in_round[uid] >= share:
                continue
            yield waiting[uid][index]
            spent = max(LEAST_SECONDS, self._clock() - began)
            in_round[uid] += spent
            self._used[uid] = self._used.get(uid, 0.0) + spent
            if index + 1 < len(waiting[uid]):
                heapq.heappush(queue, (self._used[uid], uid, index + 1))
