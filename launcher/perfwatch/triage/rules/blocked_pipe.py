"""A thread writes to a full pipe that no process reads, or reads a pipe that no process writes to."""

from shlex import quote

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, who
from perfwatch.triage.independence import MAY_COME
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal, wakes_soon
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.edges import STREAMS
from perfwatch.triage.waits.node import culprit
from perfwatch.triage.waits.pipes import Undrained, asks_once, held, not_read, other_end, undrained
from perfwatch.triage.waits.workers import idle
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Finding, Outcome
from perfwatch_probes.readings import Descriptor, Thread

CAUSE = Cause("blocked_pipe", "hung", "user_code", (Thread, Descriptor))


def judge(case: Case) -> Outcome:
    """Fires on a chain that ends in a pipe."""
    for chain in case.still_chains:
        if (found := undrained(case, chain)) is not None:
            return _undrained(case, chain, found)
        if (between := not_read(case, chain)) is not None:
            return between
        end = chain.end
        if end.kind not in ("pipe_full", "pipe_empty") or not end.still or "child" in chain.through:
            continue
        if "pool" in chain.through and idle(end.node):
            continue  # a worker of a pool that waits for its next task
        asks = end.kind == "pipe_empty" and asks_once(case, chain)
        if not asks and wakes_soon(case, end):
            continue
        return held(case, chain) or _of_pipe(case, chain, asks)
    return None


def _of_pipe(case: Case, chain: Chain, asks: bool) -> Finding:
    """Of a pipe that stays as it is; ``asks``: the program put a question to whoever is at the other end."""
    end, pipe, wait = chain.end, chain.end.descriptor, chain.end.node.wait
    opens = wait is not None and wait.kind == "open"
    writes = end.kind == "pipe_full" or (wait is not None and wait.writes)
    missing, may_come = other_end(case, end, opens=opens, writes=writes)
    name = pipe.target if pipe else end.detail
    stream = STREAMS.get(pipe.fd) if pipe else None
    which = f" ({stream})" if stream else ""
    return hung(
        case,
        CAUSE.name,
        chain,
        owner=CAUSE.owner,
        summary=f"{who(chain)} {'waits for an answer on' if asks else _does(opens, writes)} {name}{which}; {missing}",
        patience=STRUCTURAL_SECONDS if asks or not may_come else temporal(case),
        ceiling=MAY_COME if may_come else 1.0,
        evidence=(case.saw("pipe", name, "the other end", missing, "it is read" if writes else "it is written to"),),
        alternatives=(Alternative(cause="slow_output", refuted_by="not one write went through meanwhile"),),
        next=(f"ls -l {quote(name)}" if name.startswith("/") else f"ls -l /proc/{end.node.pid}/fd",),
    )


def _undrained(case: Case, chain: Chain, found: Undrained) -> Finding:
    """A program's output fills up while its parent waits for it at something else: both stay for ever."""
    writer, reader = found.writer, found.reader
    stream, pipe = STREAMS[found.pipe.fd], found.pipe.target
    told = hung(
        case,
        CAUSE.name,
        found.ended(case, chain),
        owner=CAUSE.owner,
        summary=f"{who(found.ended(case, chain))} is blocked writing to its {stream}, a full pipe that pid {reader.pid} "
        f"does not read; pid {reader.pid} at {show(reader.frame)} waits for {found.reader_waits_for}",
        patience=STRUCTURAL_SECONDS,
        evidence=(
            case.saw(
                "pipe",
                pipe,
                f"pid {reader.pid} holds the reading end",
                f"it is blocked in {reader.wait.call if reader.wait else '?'} at {show(reader.frame)}, not on this pipe",
                f"it reads {stream} too",
            ),
        ),
        alternatives=(
            Alternative(
                cause="stuck_worker", refuted_by=f"pid {reader.pid} waits for pid {writer.pid}, which cannot go on"
            ),
        ),
        next=(
            f"where pid {writer.pid} is started: {stream}=subprocess.DEVNULL or a file, or a thread that reads it all the while",
        ),
    )
    own = reader.pid == chain.start.pid  # the line that the training thread is at is where to mend it
    both = (culprit(reader), *told.culprits) if own else (*told.culprits, culprit(reader))
    return msgspec.structs.replace(told, culprits=both)


def _does(opens: bool, writes: bool) -> str:
    if opens:
        return f"waits to open for {'writing' if writes else 'reading'} the FIFO"
    return "writes into the full pipe" if writes else "reads the empty pipe"


RULES = (Rule(CAUSE, judge),)
