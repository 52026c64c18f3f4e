"""One rank is last again and again, and all others wait for it."""

from functools import partial

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.ranks import lateness
from perfwatch.triage.ranks.collectives import growing
from perfwatch.triage.ranks.going_on import go_on, overdue
from perfwatch.triage.ranks.late_cards import Late, alike, late_by_cards
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.saving import in_save
from perfwatch.triage.slowness import FEW_SAMPLES, WINDOW_SECONDS, certainty, slow
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Process, Stack

CAUSE = Cause("straggling_rank", "slow", "user_code", (Process, Stack))

WAITING_SHARE = 0.25  # of a victim's time in collectives
RATIO = 3.0  # victims wait so many times as long as the straggler
# Where ranks share CPUs the late one waits, too: for them, between two parts of a collective. It is the one that works then.
CROWDED_RATIO, APART, WORKS, CROWDED_SURE = 2.0, 0.3, 2.0, 0.79
SAVING = 0.5  # of what the late rank does besides waiting


def judge(case: Case) -> Outcome:
    """Fires when one rank hardly waits and the others do."""
    if lateness.apart(case) or not go_on(case) or overdue(case):
        return None
    ranks = [(rank, case.profile(rank, lateness.training_seconds(case, rank))) for rank in case.ranks]
    ranks = [(rank, seen) for rank, seen in ranks if not lateness.only_receives(case, rank, seen)]
    if len(ranks) < 2 or not case.job.covered or any(seen.samples < FEW_SAMPLES for _, seen in ranks):
        return None
    if lateness.excused(case, ranks) or alike(case, ranks):
        return None
    if (found := _by_stacks(case, ranks)) is not None:
        return found
    told = late_by_cards(case, ranks)
    return None if told is None else _late(case, told)


def _by_stacks(case: Case, ranks: list[tuple[Member, Profile]]) -> Outcome:
    waits = {rank.pid: lateness.waiting_share(case, rank, seen) for rank, seen in ranks}
    late, seen = min(ranks, key=lambda one: waits[one[0].pid])
    least, own = min(waits[rank.pid] for rank, _ in ranks if rank.pid != late.pid), waits[late.pid]
    if least < WAITING_SHARE or least < CROWDED_RATIO * own:
        return None
    clear = least >= RATIO * own
    if not clear and (least - own < APART or not _works_most(case, late)):
        return None
    evidence = tuple(
        case.saw("stack", f"rank {rank.rank}", "waits in collectives", f"{waits[rank.pid]:.0%} of the time",
                 "about as much as the others")
        for rank, _ in ranks[:4]
    )  # fmt: skip
    how = f"the others wait {least:.0%} of the time in collectives, it only {own:.0%}"
    return _late(case, Late(late, seen, least - own, how, evidence, *(() if clear else (CROWDED_SURE,))))


def _works_most(case: Case, late: Member) -> bool:
    """Whether a rank's training thread runs so many times as long as that of any other."""
    runs = {
        rank.pid: motion(case.history, rank.pid, case.progress[rank.pid].thread, WINDOW_SECONDS).run_share or 0.0
        for rank in case.ranks
    }
    return runs[late.pid] >= WORKS * max(share for pid, share in runs.items() if pid != late.pid)


def _late(case: Case, told: Late) -> Outcome:
    late, seen = told.rank, told.seen
    saving = seen.share_where(partial(in_save, case))
    if saving > 0.0 and saving >= SAVING * (1.0 - seen.share_where(partial(lateness.in_collective, case))):
        return None  # the others wait for its checkpoint
    why = lateness.own_cause(case, late, seen)
    counted = "every rank moves" + (", and RAS sees the counts grow" if growing(case) else "")
    found = slow(
        case,
        CAUSE,
        late,
        lost=told.lost,
        explains=1.0,
        confidence=min(told.sure, max(0.85, certainty(told.lost))),
        summary=f"rank {late.rank} is last again and again: {told.how}; {why.words}",
        evidence=(*told.evidence, *why.evidence),
        culprits=(why.culprit,),
        alternatives=(Alternative(cause="stalled_collective", refuted_by=counted),),
        next=(f"perfwatch attach {late.pid} --watch",),
    )
    return msgspec.structs.replace(found, owner=why.owner)


RULES = (Rule(CAUSE, judge),)
