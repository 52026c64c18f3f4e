"""Steps go on."""

from collections import Counter
from collections.abc import Sequence

from perfwatch.text import short_time
from perfwatch.triage.cards.accelerated import FEW_SECONDS, UNITS_UNSEEN
from perfwatch.triage.cards.gpu import Regime, regimes, unseen
from perfwatch.triage.cards.links import traffic_mib_per_second
from perfwatch.triage.cards.neighbours import unused
from perfwatch.triage.cards.spinning import spins_on
from perfwatch.triage.cards.whose import cards_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import motion
from perfwatch.triage.ranks.lateness import waiting_share, who_train
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.own_work import own_work, prepares, rests, takes_a_lock
from perfwatch.triage.shares.profile import TRAINING_TAGS, Profile
from perfwatch.triage.shares.python import (
    NATIVE_SHARE,
    OWN_SHARE,
    CalledBack,
    hook_of,
    keeps_gil,
    native_python_share,
    python_called_back,
)
from perfwatch.triage.shares.starving import SURE_SHARE, awaits_data
from perfwatch.triage.shares.thresholds import CERTAIN, HIGH, LATELY_SECONDS, MEDIUM
from perfwatch.triage.shares.training import in_block_without, keeps_most, unfollowed, updates
from perfwatch.triage.slowness import asleep_share
from perfwatch.triage.waits.gil import GIL_SHARE, gil_wait
from perfwatch.triage.words.code import is_plain, line_of
from perfwatch.triage.words.frames import of_tensors, show, tags, tags_of
from perfwatch.verdict import Abstention, Finding, Missing, Outcome, doing
from perfwatch_probes.readings import Frame, Stack, Thread

CPU_TRAINING = Cause("cpu_training", "healthy", "user_code", (Thread, Stack))

FEW_SAMPLES = 15  # show that steps go on: of a calm job there are no more
COMPUTING_SHARE = 0.5  # of samples in forward, backward, optimizer or a collective
RUNNING_SHARE = 0.4  # of a core
# Of many backward passes no update was seen (brief ones, or steps that are skipped), or much of the time went elsewhere, or into
# functions of the program's own that may be its model or may be anything.
PLAIN_SHARE = 0.8
ELSEWHERE = ("loader_wait", "loader_start", "loader_stop", "save", "model_copy", "import", "compile")
COPIES_MIB_PER_SECOND = 300.0  # over its link: a card that nothing is asked of moves a few
MOMENT_SECONDS = 2.0  # a card that was given work a moment ago has idled for most of the window


def cpu_training(case: Case) -> Outcome:
    """Fires when every rank computes most of the time."""
    trainers = who_train(case)
    if not trainers or any(case.progress[rank.pid].kind != "moving" for rank in trainers):
        return None
    shares = [_computes(case, rank) for rank in trainers]
    runs = [
        motion(case.history, rank.pid, case.progress[rank.pid].thread, LATELY_SECONDS).run_share or 0.0
        for rank in trainers
    ]
    if min(shares) < COMPUTING_SHARE or min(runs) < RUNNING_SHARE:
        return None
    cards = [card for rank in trainers for card in regimes(case.history, rank.pid, LATELY_SECONDS)]
    lately = [card for rank in trainers for card in regimes(case.history, rank.pid, MOMENT_SECONDS)]
    if any(_is_given_work(case, card) for card in (*cards, *lately)):
        return None  # judged by its cards
    if not cards and any(_uses_a_card(case, rank) for rank in trainers):
        lacking = case.lacks("gpm") or case.lacks("gpu") or Missing(witness="gpu", reason="its GPU was not read lately")
        return Abstention(cause=CPU_TRAINING.name, missing=(lacking,))
    return _goes_on(case, trainers, min(shares), min(runs), cards)


def _computes(case: Case, rank: Member) -> float:
    """Share of the time that a rank spends on training; 0 where it is not seen to train, or something is known to be in its way."""
    seen = case.profile(rank, LATELY_SECONDS)
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
        cause=CPU_TRAINING.name,
        state="healthy",
        summary=f"training goes on: the training thread computes {share:.0%} of the time{pace}{idle}{unsure}",
        confidence=MEDIUM if held else CERTAIN if share >= PLAIN_SHARE and not unsure else HIGH,
        owner=CPU_TRAINING.owner,
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


MANY_PASSES = 8
MOSTLY_PLAIN = 0.5  # of the samples
MOSTLY_HOOKS = 0.5  # likewise
MUCH = 0.2  # of the time: a look at some held-out batches takes less
NEARLY = 0.08  # of the time: a cause of its own from 0.15 on, and what is lost less than that is not nothing


def doubt(case: Case, ranks: Sequence[Member]) -> str:
    """Why what these ranks do may not be plain training, with a semicolon before it; empty where all are at work known as such."""
    if asked := max(unfollowed(case, rank) for rank in ranks):
        return (
            f"; {asked} samples of forward passes, none of a backward pass: most of it is frozen, or steps are skipped"
        )
    if plain := next((line for rank in ranks if (line := plain_python(case, rank)) is not None), None):
        return f"; most of it is plain Python, at {show(plain)}: is that the model?"
    if back := next((one for rank in ranks if (one := _perhaps_python(case, rank)) is not None), None):
        return f"; {back.share:.0%} of it is in {show(back.frame)}, which torch calls back: is that plain Python?"
    if hooks := [found for rank in ranks if (found := _in_hooks(case, rank)) is not None]:
        share, line = max(hooks, key=lambda found: found[0])
        return f"; {share:.0%} of it is in hooks, mostly at {show(line)}: is that meant in each step, and does it grow?"
    if others := [found for rank in ranks if (found := _elsewhere(case, rank)) is not None]:
        share, line = max(others, key=lambda found: found[0])
        return f"; {share:.0%} of it at {show(line)}, outside of modules, backward passes and optimizers: is that the model?"
    if passes_on := [found for rank in ranks if (found := _without_gradients(case, rank)) is not None]:
        share, line = max(passes_on, key=lambda found: found[0])
        return f"; {share:.0%} of it is forward passes without gradients, at {show(line)}: an evaluation, or a part of the method?"
    if kept := next((graph for rank in ranks if (graph := keeps_most(case, rank)) is not None), None):
        return f"; {kept[0]:.0%} of it is backward passes that keep their graph, at {show(kept[1])}: does it grow with every step?"
    if fetching := max((_fetching(case, rank) for rank in ranks), default=0.0):
        return f"; {fetching:.0%} of it makes batches in the training thread: workers would do that beside it"
    if passes := max(without_updates(case, rank) for rank in ranks):
        return f"; no update was seen after {passes} backward passes: it is brief, or steps are skipped (perfwatch run counts them)"
    return ""


def plain_python(case: Case, rank: Member) -> Frame | None:
    """The program's own line in a forward pass where most of the time goes into plain Python, for all that is known; else None.

    It keeps the GIL; or most of it is at lines in loops that call nothing but builtins, and no dump saw those without the GIL. It
    may be a model that is written so, or texts that are cut into tokens anew in each step.
    """
    seen = case.profile(rank, LATELY_SECONDS)
    own = seen.share_where(_in_own_forward)
    if own < MOSTLY_PLAIN:
        return None
    plain = seen.share_where(lambda stack: _at_plain_line(case.history, stack)) >= MOSTLY_PLAIN * own
    return seen.top_line(_in_own_forward) if plain or keeps_gil(seen, _in_own_forward) else None


def _at_plain_line(history: History, stack: Stack) -> bool:
    if not _in_own_forward(stack) or stack.owns_gil is False:
        return False
    line = line_of(history, stack.frames[0])
    return line is not None and bool(line.loops) and is_plain(history, stack.frames[0])


def _perhaps_python(case: Case, rank: Member) -> CalledBack | None:
    """What torch calls back for a good part of the time, where too few dumps tell whether Python computes there."""
    found = python_called_back(case, rank)
    return found if found is not None and found.is_python else None


def _in_hooks(case: Case, rank: Member) -> tuple[float, Frame | None] | None:
    """The share of the time that hooks take, and where, if that is most of it: they look at a training, and are none."""
    seen = case.profile(rank, LATELY_SECONDS)
    share = seen.share_where(_hooked)
    return (share, seen.top_line(_hooked)) if share >= MOSTLY_HOOKS else None


def _hooked(stack: Stack) -> bool:
    return hook_of(stack) is not None


def _elsewhere(case: Case, rank: Member) -> tuple[float, Frame | None] | None:
    """The share of the time that the program's own functions take, and where, if that is much and no reading says what they do."""
    seen = case.profile(rank, LATELY_SECONDS)

    def works(stack: Stack) -> bool:
        return own_work(stack) and not rests(case.history, stack)

    share, native = seen.share_where(works), native_python_share(case, rank)
    unknown = share >= OWN_SHARE and (native is None or native >= NATIVE_SHARE)
    return (share, seen.top_line(works)) if unknown else None


def _without_gradients(case: Case, rank: Member) -> tuple[float, Frame] | None:
    """The share of the time in which the model runs without gradients, and where, if that is much: evaluations, or a teacher."""
    seen, lines = case.profile(rank, LATELY_SECONDS), Counter[Frame]()
    for stack in (one.reading for one in seen.sights if "forward" in tags(one.reading)):
        if (frame := _decorated(stack) or in_block_without(case.history, stack)) is not None:
            lines[frame] += stack.samples
    evaluates = lines.total() >= MUCH * seen.samples and lines
    return (lines.total() / seen.samples, lines.most_common(1)[0][0]) if evaluates else None


def _decorated(stack: Stack) -> Frame | None:
    """The function that torch.no_grad decorates and that a thread is in, if it is in any."""
    pairs = zip(stack.frames, stack.frames[1:], strict=False)
    return next((frame for frame, caller in pairs if "no_grad" in tags_of(caller.function, caller.file)), None)


def _fetching(case: Case, rank: Member) -> float:
    """The share of the time in which the training thread makes its own batches, if that is nearly a cause of its own; else 0."""
    share = case.profile(rank, LATELY_SECONDS).share_where(prepares)
    return share if share >= NEARLY else 0.0


def _in_own_forward(stack: Stack) -> bool:
    """The program's own frame innermost, or one of a library that is not written in torch's operations."""
    return bool(stack.frames) and not of_tensors(stack.frames[0]) and "forward" in tags(stack)


def without_updates(case: Case, rank: Member) -> int:
    """How many backward passes were met, if they are many and no update was; else 0. Where steps are counted none need be seen."""
    seen = case.profile(rank, LATELY_SECONDS)
    passes = seen.turns(lambda stack: "backward" in tags(stack))
    missed = case.steps(rank) is None and passes >= MANY_PASSES and seen.share_where(updates) == 0.0
    return passes if missed else 0


BALANCED = Cause("balanced", "healthy", "user_code", (Thread, Stack))

IDLE_SHARE = 0.5  # of the time without a kernel: something holds the card back, though nobody can say what
PACE_SECONDS, EVEN_STEPS, EVENLY = 120.0, 3, 1.1
MOSTLY = 0.5
SLEEPS = 0.3  # of the time; and how sure it is then that nothing holds it back


def balanced(case: Case) -> Outcome:
    """Fires when every rank moves and enough was seen of it."""
    if not case.moving:
        return None
    if (paced := _paced(case)) is not None:
        return paced
    slept, unwatched = 0.0, case.latest_host() is None
    for rank in case.trainers:
        seen = case.profile(rank, LATELY_SECONDS)
        if seen.samples < FEW_SAMPLES or not seen.seen(*TRAINING_TAGS):
            return None
        locked = seen.share_where(lambda stack: takes_a_lock(case.history, stack))
        if max(seen.share_where(awaits_data), locked) > SURE_SHARE:
            return None  # for whatever reason: nobody would call that healthy
        if (wait := gil_wait(case, rank)) is not None and wait.share >= GIL_SHARE:
            return None  # whoever owns it meanwhile
        slept = max(slept, _sleeps_unexplained(case, rank, seen))
        cards = regimes(case.history, rank.pid, LATELY_SECONDS)
        runs = motion(case.history, rank.pid, case.progress[rank.pid].thread, LATELY_SECONDS).run_share
        unwatched = unwatched or runs is None or (bool(cards_of(case.history, rank.pid).uuids) and not cards)
        if cards_of(case.history, rank.pid).certain and _not_known_to_work(case, cards):
            return None
    basis = case.progress[case.trainers[0].pid].basis
    sources = {card.source for rank in case.trainers for card in regimes(case.history, rank.pid, LATELY_SECONDS)}
    return Finding(
        cause=BALANCED.name,
        state="healthy",
        summary=f"training goes on ({basis}) and nothing in particular holds it back"
        + (
            f", though its thread sleeps {slept:.0%} of the time for what nobody has a name for"
            if slept >= SLEEPS
            else ""
        ),
        confidence=min(MEDIUM if slept >= SLEEPS or unwatched else HIGH, UNITS_UNSEEN if "nvml" in sources else 1.0),
        owner=BALANCED.owner,
        evidence=(case.saw("progress", f"{len(case.trainers)} ranks", "moves", basis, "steps go on"),),
    )


def _sleeps_unexplained(case: Case, rank: Member, seen: Profile) -> float:
    """Share of the time that a training thread without a card sleeps, and waits for neither data nor other ranks."""
    if cards_of(case.history, rank.pid).uuids or unseen(case.history, rank.pid):
        return 0.0
    explained = waiting_share(case, rank, seen) + seen.share_where(awaits_data)
    return (asleep_share(case, rank) or 0.0) - explained


def _paced(case: Case) -> Finding | None:
    """One rank whose steps come evenly, with a sleep of the program's own between them: a simulator in real time, say."""
    if len(case.ranks) != 1 or (case.job.world_size or 1) > 1:
        return None
    rank = case.ranks[0]
    steps, seen = case.steps(rank, PACE_SECONDS), case.profile(rank, LATELY_SECONDS)
    if steps is None or len(steps.intervals) < EVEN_STEPS or seen.samples < FEW_SAMPLES:
        return None
    slept = seen.share_where(lambda stack: rests(case.history, stack))
    length = steps.median_seconds or 0.0
    if slept < MOSTLY or (steps.long_seconds or 0.0) > EVENLY * length:
        return None
    at = show(seen.top_line(lambda stack: rests(case.history, stack)))
    return Finding(
        cause=BALANCED.name,
        state="healthy",
        summary=f"training goes on at a pace of its own, a step each {short_time(length)}: it sleeps {slept:.0%} of the time at {at}",
        confidence=MEDIUM,
        owner=BALANCED.owner,
        evidence=(
            case.saw(
                "steps",
                f"pid {rank.pid}",
                "come evenly",
                f"p50 {short_time(length)}, p95 {short_time(steps.long_seconds or 0.0)}",
                "steps go on",
            ),
            case.saw(
                "stack",
                f"pid {rank.pid}",
                "sleeps in the program's own code",
                f"{slept:.0%} of {seen.samples} samples",
                "0 %",
            ),
        ),
    )


def _not_known_to_work(case: Case, cards: tuple[Regime, ...]) -> bool:
    """Whether the cards were not looked at for long enough, have nothing to do most of the time, or a kernel that may not end.

    Unseen ones tell nothing.
    """
    if not cards:
        return False
    first = cards[0]
    return first.seconds < FEW_SECONDS or first.waiting > IDLE_SHARE or spins_on(case.history, first.uuid)


RULES = (
    Rule(CPU_TRAINING, cpu_training),
    Rule(BALANCED, balanced),
)
