"""What one thread does, from its scheduler state, its system call and its CPU time."""

from dataclasses import dataclass

from perfwatch.triage.case import Case
from perfwatch.triage.graph.model import Activity, Silence, Source
from perfwatch.triage.graph.thresholds import POLLING_SECONDS
from perfwatch.triage.moving.motion import moves
from perfwatch.triage.moving.thresholds import LATE_SECONDS, MEANT_SECONDS, RUNS_SHARE, SIGN_OF_LIFE, STIRS_SHARE
from perfwatch.triage.moving.work import NO_WORK, Work, data_of
from perfwatch.triage.waits.node import EVENT_LOOP, Node, silence, waits_for_its_object
from perfwatch.triage.words.frames import user_frame
from perfwatch_probes import readings as r


@dataclass(frozen=True)
class ThreadActivity:
    """One thread now. ``recurrent``: it has gone on again and again, and has not paused for longer than before."""

    state: Activity
    work: Work = NO_WORK
    until: float | None = None  # seconds since the session began
    silence: Silence | None = None
    recurrent: bool = False


def activity_of(case: Case, node: Node) -> ThreadActivity:
    """Classify one thread."""
    thread, motion = node.thread, node.motion
    member = case.job.members.get(node.pid)
    if (member is not None and not member.alive) or node.state in ("Z", "X"):
        return ThreadActivity(Activity.GONE)
    if node.state in ("T", "t"):
        return _stopped(case, node)
    silent = silence_of(case, node)
    if thread is None:
        if motion.distinct > 1:  # its stack changes
            return ThreadActivity(Activity.RUNS, work=Work(SIGN_OF_LIFE), silence=silent)
        return ThreadActivity(Activity.UNKNOWN, silence=silent)
    share = motion.wanted_share if motion.run_share is not None else (RUNS_SHARE if node.state == "R" else 0.0)
    until = None
    if share > RUNS_SHARE or (node.state == "R" and (share > STIRS_SHARE or motion.run_share is None)):
        state = Activity.RUNS
    elif (wait := thread.wait) is not None and wait.remaining_seconds is not None and wait.kind in TIMED:
        until = node.thread_at + wait.remaining_seconds
        total = wait.remaining_seconds + (thread.ran_ago_seconds or 0.0)
        rested = silent.seconds if silent is not None else 0.0
        repeats = wait.kind == "sleep" or EVENT_LOOP in node.inner
        again = repeats and total < MEANT_SECONDS and rested > total + LATE_SECONDS  # once more at one line
        state = Activity.POLLS if total < POLLING_SECONDS or again else Activity.SLEEPS
    elif wait is not None and wait.kind == "sleep":
        state = Activity.POLLS
    elif share > SIGN_OF_LIFE and motion.frozen is False:
        state = Activity.RUNS
    else:
        state = Activity.BLOCKED if wait is not None or node.state in ("S", "D") else Activity.UNKNOWN
    return ThreadActivity(
        state,
        Work(share, data_of(case.history, node.pid, [node.tid])),
        until,
        silent,
        moves(case.history, node.pid, node.tid).recurrent,
    )


TIMED = ("sleep", "poll", "futex")


def _stopped(case: Case, node: Node) -> ThreadActivity:
    """Stopped since the first sample of the state that shows the same CPU time; recurrent if it ran between two such samples."""
    looks = case.history.series(r.Thread, node.pid, node.tid)
    first, again = looks[-1], False
    for one in reversed(looks[:-1]):
        if one.reading.state not in ("T", "t"):
            break
        again = one.reading.run_seconds != first.reading.run_seconds
        if again:
            break
        first = one
    ago = node.thread.ran_ago_seconds if node.thread is not None else None
    silent = Silence(max(case.at - first.at, ago or 0.0), Source.KERNEL if ago is not None else Source.WATCHED)
    return ThreadActivity(Activity.STOPPED, silence=silent, recurrent=again)


def silence_of(case: Case, node: Node) -> Silence | None:
    """Since when a thread has done no more than check whether it may go on."""
    known = silence(case.history, node)
    looks = case.history.series(r.Thread, node.pid, node.tid)
    if not looks or node.state == "R":
        return None if known is None else Silence(known)
    exact = Source.KERNEL if waits_for_its_object(node) else Source.WATCHED
    change = _last_change(case, node)
    watched = case.at - looks[0].at if change is None else change
    if known is not None and known >= watched:
        return Silence(known, exact if exact is Source.KERNEL or change is None else Source.OBSERVED)
    return Silence(watched, Source.WATCHED if change is None else Source.OBSERVED)


def last_change(case: Case, node: Node) -> Silence | None:
    """Since when a thread is known to have done something else; None where it was not watched for long enough to say."""
    if waits_for_its_object(node):
        known = silence(case.history, node)
        return None if known is None else Silence(known, Source.KERNEL)
    change = _last_change(case, node)
    return None if change is None else Silence(change, Source.OBSERVED)


def _last_change(case: Case, node: Node) -> float | None:
    """Seconds since it ran for more than a check, or was at another line."""
    lines = [one for one in case.history.series(r.Stack, node.pid, node.tid) if one.reading.frames]
    here = user_frame(lines[-1].reading) if lines else None
    other = next((one.at for one in reversed(lines) if user_frame(one.reading) != here), None)
    moved = moves(case.history, node.pid, node.tid).ago_seconds
    known = [one for one in (moved, None if other is None else case.at - other) if one is not None]
    return min(known, default=None)
