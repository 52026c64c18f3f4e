"""Busy: something is being downloaded, and bytes arrive.

What it means
    Weights or a data set come over the network. It ends by itself.

How it is recognised
    The wait chain ends in a socket on which bytes arrive (the kernel counts them), or the training thread is in HTTP frames and
    a file of its own grows.

What it is mistaken for
    ``blocked_network``: no byte arrives. A thread that sends to somebody who takes nothing.

What to do next
    Wait; keep the data nearer next time.
"""

from perfwatch.probes.readings import Descriptor, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.frames import show
from perfwatch.triage.rule import Cause
from perfwatch.triage.sending import sends
from perfwatch.triage.verdict import Culprit, Finding, Outcome

CAUSE = Cause("downloading", "busy", "network", (Thread, Descriptor))

LEAST_BYTES = 1
WINDOW_SECONDS = 20.0


def judge(case: Case) -> Outcome:
    """Fires on a rank that makes no step while bytes arrive on the socket that it waits for."""
    for rank in case.ranks:
        now = case.progress[rank.pid]
        if now.kind == "moving" and now.steps is not None:
            continue
        chain = case.chains[rank.pid]
        recent = case.profile(rank, 6.0)
        if sends(chain.end) is not None:
            continue  # nobody downloads by sending: what arrives meanwhile comes over other connections
        if chain.end.kind != "network" and not recent.share("http", "ssl"):
            continue
        arrived = _arrived(case, rank.pid)
        if arrived < LEAST_BYTES or recent.seen("optimizer", "backward"):
            continue
        line = show(recent.top_line())
        return Finding(
            cause=CAUSE.name,
            state="busy",
            summary=f"something is being downloaded{' at ' + line if line else ''}: {arrived / 2**10:,.0f} KiB arrived meanwhile",
            confidence=0.9,
            owner=CAUSE.owner,
            culprits=(Culprit(pid=rank.pid, rank=rank.rank, frame=line),),
            evidence=(
                case.saw("socket", f"pid {rank.pid}", "bytes arrive", f"{arrived:,} bytes", "0 would mean a hang"),
                case.saw("stack", f"pid {rank.pid}", "waits for the network", line or "?", "training code"),
            ),
        )
    return None


def _arrived(case: Case, pid: int) -> int:
    """Bytes received on TCP sockets of the process that a thread waited on."""
    total = 0.0
    for key in case.history.entities(Descriptor):
        if key[0] != pid:
            continue
        grown = case.history.growth(
            Descriptor,
            *key,
            of=lambda file: (
                float(file.socket.received_bytes) if file.socket and file.socket.received_bytes is not None else None
            ),
            seconds=WINDOW_SECONDS,
        )
        total += grown[0] if grown else 0.0
    return int(total)
