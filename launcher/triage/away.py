"""What keeps ranks away from a collective that others wait in, in words."""

from perfwatch.triage.absence import SHOWN
from perfwatch.triage.backing_off import retries
from perfwatch.triage.case import Case
from perfwatch.triage.chain import Chain
from perfwatch.triage.frames import show
from perfwatch.triage.hang import who
from perfwatch.triage.leaving import over
from perfwatch.triage.node import Node, doing
from perfwatch.triage.releasing import named
from perfwatch.triage.threads import awaited


def named_ranks(absent: list[Chain]) -> str:
    """``ranks 0, 2``."""
    shown = ", ".join(str(chain.start.rank) for chain in absent[:SHOWN])
    more = f" and {len(absent) - SHOWN} more" if len(absent) > SHOWN else ""
    return f"rank{'s' if len(absent) > 1 else ''} {shown}{more}"


def why_absent(case: Case, absent: Chain, left: list[Node], roots: list[Node]) -> str:
    """What keeps a rank away: a wait, of others too, or that it is done and its process only waits for threads of its own."""
    end = absent.end
    if end.kind == "sleep" and end.node.stack is not None and retries(case, end.node.stack):
        return f"{who(absent)} backs off and tries again and again"
    if not over(absent):
        also = "".join(f", and {named(one, absent.end.node.pid)} for {awaited(one)}" for one in roots[:2])
        return f"{who(absent)} {doing(absent.awaited)}{also}{_around(absent)}"
    until = f"thread {left[0].name or left[0].tid} at {show(left[0].frame)} to end" if left else absent.awaited
    return f"its program is over, and {who(absent)} waits for {until}"


def _around(absent: Chain) -> str:
    """Of a cycle through another process: that the one who is waited for waits as well, and for what."""
    others = [link for link in absent.links if link.pid != absent.end.node.pid]
    if absent.end.kind != "cycle" or not others:
        return ""
    return f", which waits at {others[0].frame or '?'} for {others[0].waits_for}"
