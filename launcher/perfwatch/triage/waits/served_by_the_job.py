"""A thread that waits for bytes of another process of its own job, which stands still: for something of its own, or for bytes, too."""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal
from perfwatch.triage.waits.answering import serving
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import End, Node, culprit
from perfwatch.triage.waits.releasing import named, partners, turn_of
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Outcome

# Times the patience, and confidence: who is asked is at work, perhaps for others; or it is a device.
PATIENT, GUESSED = 5.0, 0.7
UNREAD = 0.78  # confidence without the stack of one of them: it may be about to send for another thread
TIMEOUT = "give the request a timeout"
BY_CHILD = Alternative(cause="blocked_child", refuted_by="it is talked to over the network")


def served_by_the_job(case: Case, cause: str, chain: Chain) -> Outcome:
    """The peer is a process of the job itself, which stands still."""
    if chain.end.kind == "cycle":
        return _in_a_circle(case, cause, chain)
    patience = STRUCTURAL_SECONDS if outlasts(case, chain.end) else temporal(case)
    return hung(
        case,
        cause,
        chain,
        owner="user_code",
        summary=f"pid {chain.start.pid} at {show(chain.start.frame)} waits for {chain.links[0].waits_for}; "
        f"there {who(chain)} waits for {chain.awaited}",
        patience=patience,
        alternatives=(BY_CHILD,),
        next=(f"py-spy dump --nonblocking --pid {chain.end.node.pid}", TIMEOUT),
    )


def at_the_peer(case: Case, end: End) -> Node | None:
    """Who should answer, where the peer is one process of the job, and one thread of it is known to be at a line of the program.

    One that waits for visitors owes nothing, for all that is known.
    """
    inside = tuple(pid for pid in end.others if pid != end.node.pid and pid in case.job.members)
    found = [one for one in serving(case.history, case.job, inside) if one.frame is not None]
    found = [one for one in found if one.wait is None or one.wait.kind != "accept"]
    return found[0] if len(found) == 1 else None


def _in_a_circle(case: Case, cause: str, chain: Chain) -> Outcome:
    """The peer waits for bytes, too, and in the end for those of this process."""
    others = partners(case, chain)
    ask_them = ", ".join(named(one, chain.end.node.pid) for one in others)
    found = hung(
        case,
        cause,
        chain,
        owner="user_code",
        summary=f"{who(chain)} waits for {turn_of(chain)}, and so in turn does {ask_them}: none of them sends",
        patience=STRUCTURAL_SECONDS,
        evidence=tuple(
            case.saw("thread", f"pid {one.pid}", f"waits, too, at {show(one.frame)}", "for bytes", "one of them sends")
            for one in others[:4]
        ),
        ceiling=1.0 if all(one.stack is not None for one in (chain.end.node, *others)) else UNREAD,
        alternatives=(BY_CHILD,),
        next=(f"py-spy dump --nonblocking --locals --pid {chain.end.node.pid}", TIMEOUT),
    )
    return msgspec.structs.replace(found, culprits=tuple(map(culprit, (chain.end.node, *others))))
