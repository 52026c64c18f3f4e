"""Ranks that are done while others still train: they made fewer calls, and those wait for them.

Where they end their process group, both sides wait for each other.
"""

import msgspec

from perfwatch.triage.cards.gpu import polls
from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.moving.motion import WINDOW_SECONDS
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal
from perfwatch.triage.ranks.absence import in_collective, listed, rank_of, waits_as, way
from perfwatch.triage.ranks.collectives import standings
from perfwatch.triage.ranks.standing import Standing
from perfwatch.triage.ranks.traffic import carried
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import Node
from perfwatch.triage.waits.threads import other_threads
from perfwatch.triage.words.frames import any_tag, show, tags
from perfwatch.verdict import Alternative, Evidence, Outcome

CAUSE = "mismatched_collective"
MOST_NAMED = 3  # of ranks, and of threads that are left over
# Where no GPU can be asked, a wait for it is seen as a native call that does not return.
WAITS = ("collective", "gpu", "native")


def leaves(chain: Chain) -> bool:
    """Whether a rank is done and destroys its process group."""
    return chain.start.stack is not None and any_tag(tags(chain.start.stack), "group_destroy")


def over(chain: Chain) -> bool:
    """Whether a rank's program is over: its main thread is in the interpreter's shutdown, and makes no further call."""
    return chain.start.stack is not None and any_tag(tags(chain.start.stack), "exit")


def others_train(case: Case, pid: int) -> bool:
    """Whether a rank is done and another one is not: it has more to wait for than the end of this one's threads."""
    others = [chain for other, chain in case.chains.items() if other != pid]
    if leaves(case.chains[pid]):
        return any(not leaves(chain) for chain in others)
    return case.job.covered and any(in_collective(case, chain) and not over(chain) for chain in others)


def left_over(case: Case, chain: Chain) -> list[Node]:
    """The program's own threads that go on while the interpreter waits for all that are not daemons."""
    end = chain.end.node
    frames = end.stack.frames if end.stack is not None else ()
    if not any(frame.function == "_shutdown" and frame.file.endswith("/threading.py") for frame in frames):
        return []
    return [one for one in other_threads(case.history, case.job, end) if one.frame is not None][:MOST_NAMED]


def left_early(case: Case) -> Outcome:
    """Some ranks have made their last call, the others wait in one more: all stand still, and nobody is anywhere else."""
    leaving = [chain for chain in case.still_chains if leaves(chain)]
    if not leaving:
        return None
    waiting = [chain for chain in case.chains.values() if not leaves(chain) and _stands(case, chain)]
    if not waiting or len(leaving) + len(waiting) < len(case.ranks) or not case.job.covered:
        return None
    if any(chain.end.kind not in WAITS for chain in waiting):
        return None
    silent = min(chain.end.silent_seconds or 0.0 for chain in (*leaving, *waiting))
    seen = all(in_collective(case, chain) or polls(case.history, chain.start.pid) for chain in waiting)
    crossed = next((one for one in standings(case) if one.crossed), None)
    waiting.sort(key=lambda chain: _calls_fewer(crossed, chain))
    found = hung(
        case,
        CAUSE,
        leaving[0],
        owner="user_code",
        summary=f"the ranks have made unequal numbers of calls: {_leave(leaving)}, while {_wait(waiting, crossed)}",
        patience=STRUCTURAL_SECONDS if seen and not _may_talk(case, waiting) else temporal(case),
        silent=silent,
        evidence=tuple(
            case.saw(
                "collective",
                f"rank {rank_of(chain)}",
                "destroys its process group" if leaves(chain) else f"waits {waits_as(case, chain)}",
                f"{show(chain.start.frame)} for {chain.end.silent_seconds or 0:.1f} s",
                "all ranks in the same call",
            )
            for chain in (*leaving[:2], *waiting[:2])
        )
        + (_told_by_ras(case, crossed) if crossed else ()),
        alternatives=(Alternative(cause="hung_at_exit", refuted_by="training is not over in every rank"),),
        next=("compare how many batches each rank gets: who has fewer, or leaves its loop earlier?",),
    )
    blamed = (*waiting, *leaving) if crossed else (*leaving, *waiting)
    return msgspec.structs.replace(
        found,
        culprits=tuple(one for chain in blamed for one in chain.culprits()),
        wait_chain=tuple(
            link for chain in (*leaving, *waiting) for link in (chain.links if leaves(chain) else way(case, chain))
        ),
    )


def counts(standing: Standing) -> str:
    """``rank 0: 42 all_reduce; rank 1: 40 all_reduce, 1 all_gather``."""
    told = [seat for seat in standing.seats if seat.launched][:MOST_NAMED]
    return "; ".join(f"{seat.name}: {', '.join(f'{count} {kind}' for kind, count in seat.launched)}" for seat in told)


def _leave(leaving: list[Chain]) -> str:
    where = ", ".join(f"rank {rank_of(chain)} at {show(chain.start.frame)}" for chain in leaving[:MOST_NAMED])
    return f"{where} {'destroys its' if len(leaving) == 1 else 'destroy their'} process group"


def _wait(waiting: list[Chain], crossed: Standing | None) -> str:
    who, at = listed([rank_of(chain) for chain in waiting]), show(waiting[0].start.frame)
    return f"{who} in one more, at {at}" if crossed is None else f"{who} in different calls, at {at}: {counts(crossed)}"


def _told_by_ras(case: Case, standing: Standing) -> tuple[Evidence, ...]:
    same = "the same calls in every rank"
    return (case.saw("nccl_ras", standing.group, "the waiting ranks' calls", counts(standing), same, standing.at),)


def _calls_fewer(crossed: Standing | None, chain: Chain) -> int:
    """Who has called most comes first: what it waits in is what the others never call."""
    return -next((seat.reached for seat in crossed.seats if seat.pid == chain.start.pid), 0) if crossed else 0


def _stands(case: Case, chain: Chain) -> bool:
    """Whether a rank does not go on: it spins for a card that only polls, in one line as far as it was seen, or stands anyway."""
    spins = chain.start.motion.distinct <= 1 and polls(case.history, chain.start.pid)
    return spins or chain in case.still_chains


def _may_talk(case: Case, waiting: list[Chain]) -> bool:
    """Whether cards that poll may be in a slow collective among themselves: two or more, and data comes or nobody looked."""
    if sum(polls(case.history, chain.start.pid) for chain in waiting) < 2:
        return False
    own = carried(case, WINDOW_SECONDS)
    return own is None or not own.silent
