"""The same call fails and is tried again and again.

What it means
    A service, a store or a node refuses; the code backs off and retries, or the launcher restarts the ranks, over and over.

How it is recognised
    The training thread is often in a retry loop: a sleep whose enclosing loop also connects, or one that follows on a ``try`` that
    failed, or retry libraries' frames. Or ranks end and new ones of the same number take their places.

What it is mistaken for
    ``blocked_network``: one call that never returns. A helper thread that retries: training does not wait for it.

What to do next
    Look at what the named line calls, and at the ranks' own error output.
"""

from perfwatch.probes.readings import Stack, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.code import calling_line, names
from perfwatch.triage.frames import show, tags
from perfwatch.triage.job import Member
from perfwatch.triage.profile import Profile
from perfwatch.triage.restarts import restarts
from perfwatch.triage.rule import Cause
from perfwatch.triage.slowness import FEW_SAMPLES, WINDOW_SECONDS, slow, worst
from perfwatch.triage.verdict import Alternative, Culprit, Finding, Outcome

CAUSE = Cause("retrying", "slow", "network", (Stack, Thread))

ONLY = 0.9  # of the samples: it does nothing but back off
LONG_ENOUGH_SECONDS = 4.0  # of samples
RESTARTS = 2  # separate tries; generations of one rank
LOOP, ONCE = 0.92, 0.7  # more than one restart; a single one may have been the last
CONNECTING = frozenset("connect create_connection urlopen urlretrieve request recv fetch download".split())
ASKING = frozenset("get post put head send execute query read open call".split())  # of something remote, by its name:
# Tries that only ask whether something is there yet, or take a lock: their waits have other names.
ASKS = frozenset(
    "get get_nowait put put_nowait acquire poll wait join recv accept select open flock lockf fcntl mkdir symlink link touch"
    " stat result print info debug warning error exception format str int len sleep".split()
)
REMOTE = ("request", "session", "client", "http", "conn", "s3", "bucket", "redis", "cursor", "service", "api", "sock")


def judge(case: Case) -> Outcome:
    """Fires on ranks that are restarted, or on a training thread that backs off again and again."""
    return _restarts(case) or _backs_off(case)


def _restarts(case: Case) -> Finding | None:
    found = restarts(case)
    if found is None:
        return None
    return Finding(
        cause="restart_loop",
        state="slow",
        summary=f"the launcher restarts the ranks again and again: {found.processes} processes of rank {found.rank} "
        f"in {found.seconds:.0f} s",
        confidence=LOOP if found.processes > RESTARTS else ONCE,
        lost_share=1.0,
        owner="user_code",
        culprits=tuple(Culprit(pid=m.pid, rank=m.rank) for m in case.job.ranks[:2]),
        evidence=(
            case.saw(
                "process",
                f"rank {found.rank}",
                "replaced",
                f"{found.processes} processes, one after the other, in {found.seconds:.0f} s",
                "one",
            ),
        ),
        alternatives=(Alternative(cause="crashed", refuted_by="a new process takes the place of each one that ends"),),
        next=("read the first traceback in the ranks' own output",),
    )


def _backs_off(case: Case) -> Finding | None:
    found = worst(case, lambda rank, seen: seen.share_where(lambda stack: retries(case, stack))) or _only_retries(case)
    if found is None:
        return None
    rank, seen, lost = found
    if lost < ONLY and len(seen.runs(lambda stack: retries(case, stack))) < RESTARTS:
        return None
    frame = seen.top_line(lambda stack: retries(case, stack))
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        frame=frame,
        summary=f"the training thread backs off and retries {lost:.0%} of the time at {show(frame)}",
        evidence=(
            case.saw(
                "stack", f"pid {rank.pid}", "sleeps between tries", f"{lost:.0%} of {seen.samples} samples", "0 %"
            ),
        ),
        alternatives=(Alternative(cause="blocked_network", refuted_by="each try returns"),),
        next=(f"look at what {show(frame)} calls",),
    )


def _only_retries(case: Case) -> tuple[Member, Profile, float] | None:
    """A rank that does nothing else: no step between the tries, and it woke for the next one while we watched."""
    for rank in case.ranks:
        seen = case.profile(rank, WINDOW_SECONDS)
        share = seen.share_where(lambda stack: retries(case, stack))
        if seen.samples >= FEW_SAMPLES and share >= ONLY and seen.seconds >= LONG_ENOUGH_SECONDS:
            woke = case.history.growth(
                Thread, rank.pid, case.progress[rank.pid].thread, of=lambda t: t.voluntary_switches
            )
            if woke is not None and woke[0] >= RESTARTS:
                return rank, seen, share
    return None


def retries(case: Case, stack: Stack) -> bool:
    """Whether a stack sleeps inside a loop that tries to reach something."""
    if "retry" in tags(stack):
        return True
    line = calling_line(case.history, stack)
    if line is None or "sleep" not in names(line.calls):
        return False
    return any(_connects(call) for call in line.loop_calls) or bool(names(line.retried_calls) - ASKS)


def _connects(call: str) -> bool:
    owner, _, name = call.rpartition(".")
    return name in CONNECTING or (name in ASKING and any(word in owner.lower() for word in REMOTE))
