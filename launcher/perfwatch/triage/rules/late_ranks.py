"""Slow because ranks wait for each other: for one that is late (straggling), or all of them for data (exposed communication).

First how much each rank waits for the others, whether the ranks go on, and what holds back the one that the others wait for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from perfwatch.triage.cards.gpu import Regime, regimes
from perfwatch.triage.cards.hardware import ceiling_mib_per_second, clock_at_work, dram_peak_bytes_per_second, held_down
from perfwatch.triage.cards.whose import cards_of, index_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.graph.decide import wakes_soon
from perfwatch.triage.history import History, median, once
from perfwatch.triage.moving.memory import has_trained
from perfwatch.triage.ranks.calls import MEBIBYTE, between_ranks
from perfwatch.triage.ranks.groups import FEW, growing
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Facts, Rule, Saw, worded
from perfwatch.triage.shares.budget import Bin, at_file_lock, awaits_data, budget, spent, trained_for
from perfwatch.triage.shares.data import WAITING_SHARE as STARVES
from perfwatch.triage.shares.own_work import waits_for_ranks
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.thresholds import (
    FEW_TIMES,
    LOST_SHARE,
    MOST,
    MOSTLY,
    NEARLY_ALL,
    NOTABLE,
    NOW_SECONDS,
    OFTEN,
    TWICE,
)
from perfwatch.triage.slowness import FEW_SAMPLES, RESIDUE, WINDOW_SECONDS, certainty, slow
from perfwatch.triage.words.frames import any_tag, collective_name, inner_tags, is_user, own_frames, show, tags, tags_of
from perfwatch.verdict import Culprit, Evidence, Level, Outcome
from perfwatch_probes.readings import Gpu, GpuSample, Process, Stack

STRAGGLING = Cause("straggling_rank", "slow", "user_code", (Process, Stack))
EXPOSED = Cause("exposed_communication", "slow", "fabric", (Process, Stack))
LAST = STRAGGLING.line("""
    {how}
    - not stalled_collective: {counted}
    - next: perfwatch attach {pid} --watch
""")
NOT_HIDDEN = EXPOSED.line("""
    communication does not overlap with computation: {how}
    - not straggling_rank: all ranks wait about equally long{counted}
    - not memory_bound_gpu: what is moved goes to the other ranks
""")
SENDS = Saw("gpm", "sends and receives, and hardly computes", "{does}; {sent}", "tensor cores or memory busy", "{card}")
MANY_SHORT = "waits in collectives, briefly and often", "{lost:.0%} of the time, {often:,.0f} wake-ups/s"
SHORTLY = Saw("thread", *MANY_SHORT, "a few long ones in each step", "rank {rank}")
WAITS = Saw("stack", "waits in collectives", "{lost:.0%} of the time", "below a third", "rank {rank}")
MANY_CALLS = (
    "every rank waits {least:.0%} of the time or more though only {moved:,.0f} MiB/s travel: many small collectives, or a "
    "network of long latency"
)

RATIO = 3.0  # victims wait so many times as long as the straggler
# Where ranks share CPUs the late one waits, too: for them, between two parts of a collective. It is the one that works then.
APART, WORKS = 0.3, 2.0

WAITING_SHARE = 0.45  # of every rank's time; ranks in step with little to send wait 0.33 to 0.39 of it
BUSY_BYTES_PER_SECOND = 20 * MEBIBYTE  # that something travels at all: gloo over a loopback carries 500 MiB/s
# Wake-ups a second of the training thread, each for a part of a collective (measured: 270, of 12 KiB).
SMALL_CALLS = 100.0
# Measured on two H200 while 1 GiB is reduced in each step: 250 GiB/s over NVLink with tensor 0, DRAM 24 % and SM 26 %; with an
# optimizer beside it 175 GiB/s, tensor 3 %, DRAM 50 %, SM 50 %. A healthy data-parallel run: 16 GiB/s.
BUSY_NVLINK_MIB_PER_SECOND = 60 * 1024.0
# Of what the link can do, in each direction at once. Measured on two H100 whose NCCL goes through host memory: 0.34 and 0.38, and
# nothing over NVLink. Copies of batches go one way, and no kernel is on the card for them.
BUSY_PCIE = 0.2
TAKEN, TENSOR, SM = 0.8, 0.1, 0.65  # of the time, and of what each unit can do at most
# A collective reads and writes the card's memory too: 1.15 TB/s beside 250 GiB/s (two H200). What else the memory does, of its maximum:
# 0.33 on H200 and 0.40 on H100 where gradients of 1 GiB are reduced and applied in each step, which takes most of the step.
DRAM_BYTES_FOR_EACH_SENT, DRAM_BESIDE = 4.3, 0.45

DIRECT = (
    "NCCL_DEBUG=INFO says why NCCL goes through host memory and not over NVLink: NCCL_P2P_DISABLE=1, or NCCL_P2P_LEVEL?"
)
LESS = "accumulate gradients or enlarge the batch; a bf16 communication hook halves the bytes"
SHARDED = "torch.distributed.fsdp, or DistributedDataParallel(gradient_as_bucket_view=True, bucket_cap_mb=...)"


DELAY_SHARE, DELAY_RATIO = 0.3, 2.0  # runnable and not running; so many times as much as the others
RECEIVES = frozenset({"recv", "recv_object_list", "broadcast", "broadcast_object_list"})
# Measured on H200 with one rank late in each step: the cards of the others were taken 100 % of the time, its own 1 %.
CARD_TAKEN, CARD_FREE = 0.9, 0.6
# Measured on H100 with one rank whose batches are twenty times as long: its card's memory at 0.33 of its maximum, 61 % of its
# multiprocessors active; the other's at 0.03 and 20 %, with a kernel on it 85 % of the time.
CARD_WORKS, TIMES, HELD, WAITING_SM = 0.15, 3.0, 0.75, 0.4

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
    starve = all(seen.share_where(awaits_data) >= STARVES for _, seen in ranks)
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
    return alike and min(taken) >= CARD_TAKEN


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
    if least < CARD_TAKEN or own > CARD_FREE:
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
    if own.units < max(CARD_WORKS, TIMES * most) or least < HELD:
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


# One rank is repeatedly the last, and all others wait for it


def straggling(case: Case) -> Outcome:
    """One rank hardly waits and the others do."""
    if apart(case) or not go_on(case) or overdue(case):
        return None
    ranks = [(rank, case.profile(rank, training_seconds(case, rank))) for rank in case.ranks]
    ranks = [(rank, seen) for rank, seen in ranks if not only_receives(case, rank, seen)]
    if len(ranks) < 2 or not case.job.covered or any(seen.samples < FEW_SAMPLES for _, seen in ranks):
        return None
    if excused(case, ranks) or cards_alike(case, ranks):
        return None
    told = _late_by_stacks(case, ranks) or late_by_cards(case, ranks)
    return None if told is None else _late(case, told)


def _late_by_stacks(case: Case, ranks: Profiles) -> Late | None:
    waits = {rank.pid: waiting_share(case, rank, seen) for rank, seen in ranks}
    late, seen = min(ranks, key=lambda one: waits[one[0].pid])
    least, own = min(waits[rank.pid] for rank, _ in ranks if rank.pid != late.pid), waits[late.pid]
    if least < OFTEN:
        return None
    clear = least >= RATIO * own and (least >= MOSTLY or not _by_chance(case, waits))
    if not clear and (least - own < APART or not _works_most(case, late)):
        return None
    evidence = told(
        case, "stack", ranks, "waits in collectives", {pid: f"{share:.0%} of the time" for pid, share in waits.items()}
    )
    how = f"the others wait {least:.0%} of the time in collectives, it only {own:.0%}"
    return Late(late, seen, least - own, how, evidence, 1.0 if clear else Level.HIGH)


def _by_chance(case: Case, waits: Mapping[int, float]) -> bool:
    """True if all ranks spend most of the time in which they do not wait for each other waiting for a CPU: who gets it last is late."""
    delays = {rank.pid: case.motion(rank, WINDOW_SECONDS).delay_share or 0.0 for rank in case.ranks}
    return all(delays[pid] >= MOST * (1.0 - share) for pid, share in waits.items())


def _works_most(case: Case, late: Member) -> bool:
    """True if a rank's training thread runs so many times as long as that of any other."""
    runs = {rank.pid: case.motion(rank, WINDOW_SECONDS).run_share or 0.0 for rank in case.ranks}
    return runs[late.pid] >= WORKS * max(share for pid, share in runs.items() if pid != late.pid)


def _late(case: Case, told: Late) -> Outcome:
    late, seen = told.rank, told.seen
    saving = spent(case, seen).share(Bin.SAVING)
    if saving > 0.0 and saving >= MOSTLY * (1.0 - seen.share_where(partial(in_collective, case))):
        return None  # the others wait for its checkpoint
    if (locked := at_file_lock(case, late)) is not None and locked.waits.share >= MOSTLY:
        return None  # and it waits for who has a file locked
    why = own_cause(case, late, seen)
    counted = "every rank moves" + (", and RAS sees the counts grow" if growing(case) else "")
    found = slow(
        case,
        LAST,
        late,
        told.lost,
        explains=1.0,
        confidence=min(told.sure, max(Level.HIGH, certainty(told.lost))),
        culprits=(why.culprit,),
        before=(*told.evidence, *why.evidence),
        how=f"rank {late.rank} is repeatedly the last: {told.how}; {why.words}",
        counted=counted,
    )
    return msgspec.structs.replace(found, owner=why.owner)


# The ranks spend their time sending gradients to each other, and nothing is computed meanwhile


def exposed(case: Case) -> Outcome:
    """All ranks wait for data of each other, and about equally long."""
    ranks = case.ranks
    if len(ranks) < 2:
        return None
    cards = [card for rank in ranks for card in _own(case, rank)]
    if any(_computes(card) for card in cards):
        return None  # whatever the host waits in meanwhile costs nothing
    return _exposed_by_cards(case, ranks, cards) or _exposed_by_stacks(case, ranks)


def _exposed_by_cards(case: Case, ranks: tuple[Member, ...], cards: list[Regime]) -> Outcome:
    if len(cards) < len(ranks) or not all(_only_sends(case.history, card) for card in cards):
        return None
    first = cards[0]
    told = [(name_of(case.history, card.uuid), card.shown(), _over_link(case.history, card)) for card in cards[:FEW]]
    evidence = tuple(case.saw(*SENDS.said(Facts(card=card, does=does, sent=sent))) for card, does, sent in told)
    sure = Level.CERTAIN
    if _through_host(case.history, first):  # what else may go that way the hosts tell, if they wait meanwhile
        waits = [waiting_share(case, rank, case.profile(rank, WINDOW_SECONDS)) for rank in ranks]
        sure = Level.CERTAIN if min(waits) >= WAITING_SHARE else Level.HIGH
        evidence += _waiting(case, ranks, waits)
    tensor = first.tensor or 0.0
    how = f"collectives occupy the GPUs ({_over_link(case.history, first)}, tensor cores {tensor:.0%})"
    advice = (DIRECT, LESS) if _unused_links(case.history, first) else None
    return _exposed(case, ranks[0], 0.9 * ((first.graphics or 0.0) - tensor), how, evidence, sure, advice)


def _own(case: Case, rank: Member) -> list[Regime]:
    return list(regimes(case.history, rank.pid, WINDOW_SECONDS))[:1] if cards_of(case.history, rank.pid).certain else []


def _exposed_by_stacks(case: Case, ranks: tuple[Member, ...]) -> Outcome:
    profiles = [(rank, case.profile(rank, WINDOW_SECONDS)) for rank in ranks]
    if not case.job.covered or any(seen.samples < FEW_SAMPLES for _, seen in profiles):
        return None
    waits = [waiting_share(case, rank, seen) for rank, seen in profiles]
    moved, least, at_once = between_ranks(case), min(waits), all_wait_at_once(waits)
    if moved is None or least < WAITING_SHARE:
        return None
    if moved < BUSY_BYTES_PER_SECOND:
        return _exposed_by_calls(case, profiles, waits, moved)
    travels, by_turns = f"{moved / MEBIBYTE:,.0f} MiB/s", at_once <= 0.0  # now this one may compute alone, now that one
    network = case.saw("network", "between the ranks", "gradients travel", travels, "little beside the computing")
    how = f"every rank waits {least:.0%} of the time or more for {travels} of gradients"
    how += ", or by turns for each other" if by_turns else ""
    # Of a model so small that half of its step goes to the others is no fault of the fabric.
    sure = certainty(least) if least >= MOSTLY and not by_turns else min(Level.HIGH, certainty(least))
    counts = RESIDUE if least < MOSTLY else 1.0
    if any(budget(case, rank).share(Bin.LOCK) >= LOST_SHARE for rank in ranks):
        counts = RESIDUE / 2  # one is kept by a lock of its own, and the others wait for it
    return _exposed(case, ranks[0], counts * least, how, (*_waiting(case, ranks, waits), network), sure)


def _exposed_by_calls(case: Case, profiles: Profiles, waits: list[float], moved: float) -> Outcome:
    """Little travels, and the waits are short and many: what is lost is the latency of each call."""
    at_once = all_wait_at_once(waits)
    looks = [case.motion(rank, WINDOW_SECONDS) for rank, _ in profiles]
    wakes = [one.switches_per_second or 0.0 for one in looks]
    if at_once < MOSTLY or min(wakes) < SMALL_CALLS or any(_own(case, rank) for rank, _ in profiles):
        return None
    seen = list(zip((rank.rank for rank, _ in profiles), waits, wakes, strict=True))[:FEW]
    evidence = tuple(case.saw(*SHORTLY.said(Facts(rank=one, lost=lost, often=often))) for one, lost, often in seen)
    how = worded(MANY_CALLS, Facts(least=min(waits), moved=moved / MEBIBYTE))
    rank, place = profiles[0][0], _called_at(case, profiles[0][0])
    flatten = f"one call for many tensors: flatten them into one{f' before {place}' if place else ''}"
    return _exposed(
        case, rank, at_once, how, evidence, min(Level.CERTAIN, certainty(at_once)), (flatten, _overlaps(place))
    )


def _exposed(
    case: Case,
    rank: Member,
    lost: float,
    how: str,
    evidence: tuple[Evidence, ...],
    confidence: float,
    advice: tuple[str, ...] | None = None,
) -> Outcome:
    place = _called_at(case, rank)
    counted = " and RAS sees their counts grow" if growing(case) else ""
    culprits = (Culprit(pid=rank.pid, frame=place),) if place else ()
    found = slow(
        case,
        NOT_HIDDEN,
        rank,
        lost,
        culprits=culprits,
        confidence=confidence,
        before=evidence,
        how=how,
        counted=counted,
    )
    return msgspec.structs.replace(found, next=advice or ((_overlaps(place), LESS) if place else (LESS, SHARDED)))


def _called_at(case: Case, rank: Member) -> str | None:
    """The line in which the program calls collectives itself, and not a wrapper (DDP, FSDP) for it."""
    return show(case.profile(rank, WINDOW_SECONDS).top_line(_is_called))


def _is_called(stack: Stack) -> bool:
    return "collective" in inner_tags(stack) and not any_tag(tags(stack), "backward", "forward", "optimizer")


def _overlaps(place: str | None) -> str:
    return f"DistributedDataParallel sends while the backward pass computes{f': {place} does not' if place else ''}"


def _waiting(case: Case, ranks: Sequence[Member], waits: Sequence[float]) -> tuple[Evidence, ...]:
    """What shows for how much of the time the ranks wait."""
    seen = list(zip((rank.rank for rank in ranks), waits, strict=True))[:FEW]
    return tuple(case.saw(*WAITS.said(Facts(rank=rank, lost=lost))) for rank, lost in seen)


# What a card shows that does nothing but send and receive


def _only_sends(history: History, card: Regime) -> bool:
    """True if a card is taken by collectives: NVLink or PCIe is busy, and the arithmetic and the memory of the card are not."""
    nvlink = card.nvlink_mib_per_second or 0.0
    return (
        (card.graphics or 0.0) >= TAKEN
        and (nvlink >= BUSY_NVLINK_MIB_PER_SECOND or _through_host(history, card))
        and (card.tensor or 0.0) <= TENSOR
        and _dram_beside(history, card) <= DRAM_BESIDE
        and (card.sm_active is None or card.sm_active <= SM)
    )


def _computes(card: Regime) -> bool:
    """True if a card that is taken does more than a collective's kernels do."""
    return (card.graphics or 0.0) >= TAKEN and card.sm_active is not None and card.sm_active > SM


def _dram_beside(history: History, card: Regime) -> float:
    """Share of the memory's bandwidth that no collective over NVLink explains."""
    described = history.latest(Gpu, card.uuid)
    peak = dram_peak_bytes_per_second(described.reading) if described is not None else None
    sent = (card.nvlink_mib_per_second or 0.0) * MEBIBYTE
    return (card.dram or 0.0) - (DRAM_BYTES_FOR_EACH_SENT * sent / peak if peak else 0.0)


def _through_host(history: History, card: Regime) -> bool:
    """True if so much goes to and fro over PCIe that kernels of collectives may send it, and not over NVLink."""
    ceiling = ceiling_mib_per_second(history, card.uuid)
    each_way = card.pcie_each_way_mib_per_second or 0.0
    return ceiling is not None and each_way >= BUSY_PCIE * ceiling and not card.nvlink_mib_per_second


def _unused_links(history: History, card: Regime) -> int:
    """NVLinks that are up while everything goes over PCIe."""
    seen = history.latest(GpuSample, card.uuid) if _through_host(history, card) else None
    return (seen.reading.nvlinks_active or 0) if seen is not None else 0


def _over_link(history: History, card: Regime) -> str:
    """What such a card sends over which link, in words."""
    if not _through_host(history, card):
        return f"{(card.nvlink_mib_per_second or 0.0) / 1024:.0f} GiB/s over NVLink"
    up = _unused_links(history, card)
    beside = f" and nothing over NVLink ({up} links are up)" if up else ""
    return f"{(card.pcie_each_way_mib_per_second or 0.0) / 1024:.0f} GiB/s over PCIe in each direction{beside}"


RULES = (Rule(STRAGGLING, straggling), Rule(EXPOSED, exposed))
