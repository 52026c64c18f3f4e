"""A thread writes into a full pipe that nobody reads, or reads a pipe into which nobody writes.

What it means
    Often the job's own stdout: whoever started it took the pipe and stopped reading. Or a FIFO that has no other end.

How it is recognised
    The wait chain ends in a read or write on a pipe or FIFO; who holds the other end is known from every process' open files.

What it is mistaken for
    A slow reader: the writer runs now and then. A queue between the job's own processes: the chain goes on to the other end.

What to do next
    Read the pipe (or kill the reader, if it is stuck), redirect the job's output to a file.
"""

from perfwatch.probes.readings import Descriptor, Thread
from perfwatch.triage.case import Case
from perfwatch.triage.edges import STREAMS
from perfwatch.triage.hang import STRUCTURAL_SECONDS, hung, temporal, who
from perfwatch.triage.rule import Cause
from perfwatch.triage.verdict import Alternative, Outcome

CAUSE = Cause("blocked_pipe", "hung", "user_code", (Thread, Descriptor))


def judge(case: Case) -> Outcome:
    """Fires on a chain that ends in a pipe."""
    for chain in case.still_chains:
        end = chain.end
        if end.kind not in ("pipe_full", "pipe_empty") or not end.still or chain.through & {"child", "pool"}:
            continue
        holders = ", ".join(f"pid {pid}" for pid in end.others[:3])
        wait = end.node.wait
        opens = wait is not None and wait.kind == "open"
        writes = end.kind == "pipe_full" or (wait is not None and wait.writes)
        far = "read" if writes else "write"
        inherited = end.descriptor is not None and set(end.descriptor.writers) - {end.node.pid}
        missing = f"nobody else holds its {far} end"
        if holders:
            missing = f"the {'reader' if writes else 'writer'} is {holders}"
        elif inherited and not writes:
            missing = "those who hold its write end wait for this reader themselves"
        name = end.descriptor.target if end.descriptor else end.detail
        stream = STREAMS.get(end.descriptor.fd) if end.descriptor else None
        which = f" ({stream})" if stream else ""
        return hung(
            case,
            CAUSE.name,
            chain,
            owner=CAUSE.owner,
            summary=f"{who(chain)} {_does(opens, writes)} {name}{which}; {missing}",
            patience=STRUCTURAL_SECONDS if not holders or writes else temporal(case),
            evidence=(
                case.saw("pipe", name, "the other end", missing, "somebody reads" if writes else "somebody writes"),
            ),
            alternatives=(Alternative(cause="slow_output", refuted_by="not one write went through meanwhile"),),
            next=(f"ls -l {name}" if name.startswith("/") else f"ls -l /proc/{end.node.pid}/fd",),
        )
    return None


def _does(opens: bool, writes: bool) -> str:
    if opens:
        return f"waits to open for {'writing' if writes else 'reading'} the FIFO"
    return "writes into the full pipe" if writes else "reads the empty pipe"
