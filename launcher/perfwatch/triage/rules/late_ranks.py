"""Slow because ranks wait for each other: for one that is late (straggling), or all of them for data (exposed communication)."""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from perfwatch.triage.cards.gpu import Regime, regimes
from perfwatch.triage.cards.hardware import ceiling_mib_per_second, dram_peak_bytes_per_second
from perfwatch.triage.cards.whose import cards_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.ranks import lateness
from perfwatch.triage.ranks.calls import MEBIBYTE, between_ranks
from perfwatch.triage.ranks.groups import FEW, growing
from perfwatch.triage.ranks.lateness import Late, Profiles, all_wait_at_once, waiting_share
from perfwatch.triage.roles.job import Member
from perfwatch.triage.rule import Cause, Facts, Rule, Saw, worded
from perfwatch.triage.shares.budget import Bin, at_file_lock, budget, spent
from perfwatch.triage.shares.thresholds import LOST_SHARE, MOST, MOSTLY, OFTEN
from perfwatch.triage.slowness import FEW_SAMPLES, RESIDUE, WINDOW_SECONDS, certainty, slow
from perfwatch.triage.words.frames import any_tag, inner_tags, show, tags
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


# One rank is repeatedly the last, and all others wait for it


def straggling(case: Case) -> Outcome:
    """One rank hardly waits and the others do."""
    if lateness.apart(case) or not lateness.go_on(case) or lateness.overdue(case):
        return None
    ranks = [(rank, case.profile(rank, lateness.training_seconds(case, rank))) for rank in case.ranks]
    ranks = [(rank, seen) for rank, seen in ranks if not lateness.only_receives(case, rank, seen)]
    if len(ranks) < 2 or not case.job.covered or any(seen.samples < FEW_SAMPLES for _, seen in ranks):
        return None
    if lateness.excused(case, ranks) or lateness.cards_alike(case, ranks):
        return None
    told = _late_by_stacks(case, ranks) or lateness.late_by_cards(case, ranks)
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
    evidence = lateness.told(
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
    if saving > 0.0 and saving >= MOSTLY * (1.0 - seen.share_where(partial(lateness.in_collective, case))):
        return None  # the others wait for its checkpoint
    if (locked := at_file_lock(case, late)) is not None and locked.waits.share >= MOSTLY:
        return None  # and it waits for who has a file locked
    why = lateness.own_cause(case, late, seen)
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
