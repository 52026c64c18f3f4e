"""What the rest of perfwatch asks of triage besides a verdict: the watcher, reports, top, comparisons, captures, the fleet.

With ``job`` (who is who), ``history``, ``case``, ``diagnose``, ``rule`` and ``rules`` this is all of triage that is imported
from outside. A question is about a job, a rank, a thread, a stack or a card. What is only passed on has its docstring where it
is defined.
"""

from perfwatch.triage.cards.gpu import RESIDENT, kernels, regime, regimes
from perfwatch.triage.cards.gpu import activities as card_looks
from perfwatch.triage.cards.gpu import flat as moves_no_data
from perfwatch.triage.cards.hardware import data_sheet_tflops, tensor_tflops_at, tensor_yield
from perfwatch.triage.cards.whose import cards_of, lost_cards
from perfwatch.triage.cards.whose import index_of as card_index
from perfwatch.triage.cards.whose import name_of as card_name
from perfwatch.triage.cards.xids import HARDWARE, Announced, announced
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import ASKED, ended_by
from perfwatch.triage.ends.gone import was_aborted as has_aborted
from perfwatch.triage.graph.decide import in_call, wakes_soon
from perfwatch.triage.hang import Place as RankPlace
from perfwatch.triage.hang import hang_between
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import dominant, has_ended, python_threads, stack_key
from perfwatch.triage.moving.thresholds import LATELY_SECONDS
from perfwatch.triage.patience import STRUCTURAL_SECONDS
from perfwatch.triage.patience import temporal as hang_timeout
from perfwatch.triage.ranks.groups import counted_apart, growing, standings
from perfwatch.triage.ranks.groups import shown as shown_call
from perfwatch.triage.roles.job import STORE_THREAD, Member, training_thread
from perfwatch.triage.rules.collectives import STALLED
from perfwatch.triage.rules.endless import Unleft, unleft
from perfwatch.triage.rules.machine import spare_cores
from perfwatch.triage.shares.budget import awaits_data
from perfwatch.triage.shares.data import WAITING_SHARE as STARVING_SHARE
from perfwatch.triage.shares.thresholds import BEYOND, ENOUGH_SAMPLES
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.triage.waits.devices import AUTOGRAD_THREADS, engine_threads
from perfwatch.triage.words.frames import is_standard, is_user, short_name, show, tags, user_frame, user_frames
from perfwatch_probes import readings as r

__all__ = [
    "STALLED",
    "STARVING_SHARE",
    "RankPlace",
    "awaits_data",
    "card_index",
    "card_looks",
    "card_name",
    "cards_of",
    "data_sheet_tflops",
    "hang_between",
    "hang_timeout",
    "has_aborted",
    "has_ended",
    "is_standard",
    "is_user",
    "lost_cards",
    "moves_no_data",
    "python_threads",
    "regime",
    "regimes",
    "short_name",
    "show",
    "shown_call",
    "spare_cores",
    "stack_key",
    "tags",
    "tensor_tflops_at",
    "tensor_yield",
    "training_thread",
    "user_frame",
    "user_frames",
]


# The job


def seconds_since_step(case: Case) -> float | None:
    """Seconds since any rank has made a step; None where none was counted."""
    ago = [now.steps.ago_seconds for now in case.progress.values() if now.steps is not None]
    return min((one for one in ago if one is not None), default=None)


def late_seconds(case: Case) -> float:
    """For how long no rank has made a step, where that exceeds the hang timeout and any step that was seen; else 0."""
    ago = seconds_since_step(case) or 0.0
    clocks = [now.steps for now in case.progress.values() if now.steps is not None]
    longest = max((clock.longest_seconds or 0.0 for clock in clocks), default=0.0)
    return ago if ago > max(case.patience_seconds, BEYOND * longest) else 0.0


def data_wait_share(case: Case) -> float:
    """The largest share of its recent time that any rank waits for data."""
    return max((case.profile(rank, WINDOW_SECONDS).share_where(awaits_data) for rank in case.ranks), default=0.0)


def polled_files(case: Case) -> dict[int, str]:
    """By pid, the path for which a process polls; empty where the path is not known yet."""
    ends = (chain.end for chain in case.chains.values())
    return {end.node.pid: end.detail for end in ends if end.kind == "file_poll"}


def ended_on_request(case: Case) -> bool:
    """True if a signal that asks for an end (SIGTERM, SIGINT, SIGHUP) ended the job."""
    return ended_by(case) in ASKED


def lacks_common_moment(case: Case) -> bool:
    """True if the hosts of the job were looked at so far apart that short waits on two of them need not overlap."""
    return case.apart_seconds > STRUCTURAL_SECONDS


# Its ranks


def ranks_wait_for_each_other(case: Case) -> bool:
    """True if no rank is seen at work and one waits for others in a collective, or for a call of theirs: their recorders may be asked.

    To ask a rank's flight recorder leaves a line on the job's standard error that looks like a failure. So no rank is asked that may
    be at work: not while the job starts, makes steps, evaluates or saves, nor while one rank is late.
    """
    if not case.ranks or any(one.kind == "moving" for one in case.progress.values()) or growing(case):
        return False
    if counted_apart(case) is not None:
        return True
    elsewhere = {pid: chain for pid, chain in case.chains.items() if not in_call(case, chain)}
    return len(elsewhere) < len(case.chains) and all(
        case.progress[pid].kind == "still" and chain.end.still is True and not wakes_soon(case, chain.end)
        for pid, chain in elsewhere.items()
    )


def ranks_stand(case: Case) -> bool:
    """True if a rank makes no progress, or a collective does not: then a rank may have written down why."""
    return any(one.kind == "still" for one in case.progress.values()) or bool(standings(case))


def has_just_been_sampled(case: Case, rank: Member) -> bool:
    """True if a rank that counts no steps has so few recent samples that none of them being of a step says nothing yet."""
    now = case.progress[rank.pid]
    return now.kind == "busy" and now.steps is None and case.profile(rank, LATELY_SECONDS).samples < ENOUGH_SAMPLES


def endless_loop(case: Case, rank: Member) -> Unleft | None:
    """The ``while`` loop around forward passes that a rank does not leave; None where there is none, or it trains in there."""
    return unleft(case, rank)


# Their threads


def training_threads(case: Case, rank: Member) -> list[int]:
    """The training thread of a rank and those in which torch's engine runs its backward pass: whether it works shows in them."""
    return [case.progress[rank.pid].thread, *engine_threads(case.history, rank.pid)]


def waiting_threads(case: Case, rank: Member) -> set[int]:
    """The threads of a rank that may wait for other ranks: the training thread, autograd's, the server of a TCPStore."""
    progress = case.progress.get(rank.pid)
    found = {progress.thread if progress else rank.pid}
    for _, tid in case.history.of(r.Thread, rank.pid):
        last = case.history.latest(r.Thread, rank.pid, tid)
        if last is not None and last.reading.name.startswith((AUTOGRAD_THREADS, STORE_THREAD)):
            found.add(tid)
    return found


def usual_frames(history: History, pid: int, tid: int) -> tuple[r.Frame, ...]:
    """The frames in which a thread was most often seen lately; none where it was not sampled."""
    seen = dominant(history, pid, tid)
    return () if seen is None else seen.reading.frames


# Their cards


def hardware_errors(case: Case) -> list[Announced]:
    """The errors of a card, its link or its driver that the driver announced, oldest first."""
    return [one for one in announced(case) if one.kind == HARDWARE]


def unending_kernel_seconds(case: Case, rank: Member, window_seconds: float) -> float:
    """For how long each card of a rank has been in one kernel that moves no data; 0 where one of them does anything else."""
    cards = regimes(case.history, rank.pid, window_seconds)
    spun = [kernels(case.history, card.uuid) for card in cards if card.kind == "spin" and card.source == "gpm"]
    if not spun or len(spun) < len(cards) or any(one.go_on for one in spun):
        return 0.0
    return min(one.since_seconds for one in spun)


def spins(look: r.GpuActivity) -> bool:
    """True if a kernel was resident for the whole of one look at a card, and moved no data."""
    return look.graphics is not None and look.graphics >= RESIDENT and moves_no_data(look)
