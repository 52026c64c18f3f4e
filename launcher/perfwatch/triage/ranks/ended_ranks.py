"""Whether ranks that have ended are what others wait for in a collective.

One that was killed or has failed mostly is. One that came to its end may be in no group that goes on: its work is done, and the
others wait for one that still evaluates, or stands.
"""

from collections.abc import Sequence

from perfwatch.triage.case import Case
from perfwatch.triage.ranks.waitgraph import WaitGraph
from perfwatch.triage.roles.job import Member
from perfwatch.triage.waits.chain import Chain


def missed(case: Case, graph: WaitGraph | None) -> list[Member]:
    """Ranks that have ended and may be waited for, those first that ended badly; only these where the groups tell who is waited for."""
    gone = sorted((rank for rank in case.job.ranks if not rank.alive), key=lambda one: (_well(one), not _badly(one)))
    if graph is None or not graph.edges or any(seat.rank is None for seat in graph.ends):
        return gone
    awaited = {rank for targets in graph.edges.values() for rank in targets}
    return [rank for rank in gone if rank.rank in awaited]


def blamed(gone: Sequence[Member], absent: Sequence[Chain], graph: WaitGraph | None, at_work: bool) -> Member | None:
    """The rank whose end keeps the others waiting; None where that may be one that lives.

    Args:
        gone: as ``missed``.
        absent: ranks that live and have not come either.
        graph: where it shows who waits for whom, the ranks that have ended are among those.
        at_work: whether one of the absent ones does something that may end.
    """
    if not gone or not absent or (graph is not None and graph.edges) or _badly(gone[0]):
        return gone[0] if gone else None
    return None if at_work or _well(gone[0]) else gone[0]


def _well(rank: Member) -> bool:
    return rank.ended is not None and rank.ended.exit_code == 0


def _badly(rank: Member) -> bool:
    return rank.ended is not None and bool(rank.ended.exit_code or rank.ended.signal)
