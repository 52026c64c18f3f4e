"""The training thread computes, on the CPU."""

from collections.abc import Sequence

from perfwatch.triage.cards.gpu import Regime, regimes, unseen
from perfwatch.triage.cards.hardware import traffic_mib_per_second
from perfwatch.triage.cards.neighbours import unused
from perfwatch.triage.cards.whose import cards_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.ranks.lateness import who_train
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.plainly import doubt
from perfwatch.triage.shares.profile import TRAINING_TAGS
from perfwatch.triage.shares.starving import SURE_SHARE, awaits_data
from perfwatch.triage.waits.gil import GIL_SHARE, gil_wait
from perfwatch.verdict import Abstention, Finding, Missing, Outcome, doing
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("cpu_training", "healthy", "user_code", (Thread, Stack))

COMPUTING_SHARE = 0.5  # of samples in forward, backward, optimizer or a collective
RUNNING_SHARE = 0.4  # of a core
SEEN = 0.94
# Of many backward passes no update was seen (brief ones, or steps that are skipped), or much of the time went elsewhere, or into
# functions of the program's own that may be its model or may be anything.
UNSURE = 0.75
PLAIN_SHARE = 0.8
ELSEWHERE = ("loader_wait", "loader_start", "loader_stop", "save", "model_copy", "import", "compile")
FEW_SAMPLES = 15
WINDOW_SECONDS = 15.0
CARD_IDLES = 0.7
COPIES_MIB_PER_SECOND = 300.0  # over its link: a card that nothing is asked of moves a few
LATELY_SECONDS = 2.0  # a card that was given work a moment ago has idled for most of the window


def judge(case: Case) -> Outcome:
    """Fires when every rank computes most of the time."""
    trainers = who_train(case)
    if not trainers or any(case.progress[rank.pid].kind != "moving" for rank in trainers):
        return None
    shares = [_computes(case, rank) for rank in trainers]
    runs = [
        motion(case.history, rank.pid, case.progress[rank.pid].thread, WINDOW_SECONDS).run_share or 0.0
        for rank in trainers
    ]
    if min(shares) < COMPUTING_SHARE or min(runs) < RUNNING_SHARE:
        return None
    cards = [card for rank in trainers for card in regimes(case.history, rank.pid, WINDOW_SECONDS)]
    lately = [card for rank in trainers for card in regimes(case.history, rank.pid, LATELY_SECONDS)]
    if any(_is_given_work(case, card) for card in (*cards, *lately)):
        return None  # judged by its cards
    if not cards and any(_uses_a_card(case, rank) for rank in trainers):
        lacking = case.lacks("gpm") or case.lacks("gpu") or Missing(witness="gpu", reason="its GPU was not read lately")
        return Abstention(cause=CAUSE.name, missing=(lacking,))
    return _goes_on(case, trainers, min(shares), min(runs), cards)


def _computes(case: Case, rank: Member) -> float:
    """Share of the time that a rank spends on training; 0 where it is not seen to train, or something is known to be in its way."""
    seen = case.profile(rank, WINDOW_SECONDS)
    if seen.samples < FEW_SAMPLES or not seen.seen(*TRAINING_TAGS) or seen.share_where(awaits_data) > SURE_SHARE:
        return 0.0
    wait = gil_wait(case, rank)  # for a thread of its own process
    return 0.0 if wait is not None and wait.share >= GIL_SHARE else 1.0 - seen.share(*ELSEWHERE)


def _goes_on(case: Case, trainers: Sequence[Member], share: float, runs: float, cards: list[Regime]) -> Finding:
    held = cards if any(cards_of(case.history, rank.pid).certain for rank in trainers) else []
    steps = case.progress[trainers[0].pid].steps
    seconds = steps.newest_seconds if steps is not None and not steps.late else None
    trained = {rank.pid for rank in trainers}
    apart = [rank for rank in case.trainers if rank.pid not in trained]
    unsure = doubt(case, trainers) + "".join(
        f"; rank {rank.rank} has another part: it {doing(case.chains[rank.pid].awaited)}" for rank in apart
    )
    pace = f", a step each {seconds:.3f} s" if seconds else ""
    idle = (
        f"; {name_of(case.history, held[0].uuid)}, which it holds, {_rests(held[0])}: is the model on the CPU?"
        if held
        else ""
    )
    pid = f"pid {trainers[0].pid}"
    return Finding(
        cause=CAUSE.name,
        state="healthy",
        summary=f"training goes on: the training thread computes {share:.0%} of the time{pace}{idle}{unsure}",
        confidence=CARD_IDLES if held else SEEN if share >= PLAIN_SHARE and not unsure else UNSURE,
        owner=CAUSE.owner,
        evidence=(
            case.saw("stack", pid, "computes", f"{share:.0%} of samples in training code", "above 50 %"),
            case.saw("thread", pid, "runs", f"{runs:.0%} of a core", "above 40 %"),
        ),
    )


def _uses_a_card(case: Case, rank: Member) -> bool:
    return bool(cards_of(case.history, rank.pid).uuids) or unseen(case.history, rank.pid)


def _is_given_work(case: Case, card: Regime) -> bool:
    return (card.kind != "idle" or card.returns > 0 or _copies(case, card)) and not _of_others(case, card)


def _copies(case: Case, card: Regime) -> bool:
    """Whether so much goes over the link of a card that it was given work, though no kernel runs."""
    return (traffic_mib_per_second(case.history, card) or 0.0) >= COPIES_MIB_PER_SECOND


def _rests(card: Regime) -> str:
    return "is idle" if card.kind == "idle" else "does nothing for it, and something for others"


def _of_others(case: Case, card: Regime) -> bool:
    """Whether what a card does is not known to be this job's: nobody could tell which cards the ranks use, or only others compute there.

    A library may have opened a context on it: torch's compiler asks what the card can do.
    """
    return unused(case.history, card.uuid) or not any(
        found.certain and card.uuid in found.uuids
        for found in (cards_of(case.history, rank.pid) for rank in case.trainers)
    )


RULES = (Rule(CAUSE, judge),)
