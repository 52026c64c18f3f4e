"""A thread that waits for its card while the card has nothing to do: what the stream waits for does not come.

A stream stops at a wait for a value in memory (``cuStreamWaitValue32``), for an event of another stream or process, or at a host
function that does not return. No kernel is resident then, and the thread spins in its synchronisation as it would for one.
"""

from perfwatch.triage.cards.gpu import regimes
from perfwatch.triage.cards.spinning import acts
from perfwatch.triage.cards.whose import name_of
from perfwatch.triage.case import Case
from perfwatch.triage.graph.claims.gpu import idle_card_seconds
from perfwatch.triage.hang import hung, who
from perfwatch.triage.moving.memory import engine_quiet
from perfwatch.triage.moving.motion import dominant, motion
from perfwatch.triage.patience import temporal
from perfwatch.triage.waits.callbacks import SPINS, STAYS
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.devices import SYNC_CALLS, in_sync
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Alternative, Finding
from perfwatch_probes import readings as r

CAUSE = "stuck_kernel"
SURE = 0.8  # that the thread is in the driver, and not at work of its own, is told by the text of its line
WATCHED_SECONDS = 10.0  # of the card itself, beside what the kernel remembers of torch's engine
HELPS = 0.05  # of a core: such a thread may be the host function that the stream waits for
# What a line may call beside a synchronisation: nothing of it computes for long without a frame of its own.
_HARMLESS = frozenset("print round format int str len append time perf_counter monotonic write detach".split())
# Of what ``SYNC_CALLS`` names these compute on the host, where the tensor is in its memory.
_COMPUTE = frozenset("masked_select unique unique_consecutive argwhere bincount nonzero tolist numpy".split())


def idle_stream(case: Case) -> Finding | None:
    """Fires on the one rank of a job that waits for its card, which has nothing to do, with nobody at work who could change that."""
    if len(case.ranks) != 1 or (case.job.world_size or 1) > 1:
        return None  # copies between cards wait for values that other ranks write
    for chain in case.still_chains:
        node = chain.start
        idle = idle_card_seconds(case, node.pid) if _stands_in_sync(case, chain) else None
        if idle is None or acts(case, node, idle) or _helped(case, node):
            continue
        card = regimes(case.history, node.pid)[0]
        name, line = name_of(case.history, card.uuid), show(node.frame)
        return hung(
            case,
            CAUSE,
            chain,
            owner="gpu",
            summary=f"{who(chain)} waits for {name}, which has had nothing to do for {idle:.0f} s: what its stream waits for does "
            "not come (a value in memory, an event, a host function)",
            patience=temporal(case),
            silent=_silent_seconds(case, idle),
            ceiling=SURE,
            evidence=(
                case.saw(
                    card.source,
                    name,
                    "has nothing to do while the thread waits for it",
                    f"no kernel for {idle:.1f} s ({card.shown()})",
                    "a kernel resident while anybody waits",
                ),
                case.saw(
                    "schedstat",
                    f"pid {node.pid} thread {node.tid}",
                    "spins in a synchronisation",
                    f"{node.motion.run_share or 0.0:.0%} of a core at one line",
                    "returns within a step",
                    node.thread_at,
                ),
            ),
            alternatives=(
                Alternative(cause="computing_on_host", refuted_by=f"{line} calls nothing that computes on the host"),
            ),
            next=(
                f"look at what the streams were told to wait for before {line}",
                "cuda-gdb -p PID, then: info cuda streams",
            ),
        )
    return None


def _stands_in_sync(case: Case, chain: Chain) -> bool:
    node, source = chain.start, line_of(case.history, chain.start.frame)
    if (chain.end.node.pid, chain.end.node.tid) != (node.pid, node.tid) or (node.motion.run_share or 0.0) < SPINS:
        return False
    if node.motion.samples < 2 or node.motion.steady_share < STAYS or not in_sync(case.history, node.stack):
        return False
    called = names(source.calls) if source is not None else frozenset[str]()
    waits = SYNC_CALLS - _COMPUTE
    return "device_sync" in node.inner or (not called.isdisjoint(waits) and called <= waits | _HARMLESS)


def _helped(case: Case, node: Node) -> bool:
    """Whether another thread of the process is at work, and not in a synchronisation itself."""
    for pid, tid in case.history.of(r.Thread, node.pid):
        if tid == node.tid or (motion(case.history, pid, tid).run_share or 0.0) < HELPS:
            continue
        stack = dominant(case.history, pid, tid)
        if stack is None or not in_sync(case.history, stack.reading):
            return True
    return False


def _silent_seconds(case: Case, idle: float) -> float:
    """For how long: as watched, or as torch's engine remembers, once the card was watched for a while."""
    engine = engine_quiet(case, case.ranks[0])
    return max(idle, engine[0]) if engine is not None and idle >= WATCHED_SECONDS else idle
