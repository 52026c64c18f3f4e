"""How much each rank waits for the others, whether the ranks go on, and what holds back the one that the others wait for."""

from dataclasses import dataclass
from functools import partial

from perfwatch.triage.cards.gpu import Regime, regimes
from perfwatch.triage.cards.hardware import clock_at_work, held_down
from perfwatch.triage.cards.whose import cards_of, index_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.graph.decide import wakes_soon
from perfwatch.triage.history import median, once
from perfwatch.triage.moving.memory import has_trained
from perfwatch.triage.ranks.groups import FEW
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.budget import Bin, awaits_data, budget, trained_for
from perfwatch.triage.shares.data import WAITING_SHARE
from perfwatch.triage.shares.own_work import waits_for_ranks
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import FEW_TIMES, MOSTLY, NEARLY_ALL, NOTABLE, NOW_SECONDS, OFTEN, TWICE
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.triage.words.frames import collective_name, is_user, own_frames, show, tags, tags_of
from perfwatch.verdict import Culprit, Evidence
from perfwatch_probes.readings import GpuSample, Stack

DELAY_SHARE, DELAY_RATIO = 0.3, 2.0  # runnable and not running; so many times as much as the others
RECEIVES = frozenset({"recv", "recv_object_list", "broadcast", "broadcast_object_list"})
# Measured on H200 with one rank late in each step: the cards of the others were taken 100 % of the time, its own 1 %.
TAKEN, FREE = 0.9, 0.6
# Measured on H100 with one rank whose batches are twenty times as long: its card's memory at 0.33 of its maximum, 61 % of its
# multiprocessors active; the other's at 0.03 and 20 %, with a kernel on it 85 % of the time.
WORKS, TIMES, HELD, WAITING_SM = 0.15, 3.0, 0.75, 0.4

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
    explicit, below = seen.share("collective") + _exchange_share(case, seen), seen.share_where(_in_reduction)
    moved = case.motion(rank, training_seconds(case, rank))
    return explicit + max(0.0, min(below, (moved.asleep_share or 0.0) - explicit))


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


# Whether they go on


def go_on(case: Case) -> bool:
    """True if steps are made. Of ranks that meet in each step one goes on only if all do: one that is late looks still in between.

    One that nearly always waits was seen to leave the wait and come back, or was woken again and again. The steps in between may take
    microseconds, in which no sample falls; the kernel counts each time that the thread was woken.
    """
    meet = any(meets_again(case, rank, NOW_SECONDS) for rank in case.ranks)
    for rank in case.ranks:
        end, moved = case.chains[rank.pid].end, case.moves(rank)
        apart = meet and end.kind not in ("collective", "gpu")
        comes_back = (moved.recurrent and moved.times >= FEW_TIMES) or meets_again(case, rank, WINDOW_SECONDS)
        if not comes_back and _stays(case, rank):
            return False
        if case.progress[rank.pid].kind == "still" and not apart and not comes_back and not wakes_soon(case, end):
            return False
    return True


def _stays(case: Case, rank: Member) -> bool:
    """True if a rank was at one line of its own for long: it was not seen to meet the others once."""
    seen = case.profile(rank, WINDOW_SECONDS)
    return seen.seconds >= MOSTLY * WINDOW_SECONDS and len(seen.lines()) <= 1


def overdue(case: Case) -> bool:
    """True if the next step should have come long ago: late is not the word then."""
    return any(clock is not None and clock.late for clock in map(case.steps, case.ranks))


def meets_again(case: Case, rank: Member, seconds: float) -> bool:
    """True if a rank was seen to leave what the ranks meet in, and to come back, again and again."""
    return case.profile(rank, seconds).turns(partial(in_collective, case)) >= TWICE


def late_in_each_step(case: Case, rank: Member) -> bool:
    """True if the others wait for this rank in what they meet in, and go on again and again: it is late in each step, not long."""
    others = [(other, case.profile(other, WINDOW_SECONDS)) for other in case.ranks if other.pid != rank.pid]
    return bool(others) and all(waiting_share(case, *one) >= OFTEN for one in others) and go_on(case)


# Which of them are there to train


@once
def who_train(case: Case) -> tuple[Member, ...]:
    """The ranks that are there to train: none that serves the others, or waits for a part of its own while they train on."""
    return tuple(
        rank for rank in case.trainers if case.progress[rank.pid].kind == "moving" or not trains_without(case, rank)
    )


def trains_without(case: Case, rank: Member) -> bool:
    """True if all other ranks train on and on, two at least of them together, and this one was never seen to: it has another part."""
    return 2 <= _number_that_train_on(case) == len(case.ranks) - 1 and not has_trained(case, rank)


@once
def _number_that_train_on(case: Case) -> int:
    return sum(case.progress[rank.pid].kind == "moving" and has_trained(case, rank) for rank in case.ranks)


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
    """True if how long the ranks wait tells nothing of which is late: all starve, one serves the others, has just begun, or paused once.

    Where every rank waits for its own data, too, chance makes now this one the last, now that one, and for long. While a rank waits for
    the others its workers go on, so that its next batches lie ready if they are any faster than the steps. A rank that has no batches
    left (torch's Join), or exchanges by MPI and was never in a backward pass, serves the others.
    """
    begins = any(seen.share("import") > NOTABLE for _, seen in ranks)
    starve = all(seen.share_where(awaits_data) >= WAITING_SHARE for _, seen in ranks)
    serves = any(
        seen.seen("shadow") or (_exchange_share(case, seen) and not case.was_at(one, "backward")) for one, seen in ranks
    )
    clocks = ((case.steps(one), seen) for one, seen in ranks)
    paused = any(clock is not None and clock.paused(seen.seconds) for clock, seen in clocks)
    return begins or starve or serves or paused


# Which is late, as their cards tell: a collective that waits holds a card, and hardly uses it


def late_by_cards(case: Case, ranks: Profiles) -> Late | None:
    """One whose card is free while those of the others are taken, or whose card alone has work: if the others' hosts wait for that."""
    cards = _cards(case, ranks)
    late = (_free(case, ranks, cards) or _working(case, ranks, cards)) if len(cards) == len(ranks) else None
    paced = [budget(case, one).share(Bin.SLEEPING) >= MOSTLY for one, _ in ranks if late and one.pid != late.rank.pid]
    return None if any(paced) else late


def cards_alike(case: Case, ranks: Profiles) -> bool:
    """True if the cards of all ranks are taken and do the same: one whose host is late is free, or has more to do than the others.

    Cards that have little to do tell nothing: the ranks may wait for each other on their hosts.
    """
    cards = [card for card in _cards(case, ranks).values() if card.source == "gpm"]
    taken, active = [card.graphics or 0.0 for card in cards], [card.sm_active or 0.0 for card in cards]
    alike = len(cards) == len(ranks) and max(max(each) - min(each) for each in (taken, active)) <= NOTABLE
    return alike and min(taken) >= TAKEN


def _cards(case: Case, ranks: Profiles) -> dict[int, Regime]:
    """By pid, of ranks whose card is known, what it does."""
    known = [rank.pid for rank, _ in ranks if cards_of(case.history, rank.pid).certain]
    lately = {pid: regimes(case.history, pid, WINDOW_SECONDS) for pid in known}
    counted = ((pid, next((one for one in cards if one.graphics is not None), None)) for pid, cards in lately.items())
    return {pid: card for pid, card in counted if card is not None}


def _free(case: Case, ranks: Profiles, cards: dict[int, Regime]) -> Late | None:
    taken = {pid: card.graphics or 0.0 for pid, card in cards.items()}
    late, seen = min(ranks, key=lambda one: taken[one[0].pid])
    own, least = taken[late.pid], min(share for pid, share in taken.items() if pid != late.pid)
    if least < TAKEN or own > FREE:
        return None
    how = f"the cards of the others are taken {least:.0%} of the time, by collectives that wait, its own {own:.0%}"
    evidence = told(
        case, "gpm", ranks, "a kernel is on its card", {pid: f"{one:.0%} of the time" for pid, one in taken.items()}
    )
    return Late(late, seen, least - own, how, evidence)


def _working(case: Case, ranks: Profiles, cards: dict[int, Regime]) -> Late | None:
    late, seen = max(ranks, key=lambda one: cards[one[0].pid].units)
    own, others = cards[late.pid], [card for pid, card in cards.items() if pid != late.pid]
    most, least = max(card.units for card in others), min(card.graphics or 0.0 for card in others)
    if own.units < max(WORKS, TIMES * most) or least < HELD:
        return None
    if any(card.sm_active is None or card.sm_active > WAITING_SM for card in others):
        return None
    how = f"its card works ({own.shown()}), those of the others are taken {least:.0%} of the time by collectives that wait"
    evidence = told(case, "gpm", ranks, "its card", {pid: card.shown() for pid, card in cards.items()})
    return Late(late, seen, least * (1.0 - most / own.units), how, evidence)


def told(case: Case, witness: str, ranks: Profiles, claim: str, observed: dict[int, str]) -> tuple[Evidence, ...]:
    """What shows how much of something each rank does."""
    usual = "about as much as the others"
    return tuple(case.saw(witness, f"rank {one.rank}", claim, observed[one.pid], usual) for one, _ in ranks[:FEW])


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
    clocks: dict[int, float] = {}  # of cards at work: one that idles holds no rank back
    for rank in case.ranks:
        uuids = cards_of(case.history, rank.pid).uuids[:1]
        seen = (one for uuid in uuids for one in case.history.series(GpuSample, uuid, seconds=WINDOW_SECONDS))
        clock = median(clock for one in seen if (clock := clock_at_work(one.reading)) is not None)
        if clock is not None:
            clocks[rank.pid] = clock
    usual = median(clock for pid, clock in clocks.items() if pid != late.pid)
    if late.pid not in clocks or usual is None or clocks[late.pid] > NEARLY_ALL * usual:
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


def _loader(case: Case, late: Member, seen: Profile) -> OwnCause | None:
    """It waits for its own DataLoader workers."""
    share = seen.share("loader_wait")
    if share < OFTEN:
        return None
    workers = case.worker_profiles(late, WINDOW_SECONDS)
    busiest = max(workers, key=lambda pid: workers[pid].share("fetch"), default=None)
    frame = workers[busiest].top_line(lambda stack: "fetch" in tags(stack)) if busiest is not None else None
    where = f": worker {busiest} is mostly at {show(frame)}" if frame is not None else ""
    culprit = Culprit(pid=late.pid, rank=late.rank, worker_pid=busiest, frame=show(frame or seen.top_line()))
    of_time, claim = f"{share:.0%} of the time", "waits for its DataLoader"
    shown = case.saw("stack", f"rank {late.rank}", claim, of_time, "hardly ever")
    return OwnCause(f"its DataLoader is too slow ({share:.0%} of its time{where})", "data", culprit, (shown,))


def _crowded_out(case: Case, late: Member, seen: Profile) -> OwnCause | None:
    """It wants to run and does not get a CPU, much more than the others when they want to: another process has its CPUs."""
    moved = {rank.pid: case.motion(rank, WINDOW_SECONDS) for rank in case.ranks}
    kept = {pid: (one.delay_share or 0.0) / one.wanted_share if one.wanted_share else 0.0 for pid, one in moved.items()}
    own, most = kept[late.pid], max((share for pid, share in kept.items() if pid != late.pid), default=0.0)
    if own < DELAY_SHARE or own < DELAY_RATIO * most:
        return None
    line = _own_line(case, late, seen)
    words = (
        f"when it wants to run it waits for a CPU {own:.0%} of the time, the others at most {most:.0%}; {line.words}"
    )
    claim = "waits for a CPU when it wants to run"
    shown = case.saw("schedstat", f"rank {late.rank}", claim, f"{own:.0%}", f"{most:.0%}")
    return OwnCause(words, "node", line.culprit, (shown,))


def _own_line(case: Case, late: Member, seen: Profile) -> OwnCause:
    frame = show(seen.top_line(lambda stack: not in_collective(case, stack)) or seen.top_line())
    return OwnCause(f"it is mostly at {frame}", "user_code", Culprit(pid=late.pid, rank=late.rank, frame=frame))
