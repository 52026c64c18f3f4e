"""How much each rank waits for the others, and what holds back the one that they wait for."""

from dataclasses import dataclass
from functools import partial

from perfwatch.triage.cards.accelerated import trained_for
from perfwatch.triage.cards.hardware import clock_at_work, held_down
from perfwatch.triage.cards.whose import cards_of, index_of, name_of
from perfwatch.triage.case import Case
from perfwatch.triage.history import median
from perfwatch.triage.moving.motion import motion, was_at
from perfwatch.triage.ranks.mpi_calls import waits_for_ranks
from perfwatch.triage.roles.job import Member
from perfwatch.triage.shares.profile import Profile
from perfwatch.triage.shares.starving import WAITING_SHARE, awaits_data
from perfwatch.triage.slowness import WINDOW_SECONDS
from perfwatch.triage.words.frames import collective_name, is_user, own_frames, show, tags, tags_of, user_frame
from perfwatch.verdict import Culprit, Evidence
from perfwatch_probes.readings import Frame, GpuSample, Stack

LOADER_SHARE = 0.3  # of the late rank's time spent waiting for its own workers
DELAY_SHARE, DELAY_RATIO = 0.3, 2.0  # runnable and not running; so many times as much as the others
CLOCK_RATIO = 0.9  # of the peers' clocks
MOST_BEFORE = 0.8
IMPORTING = 0.1  # of the time
CAME_BACK, LATELY_SECONDS = 2, 6.0  # once may be the step that never ended
RECEIVES = frozenset({"recv", "recv_object_list", "broadcast", "broadcast_object_list"})


@dataclass(frozen=True)
class OwnCause:
    """Why a rank is late: in words, whose it is to mend, whom to name, and what shows it."""

    words: str
    owner: str
    culprit: Culprit
    evidence: tuple[Evidence, ...] = ()


def in_collective(case: Case, stack: Stack) -> bool:
    """Whether a stack is where a rank waits for the others: a collective, the reduction below backward, or an exchange of MPI."""
    return "collective" in tags(stack) or _in_reduction(stack) or waits_for_ranks(case.history, case.job, stack)


def meets_again(case: Case, rank: Member, seconds: float) -> bool:
    """Whether a rank was seen to leave what the ranks meet in, and to come back, again and again."""
    return case.profile(rank, seconds).turns(partial(in_collective, case)) >= CAME_BACK


def is_waited_for(case: Case, rank: Member, seconds: float) -> bool:
    """Whether a rank comes again and again to the line in which others wait for it, for a moment, and they still go on from there."""
    lines = case.history.once(("waits_at", seconds), lambda: _waits_at(case, seconds))
    return bool(lines) and case.profile(rank, seconds).turns(lambda stack: user_frame(stack) in lines) >= CAME_BACK


def _waits_at(case: Case, seconds: float) -> frozenset[Frame]:
    """The program's lines in which ranks wait for others; none where no rank was seen to go on from there lately."""
    if not any(meets_again(case, rank, LATELY_SECONDS) for rank in case.ranks):
        return frozenset()
    met = [one.reading for rank in case.ranks for one in case.profile(rank, seconds).sights]
    return frozenset(line for stack in met if in_collective(case, stack) and (line := user_frame(stack)) is not None)


def apart(case: Case) -> bool:
    """Whether nothing says that the ranks train together, and none was seen in an exchange of MPI either."""
    if not case.job.apart:
        return False
    at_it = partial(waits_for_ranks, case.history, case.job)
    return not any(case.profile(rank, WINDOW_SECONDS).share_where(at_it) for rank in case.ranks)


def waits_by_design(case: Case, rank: Member, seen: Profile) -> bool:
    """Whether a rank has no batches left (torch's Join), or exchanges by MPI and was never in a backward pass: it serves the others."""
    if seen.seen("shadow"):
        return True
    exchanges = seen.share_where(partial(waits_for_ranks, case.history, case.job)) > 0.0
    return exchanges and not was_at(case.history, rank.pid, case.progress[rank.pid].thread, "backward")


def only_receives(case: Case, rank: Member, seen: Profile) -> bool:
    """Whether a rank never trains, and waits for nothing but what it is sent by one that does: an evaluator, a writer of samples.

    That it waits is its part, and says nothing of the one that trains meanwhile.
    """
    waits = {collective_name(one.reading) for one in seen.sights} - {None}
    if not waits or not waits <= RECEIVES or _trained(case, rank):
        return False
    return any(_trained(case, other) for other in case.ranks if other.pid != rank.pid)


def trains_without(case: Case, rank: Member) -> bool:
    """Whether all other ranks train on and on, two at least of them together, and this one was never seen to: it has another part."""
    at_it = case.history.once(("train_on",), lambda: _train_on(case))
    return 2 <= len(at_it) == len(case.ranks) - 1 and rank.pid not in at_it and not _trained(case, rank)


def who_train(case: Case) -> tuple[Member, ...]:
    """The ranks that are there to train: none that serves the others, or waits for a part of its own while they train on."""
    return case.history.once(
        ("who_train",),
        lambda: tuple(
            rank for rank in case.trainers if case.progress[rank.pid].kind == "moving" or not trains_without(case, rank)
        ),
    )


def _train_on(case: Case) -> frozenset[int]:
    """The ranks that train; none where no rank was seen lately to go on from where ranks meet."""
    if not any(meets_again(case, rank, LATELY_SECONDS) for rank in case.ranks):
        return frozenset()
    return frozenset(
        rank.pid for rank in case.ranks if case.progress[rank.pid].kind == "moving" and _trained(case, rank)
    )


def _trained(case: Case, rank: Member) -> bool:
    steps = case.steps(rank)
    at_it = was_at(case.history, rank.pid, case.progress[rank.pid].thread, "backward", "optimizer", "scaler")
    return at_it or (steps is not None and steps.count > 0)


def training_seconds(case: Case, rank: Member) -> float:
    """The window; where a good part of it lies before the first step, the time since then.

    Before it one rank may prepare what the others wait for once. Known only where steps are counted.
    """
    since = WINDOW_SECONDS if case.steps(rank) is None else trained_for(case, rank)
    return since if since <= MOST_BEFORE * WINDOW_SECONDS else WINDOW_SECONDS


def waiting_share(case: Case, rank: Member, seen: Profile) -> float:
    """Share of the time that a rank waits in collectives, or asleep in the reduction below its backward pass."""
    explicit = seen.share("collective") + seen.share_where(partial(waits_for_ranks, case.history, case.job))
    below = seen.share_where(_in_reduction)
    moved = motion(case.history, rank.pid, case.progress[rank.pid].thread, training_seconds(case, rank))
    asleep = 1.0 - (moved.run_share or 0.0) - (moved.delay_share or 0.0) if moved.run_share is not None else 0.0
    return explicit + max(0.0, min(below, asleep - explicit))


def _in_reduction(stack: Stack) -> bool:
    """Whether a thread is below its backward pass and in nothing of the program's own there, as a hook would be."""
    if "backward" not in tags(stack) or "collective" in tags(stack):
        return False
    frames = own_frames(stack)
    engine = next(i for i, frame in enumerate(frames) if "backward" in tags_of(frame.function, frame.file))
    return not any(map(is_user, frames[:engine]))


def all_wait_at_once(waits: list[float]) -> float:
    """Share of the time in which all ranks wait, at least: no two of them need compute at the same time."""
    return 1.0 - sum(1.0 - share for share in waits)


def excused(case: Case, ranks: list[tuple[Member, Profile]]) -> bool:
    """Whether how long the ranks wait tells nothing of who is late: all starve, one serves the others, or one has just begun."""
    begins = any(seen.share("import") > IMPORTING for _, seen in ranks)
    return begins or starve_alike(ranks) or any(waits_by_design(case, rank, seen) for rank, seen in ranks)


def starve_alike(ranks: list[tuple[Member, Profile]]) -> bool:
    """Whether every rank waits for its own data, too: then chance makes now this one the last, now that one, and for long.

    While a rank waits for the others its workers go on, so that its next batches lie ready if they are any faster than the steps.
    """
    return all(seen.share_where(awaits_data) >= WAITING_SHARE for _, seen in ranks)


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
    others = [clock for pid, clock in clocks.items() if pid != late.pid]
    usual = median(others)
    if late.pid not in clocks or usual is None or clocks[late.pid] > CLOCK_RATIO * usual:
        return None
    uuid = cards_of(case.history, late.pid).uuids[0]
    newest = case.history.latest(GpuSample, uuid)
    if newest is None or not held_down(newest.reading):
        return None
    name = name_of(case.history, uuid)
    words = f"its card {name} runs at {clocks[late.pid]:.0f} MHz, the others at {usual:.0f}: it is throttled"
    shown = case.saw("nvml", name, "SM clock", f"{clocks[late.pid]:.0f} MHz", f"{usual:.0f} MHz, as the others")
    culprit = Culprit(pid=late.pid, rank=late.rank, gpu=index_of(case.history, uuid))
    return OwnCause(words, "node", culprit, (shown,))


def _clock(case: Case, rank: Member) -> float | None:
    """Of its card at work: that of one that idles holds nobody back."""
    looks = [
        clock
        for uuid in cards_of(case.history, rank.pid).uuids[:1]
        for seen in case.history.series(GpuSample, uuid, seconds=WINDOW_SECONDS)
        if (clock := clock_at_work(seen.reading)) is not None
    ]
    return median(looks)


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
    """It wants to run and is not let, much more than the others when they want to: somebody else has its CPUs."""
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
    moved = motion(case.history, rank.pid, case.progress[rank.pid].thread, WINDOW_SECONDS)
    wanted = moved.wanted_share
    return (moved.delay_share or 0.0) / wanted if wanted > 0.0 else 0.0


def _own_line(case: Case, late: Member, seen: Profile) -> OwnCause:
    frame = seen.top_line(lambda stack: not in_collective(case, stack)) or seen.top_line()
    return OwnCause(
        f"it is mostly at {show(frame)}", "user_code", Culprit(pid=late.pid, rank=late.rank, frame=show(frame))
    )
