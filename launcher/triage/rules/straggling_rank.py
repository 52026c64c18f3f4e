"""One rank is last again and again, and all others wait for it.

What it means
    Collectives go on, but each waits for the same rank: its data, its node or its code is slower than the others'.

How it is recognised
    All ranks move. One of them hardly waits in collectives while the others spend a good part of their time there. The
    reduction of gradients has no frame of its own below ``backward``: there a thread that sleeps waits for its peers.

What it is mistaken for
    ``stalled_collective``: nothing moves. Uneven work: now this rank is late, now that one, and all wait about as much.

What to do next
    Look at the named rank: its own line says what it does while the others wait.
"""

from perfwatch.probes.readings import Process, Stack
from perfwatch.triage.case import Case
from perfwatch.triage.frames import show, tags
from perfwatch.triage.hang import wakes_soon
from perfwatch.triage.job import Member
from perfwatch.triage.motion import motion
from perfwatch.triage.profile import Profile
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import FEW_SAMPLES, WINDOW_SECONDS, certainty, slow
from perfwatch.triage.verdict import Alternative, Culprit, Outcome

CAUSE = Cause("straggling_rank", "slow", "user_code", (Process, Stack))

WAITING_SHARE = 0.25  # of a victim's time in collectives
RATIO = 3.0  # victims wait so many times as long as the straggler


def judge(case: Case) -> Outcome:
    """Fires when one rank hardly waits and the others do."""
    if not _go_on(case):
        return None
    ranks = [(rank, case.profile(rank, WINDOW_SECONDS)) for rank in case.ranks]
    if len(ranks) < 2 or not case.job.covered or any(seen.samples < FEW_SAMPLES for _, seen in ranks):
        return None
    waits = {rank.pid: waiting_share(case, rank, seen) for rank, seen in ranks}
    straggler, profile = min(ranks, key=lambda one: waits[one[0].pid])
    others = [waits[rank.pid] for rank, _ in ranks if rank.pid != straggler.pid]
    least, own = min(others), waits[straggler.pid]
    if least < WAITING_SHARE or least < RATIO * own:
        return None
    frame = profile.top_line(lambda stack: not in_collective(stack))
    return slow(
        case,
        CAUSE,
        straggler,
        lost=least - own,
        explains=1.0,
        confidence=max(0.85, certainty(least - own)),
        summary=f"rank {straggler.rank} is last again and again: the others wait {least:.0%} of the time in collectives, "
        f"it only {own:.0%}; it is mostly at {show(frame)}",
        evidence=tuple(
            case.saw(
                "stack",
                f"rank {rank.rank}",
                "waits in collectives",
                f"{waits[rank.pid]:.0%} of the time",
                "about as much as the others",
            )
            for rank, seen in ranks[:4]
        ),
        culprits=(Culprit(pid=straggler.pid, rank=straggler.rank, frame=show(frame)),),
        alternatives=(Alternative(cause="stalled_collective", refuted_by="every rank moves"),),
        next=(f"perfwatch attach {straggler.pid} --watch",),
    )


def _go_on(case: Case) -> bool:
    """Whether steps are made: of ranks that meet in each step one goes on only if all do, however still one looks in between."""
    still = [pid for pid, one in case.progress.items() if one.kind == "still"]
    return len(still) < len(case.progress) and all(wakes_soon(case, case.chains[pid].end) for pid in still)


def waiting_share(case: Case, rank: Member, seen: Profile) -> float:
    """Share of the time that a rank waits in collectives, or asleep in the reduction below its backward pass."""
    explicit = seen.share("collective")
    below = seen.share_where(lambda stack: "backward" in tags(stack) and "collective" not in tags(stack))
    moved = motion(case.history, rank.pid, case.progress[rank.pid].thread, WINDOW_SECONDS)
    asleep = 1.0 - (moved.run_share or 0.0) - (moved.delay_share or 0.0) if moved.run_share is not None else 0.0
    return explicit + max(0.0, min(below, asleep - explicit))


def in_collective(stack: Stack) -> bool:
    """Whether a stack is where a rank waits for the others: a collective, or backward."""
    return not tags(stack).isdisjoint({"collective", "backward"})
