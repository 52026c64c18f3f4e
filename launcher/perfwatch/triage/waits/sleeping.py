"""A training thread, or one that it waits for, sleeps until a moment that the kernel knows: a window, a round of others, a cool-down."""

from collections.abc import Iterator

from perfwatch.triage.case import Case
from perfwatch.triage.hang import who
from perfwatch.triage.patience import holder_wakes, wakes_soon
from perfwatch.triage.rule import Cause
from perfwatch.triage.shares.going_through import LASTS
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import culprit
from perfwatch.triage.waits.outside import holders
from perfwatch.triage.waits.polling import only_asks
from perfwatch.triage.words.backing_off import next_try_seconds
from perfwatch.verdict import Culprit, Finding

LEAST_SECONDS = 10.0  # of the sleep that are over, or to come: shorter ones belong to a step
KNOWN = 0.65  # when it ends is known; whether training goes on then is not


def sleeps_until(case: Case, cause: Cause) -> Iterator[Finding]:
    """Ends of chains that sleep for minutes, or pause at a pipe of their own.

    Not those that ask for something again and again, or rest before another try.
    """
    for chain in case.still_chains:
        end, node = chain.end, chain.end.node
        if (locked := holder_wakes(case, end)) is not None:
            yield _holder_sleeps(case, cause, chain, locked)
        if (left := asleep_for(case, chain)) is None:
            continue
        does = "sleeps" if end.kind == "sleep" else "waits at a pipe of its own"
        waits = "" if node == chain.start else ", and the training thread waits for it"
        yield Finding(
            cause=cause.name,
            state=cause.state,
            summary=f"{who(chain)} {does}, and wakes in {left:.0f} s{waits}",
            confidence=KNOWN,
            owner=cause.owner,
            culprits=(culprit(node),),
            wait_chain=chain.links,
            evidence=(
                case.saw("syscall", f"pid {node.pid}", "sleeps until a time that is set", f"wakes in {left:.0f} s"),
            ),
            next=(f"perfwatch attach {chain.start.pid} --watch",),
            silent_seconds=round(end.silent_seconds or 0.0, 1),
        )


def asleep_for(case: Case, chain: Chain) -> float | None:
    """Seconds until the end of a chain wakes from one long sleep, soon enough to be meant; None where it does not sleep, naps, or asks."""
    end, node = chain.end, chain.end.node
    if end.kind not in ("sleep", "pipe_empty") or not end.still or not wakes_soon(case, end):
        return None
    left = (node.wait.remaining_seconds or 0.0) - (case.at - node.thread_at) if node.wait is not None else 0.0
    rested, waited = end.silent_seconds or 0.0, chain.start.motion.ran_ago_seconds or 0.0
    long = max(left, rested) >= case.patience_seconds or waited >= LASTS * case.patience_seconds
    if left <= 0.0 or left + rested < LEAST_SECONDS or not (long or node == chain.start):
        return None  # a worker's naps may be what is slow
    asks = next_try_seconds(case, node) is not None or only_asks(case.history, node)
    return None if asks or (node.stack is None and not _is_a_program_of_its_own(case, chain)) else left


def _is_a_program_of_its_own(case: Case, chain: Chain) -> bool:
    """Whether the training thread waits for just this process, which runs no Python: of a script that it were a part of it may be a nap."""
    member = case.job.members.get(chain.end.node.pid)
    return member is not None and not member.process.python and case.job.branch(member.pid, chain.start.pid) == member


def _holder_sleeps(case: Case, cause: Cause, chain: Chain, left: float) -> Finding:
    """Who holds a lock that the chain ends at, or what that has started, rests until a moment that is known."""
    pids = holders(case, chain.end)
    named = f"pid {', '.join(map(str, pids[:3]))}"
    lock = f"a lock on {chain.end.detail or 'a file'}, held by"
    pipe = chain.end.descriptor.target if chain.end.kind == "pipe_full" and chain.end.descriptor else ""
    return Finding(
        cause=cause.name,
        state=cause.state,
        summary=f"{who(chain)} waits for {f'room in the pipe {pipe}, read by' if pipe else lock} {named} outside of the job, "
        f"which sleeps, and wakes in {left:.0f} s",
        confidence=KNOWN,
        owner=cause.owner,
        culprits=tuple(Culprit(pid=pid) for pid in pids),
        wait_chain=chain.links,
        evidence=(case.saw("syscall", named, "sleeps until a time that is set", f"wakes in {left:.0f} s"),),
        next=(f"perfwatch attach {chain.start.pid} --watch",),
        silent_seconds=round(chain.end.silent_seconds or 0.0, 1),
    )
