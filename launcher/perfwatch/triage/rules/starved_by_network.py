"""The training thread waits for data because the workers wait for the network, or for answers that it asks for itself."""

from perfwatch.triage.case import Case
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.shares.gathering import STEPS
from perfwatch.triage.shares.job_servers import server
from perfwatch.triage.shares.producing import work
from perfwatch.triage.shares.starving import Starving, starving
from perfwatch.triage.slowness import certainty, slow, worst
from perfwatch.triage.words.frames import show, tags
from perfwatch.verdict import Alternative, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("starved_by_network", "slow", "network", (Thread, Stack))

OF_REQUESTS = frozenset({"http", "ssl", "selector", "retry"})
CLIENTS = ("http", "ssl")
AGAIN = 2  # it was seen to come from elsewhere so often: one request that takes long is no part of each step
SURE = 0.97
BY_THE_JOB = 0.75  # a server of the job's own may wait for anything
UNSEEN_PEER = 0.75  # whose it is, nobody could look up
ITSELF = 0.75  # what is asked for is not seen: a server that generates rollouts is meant to take its time


def judge(case: Case) -> Outcome:
    """Fires when a moving rank waits for data and its workers wait for sockets more than they compute."""
    found = starving(case)
    if found is None:
        return _asks_itself(case)
    does = work(case, found)
    if does.mostly != "sockets":
        return None
    served = server(case, found)
    if served is not None and served.computes:
        return None
    peer = f" ({does.where})" if does.where else ""
    if served is not None:
        peer = f", for pid {served.node.pid} of the job, which waits itself{served.at}"
    return found.finding(
        case,
        CAUSE,
        ceiling=BY_THE_JOB if served is not None else SURE if does.where or _by_name(case, found) else UNSEEN_PEER,
        summary=found.summary(case, f"waiting for the network{peer}"),
        evidence=(
            case.saw(
                "thread",
                found.kind,
                "wait for sockets",
                f"in {does.sockets:.0%} of looks",
                "hardly ever",
            ),
        ),
        alternatives=(
            Alternative(cause="starved_by_transforms", refuted_by=f"the workers run only {does.runs:.0%} of the time"),
        ),
        next=("ss -tni", "raise num_workers, or cache the data near the job"),
    )


def _by_name(case: Case, found: Starving) -> bool:
    """Whether the workers were seen in a client's code: that asks over a network."""
    return any(seen.share(*CLIENTS) for _, _, seen in found.profiles(case))


def _asks_itself(case: Case) -> Outcome:
    found = worst(case, lambda _, seen: seen.share_where(_asks))
    if found is None:
        return None
    rank, seen, lost = found
    if seen.turns(_asks) < AGAIN or not seen.seen(*STEPS):
        return None
    frame = seen.top_line(_asks)
    return slow(
        case,
        CAUSE,
        rank,
        lost=lost,
        frame=frame,
        confidence=min(certainty(lost), ITSELF),
        summary=f"the training thread asks over the network and waits for the answer {lost:.0%} of the time, at {show(frame)}",
        evidence=(
            case.saw("stack", f"pid {rank.pid}", "is in HTTP", f"{lost:.0%} of {seen.samples} samples", "hardly ever"),
        ),
        alternatives=(Alternative(cause="blocked_network", refuted_by="answers come, and steps go on"),),
        next=(f"ask at {show(frame)} for many steps at once, or in a thread beside training", "ss -tni"),
    )


def _asks(stack: Stack) -> bool:
    """Whether a line of the program has asked by HTTP, for no other known kind of work."""
    return "http" in (found := tags(stack)) and found <= OF_REQUESTS


RULES = (Rule(CAUSE, judge),)
