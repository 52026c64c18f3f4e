"""How much each rank waits for the others, whether the ranks go on, and what holds back the one that the others wait for."""

from dataclasses import dataclass
from functools import partial

from perfwatch.triage.cards.accelerated import trained_for
from perfwatch.triage.cards.gpu import Regime, regimes
from perfwatch.triage.cards.hardware import clock_at_work, held_down
from perfwatch.triage.cards.whose import cards_of, index_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import median
from perfwatch.triage.moving.memory import has_trained
from perfwatch.triage.moving.motion import Motion, motion, moves, was_at
from perfwatch.triage.patience import wakes_soon
from perfwatch.triage.ranks.calls import waits_for_ranks
from perfwatch.triage.ranks.thresholds import CERTAIN, FEW
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.data import WAITING_SHARE, awaits_data
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.triage.words.frames import collective_name, is_user, own_frames, show, tags, tags_of
from perfwatch.verdict import Culprit, Evidence
from perfwatch_probes.readings import GpuSample, Stack

LATELY_SECONDS = 6.0
CAME_BACK = 2  # times: once may be the step that never ended
WOKEN = 3  # times: less may be what led up to a hang
IMPORTING = 0.1  # of the time
LOADER_SHARE = 0.3  # of the late rank's time spent waiting for its own workers
DELAY_SHARE, DELAY_RATIO = 0.3, 2.0  # runnable and not running; so many times as much as the others
CLOCK_RATIO = 0.9  # of the peers' clocks
RECEIVES = frozenset({"recv", "recv_object_list", "broadcast", "broadcast_object_list"})
# Measured on H200 with one rank late in each step: the cards of the others were taken 100 % of the time, its own 1 %.
TAKEN, FREE = 0.9, 0.6
# Measured on H100 with one rank whose batches are twenty times as long: its card's memory at 0.33 of its maximum, 61 % of its
# multiprocessors active; the other's at 0.03 and 20 %, with a kernel on it 85 % of the time.
WORKS, TIMES, HELD, WAITING_SM = 0.15, 3.0, 0.75, 0.4
ALIKE = 0.1  # of the time, or of the multiprocessors

Profiles = list[tuple[Member, Profile]]


@dataclass(frozen=True)
class Late:
    """A rank that is last, how much of the time that costs, and what shows it."""

    rank: Member
    seen: Profile
    lost: float
    how: str
    evidence: tuple[Evidence, ...]
    sure: float = 1.0  # at most


@dataclass(frozen=True)
class OwnCause:
    """Why a rank is late: in words, who fixes it, the culprit, and what shows it."""

    words: str
    owner: str
    culprit: Culprit
    evidence: tuple[Evidence, ...] = ()


# Where ranks wait for each other


def in_collective(case: Case, stack: Stack) -> bool:
    """True if a stack is where a rank waits for the others: a collective, the reduction below backward, or an exchange of MPI."""
    return "collective" in tags(stack) or _in_reduction(stack) or waits_for_ranks(case.history, case.job, stack)


def waiting_share(case: Case, rank: Member, seen: Profile) -> float:
    """Share of the time that a rank waits in collectives, or asleep in the reduction below its backward pass."""
    explicit = seen.share("collective") + _exchange_share(case, seen)
    below = seen.share_where(_in_reduction)
    moved = _motion(case, rank, training_seconds(case, rank))
    asleep = 1.0 - (moved.run_share or 0.0) - (moved.delay_share or 0.0) if moved.run_share is not None else 0.0
    return explicit + max(0.0, min(below, asleep - explicit))


def all_wait_at_once(waits: list[float]) -> float:
    """Share of the time in which all ranks wait, at least: no two of them need compute at the same time."""
    return 1.0 - sum(1.0 - share for share in waits)


def training_seconds(case: Case, rank: Member) -> float:
    """The window; where steps are counted, without the time before the first: one rank may prepare something for the others."""
    return WINDOW_SECONDS if case.steps(rank) is None else min(WINDOW_SECONDS, trained_for(case, rank))


def _in_reduction(stack: Stack) -> bool:
    """True if a thread is below its backward pass and in nothing of the program's own there, as a hook would be."""
    if "backward" not in tags(stack) or "collective" in tags(stack):
        return False
    frames = own_frames(stack)
    engine = next(i for i, frame in enumerate(frames) if "backward" in tags_of(frame.function, frame.file))
    return not any(map(is_user, frames[:engine]))


def _exchange_share(case: Case, seen: Profile) -> float:
    return seen.share_where(partial(waits_for_ranks, case.history, case.job))


def _motion(case: Case, rank: Member, seconds: float = WINDOW_SECONDS) -> Motion:
    return motion(case.history, rank.pid, case.progress[rank.pid].thread, seconds)


# Whether they go on


def go_on(case: Case) -> bool:
    """True if steps are made. Of ranks that meet in each step one goes on only if all do: one that is late looks still in between."""
    meet = any(meets_again(case, rank, LATELY_SECONDS) for rank in case.ranks)
    return all(
        case.progress[pid].kind != "still"
        or (meet and chain.end.kind not in ("collective", "gpu"))
        or _comes_back(case, case.job.members[pid])
        or wakes_soon(case, chain.end)
        for pid, chain in case.chains.items()
    )


def overdue(case: Case) -> bool:
    """True if the next step should have come long ago: late is not the word then."""
    return any(clock is not None and clock.late for clock in map(case.steps, case.ranks))


def meets_again(case: Case, rank: Member, seconds: float) -> bool:
    """True if a rank was seen to leave what the ranks meet in, and to come back, again and again."""
    return case.profile(rank, seconds).turns(partial(in_collective, case)) >= CAME_BACK


def _comes_back(case: Case, rank: Member) -> bool:
    """True if a rank that nearly always waits was seen to leave the wait and come back, or was woken again and again.

    The steps in between may take microseconds, in which no sample falls; the kernel counts each time that the thread was woken.
    """
    moved = moves(case.history, rank.pid, case.progress[rank.pid].thread)
    return meets_again(case, rank, WINDOW_SECONDS) or (moved.recurrent and moved.times >= WOKEN)


# Which of them are there to train


def who_train(case: Case) -> tuple[Member, ...]:
    """The ranks that are there to train: none that serves the others, or waits for a part of its own while they train on."""
    return case.history.once(
        ("who_train",),
        lambda: tuple(
            rank for rank in case.trainers if case.progress[rank.pid].kind == "moving" or not trains_without(case, rank)
        ),
    )


def trains_without(case: Case, rank: Member) -> bool:
    """True if all other ranks train on and on, two at least of them together, and this one was never seen to: it has another part."""
    at_it = case.history.once(("train_on",), lambda: _train_on(case))
    return 2 <= len(at_it) == len(case.ranks) - 1 and not has_trained(case, rank)


def _train_on(case: Case) -> frozenset[int]:
    """The ranks that train."""
    return frozenset(
        rank.pid for rank in case.ranks if case.progress[rank.pid].kind == "moving" and has_trained(case, rank)
    )


def only_receives(case: Case, rank: Member, seen: Profile) -> bool:
    """True if a rank never trains, and waits for nothing but what it is sent by one that does: an evaluator, a writer of samples.

    That it waits is its part, and says nothing of the one that trains meanwhile.
    """
    waits = {collective_name(one.reading) for one in seen.sights} - {None}
    if not waits or not waits <= RECEIVES or has_trained(case, rank):
        return False
    return any(has_trained(case, other) for other in case.ranks if other.pid != rank.pid)


def apart(case: Case) -> bool:
    """True if nothing says that the ranks train together, and none was seen in an exchange of MPI either."""
    return case.job.apart and not any(_exchange_share(case, case.profile(one, WINDOW_SECONDS)) for one in case.ranks)


def excused(case: Case, ranks: Profiles) -> bool:
    """True if how long the ranks wait tells nothing of which is late: all starve, one serves the others, or one has just begun.

    Where every rank waits for its own data, too, chance makes now this one the last, now that one, and for long. While a rank waits for
    the others its workers go on, so that its next batches lie ready if they are any faster than the steps.
    """
    begins = any(seen.share("import") > IMPORTING for _, seen in ranks)
    starve = all(seen.share_where(awaits_data) >= WAITING_SHARE for _, seen in ranks)
    return begins or starve or any(_waits_by_design(case, rank, seen) for rank, seen in ranks)


def _waits_by_design(case: Case, rank: Member, seen: Profile) -> bool:
    """True if a rank has no batches left (torch's Join), or exchanges by MPI and was never in a backward pass: it serves the others."""
    if seen.seen("shadow"):
        return True
    return _exchange_share(case, seen) > 0.0 and not _was_at(case, rank, "backward")


def _was_at(case: Case, rank: Member, *wanted: str) -> bool:
    return was_at(case.history, rank.pid, case.progress[rank.pid].thread, *wanted)


# Which is late, as their cards tell: a collective that waits holds a card, and hardly uses it


def late_by_cards(case: Case, ranks: Profiles) -> Late | None:
    """One whose card is free while those of the others are taken, or whose card alone has work."""
    cards = {rank.pid: card for rank, _ in ranks if (card := _card_of(case, rank)) is not None}
    if len(cards) < len(ranks):
        return None
    return _free(case, ranks, cards) or _working(case, ranks, cards)


def cards_alike(case: Case, ranks: Profiles) -> bool:
    """True if the cards of all ranks are taken and do the same: one whose host is late is free, or has more to do than the others.

    Cards that have little to do tell nothing: the ranks may wait for each other on their hosts.
    """
    cards = [card for rank, _ in ranks if (card := _card_of(case, rank)) is not None and card.source == "gpm"]
    if len(cards) < len(ranks):
        return False
    shares = ([card.graphics or 0.0 for card in cards], [card.sm_active or 0.0 for card in cards])
    return min(shares[0]) >= TAKEN and max(max(each) - min(each) for each in shares) <= ALIKE


def _free(case: Case, ranks: Profiles, cards: dict[int, Regime]) -> Late | None:
    taken = {pid: card.graphics or 0.0 for pid, card in cards.items()}
    late, seen = min(ranks, key=lambda one: taken[one[0].pid])
    own, least = taken[late.pid], min(share for pid, share in taken.items() if pid != late.pid)
    if least < TAKEN or own > FREE:
        return None
    how = f"the cards of the others are taken {least:.0%} of the time, by collectives that wait, its own {own:.0%}"
    told = {pid: ("a kernel is on its card", f"{share:.0%} of the time") for pid, share in taken.items()}
    return Late(late, seen, least - own, how, _card_evidence(case, ranks, told))


def _working(case: Case, ranks: Profiles, cards: dict[int, Regime]) -> Late | None:
    late, seen = max(ranks, key=lambda one: cards[one[0].pid].units)
    own, others = cards[late.pid], [card for pid, card in cards.items() if pid != late.pid]
    most, least = max(card.units for card in others), min(card.graphics or 0.0 for card in others)
    if own.units < max(WORKS, TIMES * most) or least < HELD:
        return None
    if any(card.sm_active is None or card.sm_active > WAITING_SM for card in others):
        return None
    how = f"its card works ({own.shown()}), those of the others are taken {least:.0%} of the time by collectives that wait"
    told = {pid: ("its card", card.shown()) for pid, card in cards.items()}
    # Not certain: how much each has to do may be meant so (stages of a pipeline, two models).
    return Late(late, seen, least * (1.0 - most / own.units), how, _card_evidence(case, ranks, told), CERTAIN)


def _card_of(case: Case, rank: Member) -> Regime | None:
    if not cards_of(case.history, rank.pid).certain:
        return None
    return next((one for one in regimes(case.history, rank.pid, WINDOW_SECONDS) if one.graphics is not None), None)


def _card_evidence(case: Case, ranks: Profiles, told: dict[int, tuple[str, str]]) -> tuple[Evidence, ...]:
    return tuple(
        case.saw("gpm", f"rank {rank.rank}", *told[rank.pid], "about as much as the others") for rank, _ in ranks[:FEW]
    )


# What holds it back


def own_cause(case: Case, late: Member, seen: Profile) -> OwnCause:
    """What the late rank does while the others wait."""
    return (
        _throttled(case, late)
        or _loader(case, late, seen)
        or _crowded_out(case, late, seen)
        or _own_line(case, late, seen)
    )  # fmt: skip


def _throttled(case: Case, late: Member) -> OwnCause | None:
    """Its card runs below the clocks of the others, and says why."""
    clocks = {rank.pid: clock for rank in case.ranks if (clock := _clock(case, rank)) is not None}
    usual = median(clock for pid, clock in clocks.items() if pid != late.pid)
    if late.pid not in clocks or usual is None or clocks[late.pid] > CLOCK_RATIO * usual:
        return None
    uuid = cards_of(case.history, late.pid).uuids[0]
    newest = case.history.latest(GpuSample, uuid)
    if newest is None or not held_down(newest.reading):
        return None
    name, runs_at = name_of(case.history, uuid), f"{clocks[late.pid]:.0f} MHz"
    words = f"its card {name} runs at {runs_at}, the others at {usual:.0f}: it is throttled"
    shown = case.saw("nvml", name, "SM clock", runs_at, f"{usual:.0f} MHz, as the others")
    culprit = Culprit(pid=late.pid, rank=late.rank, gpu=index_of(case.history, uuid))
    return OwnCause(words, "node", culprit, (shown,))


def _clock(case: Case, rank: Member) -> float | None:
    """Of its card at work: that of one that idles holds no rank back."""
    return median(
        clock
        for uuid in cards_of(case.history, rank.pid).uuids[:1]
        for seen in case.history.series(GpuSample, uuid, seconds=WINDOW_SECONDS)
        if (clock := clock_at_work(seen.reading)) is not None
    )


def _loader(case: Case, late: Member, seen: Profile) -> OwnCause | None:
    """It waits for its own DataLoader workers."""
    share = seen.share("loader_wait")
    if share < LOADER_SHARE:
        return None
    workers = case.worker_profiles(late, WINDOW_SECONDS)
    busiest = max(workers, key=lambda pid: workers[pid].share("fetch"), default=None)
    frame = workers[busiest].top_line(lambda stack: "fetch" in tags(stack)) if busiest is not None else None
    where = f": worker {busiest} is mostly at {show(frame)}" if frame is not None else ""
    culprit = Culprit(pid=late.pid, rank=late.rank, worker_pid=busiest, frame=show(frame or seen.top_line()))
    shown = case.saw(
        "stack", f"rank {late.rank}", "waits for its DataLoader", f"{share:.0%} of the time", "hardly ever"
    )
    return OwnCause(f"its DataLoader is too slow ({share:.0%} of its time{where})", "data", culprit, (shown,))


def _crowded_out(case: Case, late: Member, seen: Profile) -> OwnCause | None:
    """It wants to run and does not get a CPU, much more than the others when they want to: another process has its CPUs."""
    wanted = {rank.pid: _kept_waiting(case, rank) for rank in case.ranks}
    own, most = wanted[late.pid], max((share for pid, share in wanted.items() if pid != late.pid), default=0.0)
    if own < DELAY_SHARE or own < DELAY_RATIO * most:
        return None
    line = _own_line(case, late, seen)
    words = (
        f"when it wants to run it waits for a CPU {own:.0%} of the time, the others at most {most:.0%}; {line.words}"
    )
    shown = case.saw(
        "schedstat", f"rank {late.rank}", "waits for a CPU when it wants to run", f"{own:.0%}", f"{most:.0%}"
    )
    return OwnCause(words, "node", line.culprit, (shown,))


def _kept_waiting(case: Case, rank: Member) -> float:
    """Of the time that its training thread wanted to run, the share that it had to wait."""
    moved = _motion(case, rank)
    return (moved.delay_share or 0.0) / moved.wanted_share if moved.wanted_share > 0.0 else 0.0


def _own_line(case: Case, late: Member, seen: Profile) -> OwnCause:
    frame = seen.top_line(lambda stack: not in_collective(case, stack)) or seen.top_line()
    return OwnCause(
        f"it is mostly at {show(frame)}", "user_code", Culprit(pid=late.pid, rank=late.rank, frame=show(frame))
    )
