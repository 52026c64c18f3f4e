"""Steps go on."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from perfwatch.text import duration
from perfwatch.triage.cards.accelerated import UNITS_UNSEEN
from perfwatch.triage.cards.gpu import FEW_SECONDS, Regime, regimes, spins_on, unseen
from perfwatch.triage.cards.hardware import COPIES_MIB_PER_SECOND, traffic_mib_per_second
from perfwatch.triage.cards.whose import cards_of, name_of, unused
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Facts, Rule
from perfwatch.triage.rules.late_ranks import waiting_share, who_train
from perfwatch.triage.rules.python import gil_wait
from perfwatch.triage.shares.budget import (
    OWN_SHARE,
    WRITING,
    Bin,
    Budget,
    awaits_data,
    budget,
    keeps_gil,
    native_python_share,
    python_called_back,
    without_gradients_at,
)
from perfwatch.triage.shares.profile import TRAINING_TAGS, Profile
from perfwatch.triage.shares.thresholds import (
    FEW_TIMES,
    LARGE,
    LATELY_SECONDS,
    MANY_TIMES,
    MOSTLY,
    MUCH,
    NOTABLE,
    NOW_SECONDS,
    OFTEN,
)
from perfwatch.triage.shares.training import in_backward, keeps_most, unfollowed, updates
from perfwatch.triage.words.code import is_plain, line_of
from perfwatch.triage.words.frames import is_user, show
from perfwatch.verdict import Abstention, Finding, Level, Missing, Outcome, doing
from perfwatch_probes.readings import Frame, GpuBinding, GpuSample, Network, Stack, Thread

CPU_TRAINING = Cause("cpu_training", "healthy", "user_code", (Thread, Stack))
BALANCED = Cause("balanced", "healthy", "user_code", (Thread, Stack))

PLAIN_SHARE = 0.8  # of the samples: below it something else takes a part of the time
FEW_SAMPLES = 15  # show that steps continue: of a calm job there are no more
COMPUTES = CPU_TRAINING.line("""
    training makes progress: the training thread computes {share:.0%} of the time[, one step every {pace:step}]{idle}{unsure}
    - saw stack: computes | {share:.0%} of samples in training code | above 50 %
    - saw thread: runs | {runs:.0%} of a core | above 40 %
""")


def cpu_training(case: Case) -> Outcome:
    """Fires when every rank computes most of the time."""
    trainers = who_train(case)
    if not trainers or any(case.progress[rank.pid].kind != "moving" for rank in trainers):
        return None
    share = min(_computes(case, rank) for rank in trainers)
    threads = [(rank.pid, case.progress[rank.pid].thread) for rank in trainers]
    runs = min(motion(case.history, *one, LATELY_SECONDS).run_share or 0.0 for one in threads)
    if share < MOSTLY or runs < LARGE:
        return None
    cards = [card for rank in trainers for card in regimes(case.history, rank.pid, LATELY_SECONDS)]
    lately = [card for rank in trainers for card in regimes(case.history, rank.pid, NOW_SECONDS)]
    if any(_is_given_work(case, card) for card in (*cards, *lately)):
        return None  # judged by its cards
    if not cards and any(_uses_a_card(case, rank) for rank in trainers):
        lacking = case.lacks("gpm") or case.lacks("gpu") or Missing(witness="gpu", reason="its GPU was not read lately")
        return Abstention(cause=CPU_TRAINING.name, missing=(lacking,))
    return _goes_on(case, trainers, share, runs, cards)


SETUP = (Bin.TUNING, Bin.COMPILING, Bin.STARTING, Bin.WORKERS)


def _computes(case: Case, rank: Member) -> float:
    """Share of the time that a rank trains; 0 where it is not seen to train, or something is known to be in its way."""
    spent = budget(case, rank)
    if spent.seen.samples < FEW_SAMPLES or not spent.seen.seen(*TRAINING_TAGS) or _is_kept(spent):
        return 0.0
    return (
        0.0
        if _awaits_gil(case, rank)
        else 1.0 - spent.share(Bin.DATA, Bin.UNPICKLING, *SETUP, Bin.SAVING, Bin.COPYING_MODEL)
    )


def _is_kept(spent: Budget) -> bool:
    """True if one thing that is no training takes a large part of the time: whatever the reason, that is not healthy."""
    return max(map(spent.share, (Bin.DATA, Bin.UNPICKLING, Bin.LOCK, *WRITING))) > LARGE


def _awaits_gil(case: Case, rank: Member) -> bool:
    """True if it waits for a thread of its own process, whichever holds the GIL meanwhile."""
    return gil_wait(case, rank) is not None


def _goes_on(case: Case, trainers: Sequence[Member], share: float, runs: float, cards: list[Regime]) -> Finding:
    held = cards if any(cards_of(case.history, rank.pid).certain for rank in trainers) else []
    steps = case.progress[trainers[0].pid].steps
    seconds = steps.newest_seconds if steps is not None and not steps.late else None
    apart = [rank for rank in case.trainers if rank not in trainers]
    unsure = doubt(case, trainers) + "".join(
        f"; rank {rank.rank} has another role: it {doing(case.chains[rank.pid].awaited)}" for rank in apart
    )
    idle = ""
    if held:
        does = "is idle" if held[0].kind == "idle" else "does nothing for it, and something for others"
        idle = f"; {name_of(case.history, held[0].uuid)}, which it holds, {does}: is the model on the CPU?"
    sure = Level.MEDIUM if held or unsure else Level.CERTAIN if share >= PLAIN_SHARE else Level.HIGH
    facts = Facts(pid=trainers[0].pid, share=share, runs=runs, pace=seconds or None, idle=idle, unsure=unsure)
    return COMPUTES.finding(case, (), sure, **facts)


def _uses_a_card(case: Case, rank: Member) -> bool:
    return bool(cards_of(case.history, rank.pid).uuids) or unseen(case.history, rank.pid)


def _is_given_work(case: Case, card: Regime) -> bool:
    """True if a card runs kernels, or so much goes over its link that it was given work, and that is known to be this job's.

    A library may have opened a context on it: torch's compiler asks what the card can do.
    """
    copies = (traffic_mib_per_second(case.history, card) or 0.0) >= COPIES_MIB_PER_SECOND
    if unused(case.history, card.uuid) or not (card.kind != "idle" or card.returns > 0 or copies):
        return False
    held = (cards_of(case.history, rank.pid) for rank in case.trainers)
    return any(found.certain and card.uuid in found.uuids for found in held)


# Training that may be something else: where so much of the time counts in a bin, what is said of it.
DOUBTS: tuple[tuple[Bin, float, str], ...] = (
    (Bin.HOOKS, MOSTLY, "is in hooks, mostly at {line}: is that intended in every step, and does it grow?"),
    (Bin.OTHER, OWN_SHARE, "at {line}, outside of modules, backward passes and optimizers: is that the model?"),
    (Bin.NO_GRADIENTS, MUCH, "is forward passes without gradients, at {line}: an evaluation, or a part of the method?"),
    (Bin.LOADING, NOTABLE, "prepares batches in the training thread: DataLoader workers would do that in parallel"),
)


def doubt(case: Case, ranks: Sequence[Member]) -> str:
    """Why what these ranks do may not be plain training, with a semicolon before it; empty where all are at work known as such."""
    if asked := max(unfollowed(case, rank) for rank in ranks):
        return (
            f"; {asked} samples of forward passes, none of a backward pass: most of it is frozen, or steps are skipped"
        )
    if plain := next((line for rank in ranks if (line := plain_python(case, rank)) is not None), None):
        return f"; most of it is plain Python, at {show(plain)}: is that the model?"
    called = (python_called_back(case, rank) for rank in ranks)
    if back := next((one for one in called if one is not None and one.is_python), None):
        return f"; {back.share:.0%} of it is in {show(back.frame)}, which torch calls back: is that plain Python?"
    if kept := next((graph for rank in ranks if (graph := keeps_most(case, rank)) is not None), None):
        return f"; {kept[0]:.0%} of it is backward passes that keep their graph, at {show(kept[1])}: does it grow with every step?"
    for one, floor, said in DOUBTS:
        known = (budget(case, rank) for rank in ranks if _is_unknown(case, rank, one))
        spent = max(known, key=lambda each: each.share(one), default=None)
        if spent is not None and spent.share(one) >= floor:
            return f"; {spent.share(one):.0%} of it {said.format(line=show(_line(case.history, spent, one)))}"
    if passes := max(without_updates(case, rank) for rank in ranks):
        return f"; no update was seen after {passes} backward passes: it is brief, or steps are skipped (perfwatch run counts them)"
    return ""


def _is_unknown(case: Case, rank: Member, one: Bin) -> bool:
    """True unless a native profile shows that what counts as other work is tensor arithmetic."""
    native = native_python_share(case, rank) if one is Bin.OTHER else None
    return native is None or native >= OFTEN


def _line(history: History, spent: Budget, one: Bin) -> Frame | None:
    """The line of the program that a bin counts to; of passes without gradients the one that switches these off."""
    off = Counter[Frame]()
    for each in spent.of(one).sights if one is Bin.NO_GRADIENTS else ():
        if (frame := without_gradients_at(history, each.reading)) is not None and is_user(frame):
            off[frame] += each.reading.samples
    return off.most_common(1)[0][0] if off else spent.of(one).top_line()


def plain_python(case: Case, rank: Member) -> Frame | None:
    """The program's own line in a forward pass where most of the time goes into plain Python; else None.

    It keeps the GIL; or most of it is at lines in loops that call nothing but builtins, and no dump saw those without the GIL. It
    may be a model that is written so, or texts that are cut into tokens anew in each step.
    """
    spent = budget(case, rank)
    seen = spent.of(Bin.PYTHON)
    if spent.share(Bin.PYTHON) < MOSTLY:
        return None
    plain = seen.share_where(partial(_at_plain_line, case.history)) >= MOSTLY
    return seen.top_line() if plain or keeps_gil(seen, bool) else None


def _at_plain_line(history: History, stack: Stack) -> bool:
    line = line_of(history, stack.frames[0])
    return stack.owns_gil is not False and line is not None and bool(line.loops) and is_plain(history, stack.frames[0])


def without_updates(case: Case, rank: Member) -> int:
    """How many backward passes were met, if they are many and no update was; else 0. Where steps are counted none need be seen."""
    seen = case.profile(rank, LATELY_SECONDS)
    passes = seen.turns(in_backward)
    return passes if case.steps(rank) is None and passes >= MANY_TIMES and seen.share_where(updates) == 0.0 else 0


PACE_SECONDS, EVENLY = 120.0, 1.1
GOES_ON = BALANCED.line("""
    training makes progress ({basis}); there is no single bottleneck{unsure}[. The training thread sleeps {slept:.0%} of the time,
    reason unknown]
    - saw progress of {ranks}: moves | {basis} | steps continue
""")
PACED = BALANCED.line("""
    training makes a step every {length}, at a pace that the program sets: it sleeps {lost:.0%} of the time at {at}
    - saw steps: come evenly | p50 {length}, p95 {longest} | steps continue
    - saw stack: sleeps in the program's own code | {lost:.0%} of {seen.samples} samples | 0 %
""")
TURNS = BALANCED.line("""
    one training step about every {length}, at a pace that the program sets: it sleeps {lost:.0%} of the time at {at}
    - saw thread: wakes from sleep | {often:.2g} times a second | steps continue
    - saw stack: sleeps in a loop that trains in every turn | {lost:.0%} of {seen.samples} samples | 0 %
""")


def balanced(case: Case) -> Outcome:
    """Fires when every rank moves and enough was seen of it."""
    if not case.moving:
        return None
    if (paced := _paced(case)) is not None:
        return paced
    slept, unwatched = 0.0, case.latest_host() is None or (len(case.ranks) > 1 and not _sees_traffic(case))
    for rank in case.trainers:
        seen = case.profile(rank, LATELY_SECONDS)
        if seen.samples < FEW_SAMPLES or not seen.seen(*TRAINING_TAGS):
            return None
        if _is_kept(budget(case, rank)) or _awaits_gil(case, rank):
            return None  # whatever the reason, that is not healthy
        slept = max(slept, _sleeps_unexplained(case, rank, seen))
        cards = regimes(case.history, rank.pid, LATELY_SECONDS)
        runs = case.motion(rank, LATELY_SECONDS).run_share
        unwatched = unwatched or runs is None or (bool(cards_of(case.history, rank.pid).uuids) and not cards)
        if cards_of(case.history, rank.pid).certain and _not_known_to_work(case, cards):
            return None
    sources = {card.source for rank in case.trainers for card in regimes(case.history, rank.pid, LATELY_SECONDS)}
    unsure = doubt(case, case.trainers)
    sure = min(
        Level.MEDIUM if slept >= MUCH or unwatched or unsure else Level.HIGH, UNITS_UNSEEN if "nvml" in sources else 1.0
    )
    basis, count = case.progress[case.trainers[0].pid].basis, len(case.trainers)
    facts = Facts(basis=basis, ranks="1 rank" if count == 1 else f"{count} ranks", unsure=unsure)
    return GOES_ON.finding(case, (), sure, slept=slept if slept >= MUCH else None, **facts)


def _sees_traffic(case: Case) -> bool:
    """True if it was read what ranks send to each other: through the network, and through the links of their cards."""
    entities = case.history.entities
    return bool(entities(Network)) and (not entities(GpuSample) or bool(entities(GpuBinding)))


def _sleeps_unexplained(case: Case, rank: Member, seen: Profile) -> float:
    """Share of the time that a training thread without a card sleeps, and waits for neither data nor other ranks."""
    if _uses_a_card(case, rank):
        return 0.0
    explained = waiting_share(case, rank, seen) + seen.share_where(awaits_data)
    return (case.motion(rank, LATELY_SECONDS).asleep_share or 0.0) - explained


def _paced(case: Case) -> Finding | None:
    """One rank whose steps come evenly, with a sleep of the program's own between them: a simulator in real time, say."""
    if len(case.ranks) != 1 or (case.job.world_size or 1) > 1:
        return None
    rank, spent = case.ranks[0], budget(case, case.ranks[0])
    steps, seen, often = case.steps(rank, PACE_SECONDS), spent.seen, case.progress[rank.pid].turns_per_second
    slept = spent.share(Bin.SLEEPING)
    if slept < MOSTLY or seen.samples < FEW_SAMPLES:
        return None
    facts = Facts(pid=rank.pid, lost=slept, seen=seen, at=show(spent.of(Bin.SLEEPING).top_line()))
    if often:
        return TURNS.finding(case, (), Level.MEDIUM, length=duration(1 / often), often=often, **facts)
    length, longest = (steps.median_seconds or 0.0, steps.long_seconds or 0.0) if steps is not None else (0.0, 0.0)
    if steps is None or len(steps.intervals) < FEW_TIMES or longest > EVENLY * length:
        return None
    return PACED.finding(case, (), Level.MEDIUM, length=duration(length, 3), longest=duration(longest, 3), **facts)


def _not_known_to_work(case: Case, cards: tuple[Regime, ...]) -> bool:
    """True if the cards were not looked at for long enough, have nothing to do most of the time, or a kernel that may not end.

    Unseen ones tell nothing.
    """
    first = cards[0] if cards else None
    if first is None:
        return False
    return first.seconds < FEW_SECONDS or first.waiting > MOSTLY or spins_on(case.history, first.uuid)


RULES = (Rule(CPU_TRAINING, cpu_training), Rule(BALANCED, balanced))
