"""What every rule about a slow run shares: how much of the time is lost, how sure that makes us, and the finding itself."""

from collections.abc import Callable

from perfwatch.triage.cards.gpu import saturated
from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Level
from perfwatch_probes import readings as r

NOW_SECONDS, WINDOW_SECONDS = 5.0, 20.0
FEW_SAMPLES = 30
LOST_SHARE = 0.15  # of the training thread's time: below it a cause is not worth a verdict
CLEAR_SHARE, PLAIN_SHARE, SURE_SHARE = (
    0.22,
    0.35,
    0.45,
)  # from these on its confidence is high, certain; it explains all
NOTED = Level.LOW  # for what was seen and cost no time that could be measured: reported beside a verdict
UNSEEN_MACHINE = Level.MEDIUM  # at most, if throttling, memory and /dev/shm are unknown


def certainty(lost: float) -> Level:
    """How sure a cause is by the share of the time that it costs."""
    return Level.CERTAIN if lost >= PLAIN_SHARE else Level.HIGH if lost >= CLEAR_SHARE else Level.MEDIUM


def noted(lost: float | None, confidence: float) -> float:
    """The confidence in a state of the machine or of the job that is there, whatever it costs: a mere note unless time is lost."""
    if lost is None:
        return min(confidence, UNSEEN_MACHINE)
    return confidence if lost >= LOST_SHARE else min(confidence, NOTED)


def behind(lost: float | None) -> float:
    """How much a cause explains that stands behind whatever else is slow: all of it, if it costs time at all."""
    return 1.0 if lost is None or lost >= LOST_SHARE else lost


def asleep_share(case: Case, rank: Member, seconds: float = WINDOW_SECONDS) -> float | None:
    """Share of the time that a training thread neither runs nor waits for a CPU; None where it is not known."""
    moved = motion(case.history, rank.pid, case.progress[rank.pid].thread, seconds)
    return None if moved.run_share is None else max(0.0, 1.0 - moved.run_share - (moved.delay_share or 0.0))


def working(case: Case) -> list[tuple[Member, Profile]]:
    """Living ranks that are not known to stand still, with enough samples of their training threads.

    A rank whose card is busy all the time is left out: whatever its host does costs nothing. (Of several ranks' cards a wait
    for each other would count as busy, so there all stay.)
    """
    found = [(rank, case.profile(rank, WINDOW_SECONDS)) for rank in case.ranks if _goes_on(case, rank)]
    alone = case.job.apart or (len(case.ranks) == 1 and (case.job.world_size or 1) == 1)
    return [
        (rank, seen)
        for rank, seen in found
        if seen.samples >= FEW_SAMPLES and not (alone and saturated(case.history, rank.pid, WINDOW_SECONDS))
    ]


def _goes_on(case: Case, rank: Member) -> bool:
    """True if a training thread moves, or at least its own reads and writes go through while it waits for them."""
    now = case.progress[rank.pid]
    return now.kind != "still" or bool(motion(case.history, rank.pid, now.thread).io_calls)


def worst(case: Case, lost: Callable[[Member, Profile], float]) -> tuple[Member, Profile, float] | None:
    """The rank that loses most by some measure, if that is worth a verdict."""
    scored = [(rank, seen, lost(rank, seen)) for rank, seen in working(case)]
    best = max(scored, key=lambda one: one[2], default=None)
    return best if best is not None and best[2] >= LOST_SHARE else None


def in_samples(case: Case, rank: Member, seen: Profile, claim: str, share: float, expected: str) -> Evidence:
    """What a share of the samples of a rank's training thread shows."""
    return case.saw("stack", f"pid {rank.pid}", claim, f"{share:.0%} of {seen.samples} samples", expected)


def telling(case: Case, entity: str, *witnesses: tuple[str, str, float, str, str]) -> tuple[Evidence, ...]:
    """What each witness shows, (witness, claim, share, "of what", expected); one that shows nothing is left out.

    A verdict rests on one of them, and the others may have seen nothing: "0 %" beside it would speak against it.
    """
    return tuple(
        case.saw(witness, entity, claim, f"{share:.0%} of {whole}", expected)
        for witness, claim, share, whole, expected in witnesses
        if share
    )


def slow(
    case: Case,
    cause: Cause,
    rank: Member,
    *,
    lost: float,
    summary: str,
    evidence: tuple[Evidence, ...],
    frame: r.Frame | None = None,
    alternatives: tuple[Alternative, ...] = (),
    next: tuple[str, ...] = (),
    culprits: tuple[Culprit, ...] | None = None,
    confidence: float | None = None,
    explains: float | None = None,
    decides_in_seconds: float = 0.0,
) -> Finding:
    """A slow finding; the culprit is the rank's own line unless others are given.

    ``explains`` ranks it among other slow findings: the share of time lost unless given, 1 for a cause that is behind them.
    Where the machine was not seen, such a cause cannot be excluded, and the confidence is capped.
    """
    confidence = certainty(lost) if confidence is None else confidence
    if not case.history.entities(r.Cgroup) or case.latest_host() is None:
        confidence = min(confidence, UNSEEN_MACHINE)
    return Finding(
        cause=cause.name,
        state="slow",
        summary=summary,
        confidence=confidence,
        owner=cause.owner,
        culprits=culprits if culprits is not None else (Culprit(pid=rank.pid, rank=rank.rank, frame=show(frame)),),
        evidence=evidence,
        alternatives=alternatives,
        next=next,
        lost_share=round(lost if explains is None else explains, 3),
        decides_in_seconds=round(decides_in_seconds, 1),
    )
