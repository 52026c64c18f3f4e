"""A full pipe between two processes of the job: one is blocked writing into it, and the other, who could read it, stands at something else.

A worker of a loader or a pool that does not take what it is sent has a rule of its own, ``stuck_worker``.
"""

from itertools import pairwise

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.patience import STRUCTURAL_SECONDS, outlasts, temporal, wakes_soon
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import NATIVE_WAIT, culprit, node_of, silence
from perfwatch.triage.waits.threads import OTHERS_MOVE
from perfwatch.triage.waits.undrained import Undrained, blocked_writing, takes, undrained
from perfwatch.verdict import Alternative, Finding

ELSEWHERE = ("dead", "stopped", "traced", "cycle")  # ends that say themselves why nobody reads
GUESSED = 0.7  # the reader may go on: other threads of it move, or what it waits for could not be seen


def unread(case: Case, chain: Chain) -> Undrained | None:
    """Of a chain through a full pipe to a reader that stands, or to what that waits for in turn: who writes, who does not read."""
    end = chain.end
    if end.kind in ELSEWHERE or not end.still or wakes_soon(case, end):
        return None
    for link, following in pairwise(chain.links):
        reader = case.job.members.get(following.pid)
        beyond = end.node.pid == following.pid or case.job.branch(end.node.pid, following.pid) is not None
        if following.depth != link.depth + 1 or link.pid == following.pid or reader is None or not beyond:
            continue
        writer = node_of(case.history, case.job, link.pid, link.tid)
        other = node_of(case.history, case.job, following.pid, following.tid)
        pipe = blocked_writing(case, writer)
        if pipe is None or other.pid not in pipe.readers or takes(case, other, pipe):
            continue
        if reader.role not in ("worker", "pool_worker") and not case.job.of_multiprocessing(reader):
            return Undrained(writer, other, pipe, following.waits_for)
    return None


def of_its_pipe(case: Case, chain: Chain) -> bool:
    """Whether it is a full pipe that holds everybody up: who does not read it is no child that is merely waited for."""
    return undrained(case, chain) is not None or unread(case, chain) is not None


def not_read(case: Case, chain: Chain) -> Finding | None:
    """Both ends of such a pipe, by name."""
    found = unread(case, chain)
    if found is None:
        return None
    writer, reader, end = found.writer, found.reader, chain.end
    name = " ".join(" ".join(case.job.members[reader.pid].process.command).split())[:80]
    certain = outlasts(case, end) or (end.kind == "lock" and end.detail != OTHERS_MOVE)
    ended = found.ended(case, chain)
    told = hung(
        case,
        "blocked_pipe",
        ended,
        owner="user_code",
        summary=f"{who(ended)} writes into the full pipe {found.pipe.target}, which pid {reader.pid} ({name}) does not read: "
        f"it waits for {found.reader_waits_for}",
        patience=STRUCTURAL_SECONDS if certain else temporal(case),
        silent=min(silence(case.history, writer) or 0.0, end.silent_seconds or 0.0),
        ceiling=GUESSED if end.detail == OTHERS_MOVE or end.kind in ("unknown", NATIVE_WAIT) else 1.0,
        evidence=(
            case.saw(
                "pipe",
                found.pipe.target,
                f"is full; pid {reader.pid} holds the reading end",
                f"it is blocked in {reader.wait.call if reader.wait else '?'}, not on this pipe",
                "it is read",
            ),
        ),
        alternatives=(
            Alternative(
                cause="blocked_child", refuted_by=f"pid {writer.pid} waits for room in the pipe, not for an end"
            ),
            Alternative(cause="slow_output", refuted_by="not one write went through meanwhile"),
        ),
        next=(
            f"ps -o pid,stat,wchan:30,args -p {reader.pid}",
            "why does it not read? kill it, or write with a time limit",
        ),
    )
    return msgspec.structs.replace(told, culprits=(culprit(reader), *told.culprits))
