"""Ranks that NCCL counts in different calls of one group, for as long as nobody goes on: no recorder and no card is needed for it.

One of them has called more all_reduces, the other an all_gather instead. Members of a group must make the same calls in the
same order, so counts that have crossed are wrong by themselves; that they do not grow makes it a hang.
"""

from collections import Counter

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.patience import STRUCTURAL_SECONDS
from perfwatch.triage.ranks.absence import rank_of, way
from perfwatch.triage.ranks.collectives import standings
from perfwatch.triage.ranks.standing import Seat, Standing
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Culprit, Outcome

CAUSE = "mismatched_collective"
COUNTED = 0.9  # which call of its program each rank is in is not told
Launched = tuple[tuple[str, int], ...]  # how often each kind of call was made
SHOWN = 8


def counted_apart(case: Case) -> Standing | None:
    """The group whose counts have crossed and stand, while none of the ranks here made a step."""
    for one in standings(case):
        if one.crossed and not any(_stepped(case, rank.pid, one.seconds) for rank in case.ranks):
            return one
    return None


def by_counts(case: Case) -> Outcome:
    """Fires where RAS counts the members of a group in different calls, unchanged."""
    found = counted_apart(case)
    if found is None or not found.seats:
        return None
    alike = Counter(seat.launched for seat in found.seats)
    odd = min(found.seats, key=lambda seat: alike[seat.launched])
    chains = {chain.start.rank: chain for chain in case.chains.values() if chain.start.rank is not None}
    first = next((chain for rank, chain in chains.items() if rank == odd.rank), next(iter(chains.values()), None))
    if first is None:
        return None
    told = "; ".join(f"{_who(found, launched)}: {_calls(launched)}" for launched in _odd_first(alike))
    result = hung(
        case,
        CAUSE,
        first,
        owner="user_code",
        summary=f"the ranks have made different calls, and wait for each other: {told}",
        patience=STRUCTURAL_SECONDS,
        silent=found.seconds,
        ceiling=COUNTED,
        evidence=(
            case.saw(
                "nccl_ras",
                f"group {found.group}",
                "its ranks have called different collectives, and none goes on",
                f"{told}, {found.unchanged(case.at)}",
                "the same calls in every rank",
                found.at,
            ),
        ),
        alternatives=(
            Alternative(cause="stalled_collective", refuted_by="each is ahead of the others in one kind of call"),
        ),
        next=("compare the named lines: which condition sends the ranks apart?",),
    )
    blamed = sorted(found.seats, key=lambda seat: alike[seat.launched])[:SHOWN]
    frames = {rank: show(chain.start.frame or chain.end.node.frame) for rank, chain in chains.items()}
    return msgspec.structs.replace(
        result,
        culprits=tuple(
            Culprit(pid=seat.pid or 0, rank=seat.rank, frame=frames.get(-1 if seat.rank is None else seat.rank))
            for seat in blamed
        ),
        wait_chain=tuple(link for chain in chains.values() for link in way(case, chain, _kind(found, rank_of(chain)))),
    )


def _stepped(case: Case, pid: int, seconds: float) -> bool:
    steps = case.progress[pid].steps
    return steps is not None and steps.ago_seconds is not None and steps.ago_seconds < seconds


def _odd_first(alike: Counter[Launched]) -> list[Launched]:
    return sorted(alike, key=lambda launched: alike[launched])[:SHOWN]


def _who(found: Standing, launched: Launched) -> str:
    names = ["?" if seat.rank is None else str(seat.rank) for seat in found.seats if seat.launched == launched]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"rank{'s' if len(names) > 1 else ''} {', '.join(names[:SHOWN])}{more}"


def _calls(launched: Launched) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in launched) or "none"


def _kind(found: Standing, rank: int) -> str:
    """The kind of call in which a rank is ahead of the others, which it waits in; "" where it is not one of them."""
    mine = next((seat for seat in found.seats if seat.rank == rank), None)
    if mine is None:
        return ""
    most = {kind: max(_count(seat, kind) for seat in found.seats) for kind, _ in mine.launched}
    least = {kind: min(_count(seat, kind) for seat in found.seats) for kind, _ in mine.launched}
    return next((kind for kind, count in mine.launched if count == most[kind] > least[kind]), "")


def _count(seat: Seat, kind: str) -> int:
    return dict(seat.launched).get(kind, 0)
