"""The edge "waits for the GPU": a thread in a CUDA synchronisation spins in user space, at a full core, and runs no Python.

In /proc it looks like a computation, in a stack like a line that never ends. What it waits for is told by the card: at work
the thread will be let go on, with a kernel that does nothing it will not. Below ``backward`` it is autograd's own thread
that spins, while the training thread sleeps.
"""

import re
from collections.abc import Iterable

from perfwatch.text import duration
from perfwatch.triage.cards.gpu import Regime, contradicted, kernels, polls, regimes, unseen
from perfwatch.triage.cards.whose import cards_of, name_of, shared
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import Motion, motion, python_threads, stacks_of
from perfwatch.triage.moving.thresholds import RUNS_SHARE
from perfwatch.triage.moving.work import newest_flow
from perfwatch.triage.roles.job import Job
from perfwatch.triage.shares.thresholds import NEARLY_ALL
from perfwatch.triage.waits.node import End, Found, Node, led_to, node_of, threads_of, waited_on, waits_forever
from perfwatch.triage.waits.threads import in_native_code
from perfwatch.triage.words.code import calling_line, names
from perfwatch.triage.words.frames import any_tag, tags
from perfwatch.verdict import Missing
from perfwatch_probes import readings as r

AUTOGRAD_THREADS = "pt_autograd"  # how torch names the threads of its engine (torch/csrc/autograd/engine.cpp)
BEGUN_SECONDS = 0.0005  # of run time: a thread of the engine has run for 0.1 ms before its first work (measured), for 2 ms after a step
UNBROKEN_SECONDS = 3.0  # as long as a step may be late before it is missed
MOSTLY = 0.6  # of the samples
OTHER_PHASES = ("autotune", "compile", "import", "loader_wait")
DEVICE_FILES = "/dev/nvidia"
# The driver's own functions, where a thread stands in it; an NVMe disk's and those of NFS (``rpc_wait_bit_killable``) begin alike.
DRIVER_WAITS = re.compile(r"^(nv(?!me)|_nv|uvm|os_acquire|rm_|rpc(?!_))")
STANDS_SECONDS = 1.0  # four ranks at once were seen in state D in os_acquire_rwlock_read that had run 0.03 s before
# Calls that wait for the device to give a value; on a tensor in host memory they return at once.
SYNC_CALLS = frozenset(
    "item cpu tolist numpy nonzero synchronize masked_select unique unique_consecutive argwhere bincount float".split()
)
# The same without a call of that name: a copy to the host, or a branch on what a tensor holds.
SYNC_TEXTS = re.compile(
    r"\.to\(\s*[\"']cpu|device\s*=\s*[\"']cpu[\"']|^\s*(?:if|while|assert)\b.*\b(?:isnan|isinf|isfinite|any|all|equal|allclose)\("
)


def edge(history: History, job: Job, node: Node) -> Found | None:
    """Where a thread that spins (or sleeps) for its card leads; None for every other thread."""
    if in_driver(history, node):
        return "the GPU driver, which does not answer", (), End("driver", node)
    member = job.members.get(node.pid)
    pid = member.rank_pid if member is not None and member.rank_pid is not None else node.pid
    cards = regimes(history, pid)
    if not cards:
        return _unseen(history, pid, node)
    engine = autograd_thread(history, job, node)
    if engine is not None:
        return led_to([engine], ", which runs the backward pass")
    card = awaited(history, node, cards)
    if card is None:
        return _behind_another(history, job, node)
    does = "whose kernel only polls" if card.polls else "which is at work"
    does = "whose kernel does not end" if card.kind == "spin" else does
    does = "which other jobs use as well" if others_work(history, card) else does
    return f"{name_of(history, card.uuid)}, {does}", (), End("gpu", node, detail=card.uuid)


def _behind_another(history: History, job: Job, node: Node) -> Found | None:
    """A thread that asks something of the driver while another of its process waits for the card that both use.

    The driver copies to pageable memory while it holds the context's lock (measured: a launch slept in a futex for as long as
    another thread stood in ``.item()``). Of a card that works this lasts for a moment.
    """
    if not (waits_forever(node) and polls(history, node.pid) and in_native_code(history, node)):
        return None
    first = [one for one in waiting_for_cards(history, job, node.pid) if one.tid != node.tid]
    return led_to(first, ", which waits for the card") if first else None


def waiting_for_cards(history: History, job: Job, pid: int) -> list[Node]:
    """The Python threads of a process that wait for its cards."""
    cards = regimes(history, pid)
    nodes = (node_of(history, job, pid, tid) for tid in python_threads(history, pid) if cards)
    return [node for node in nodes if in_sync(history, node.stack) and awaited(history, node, cards) is not None]


def _unseen(history: History, pid: int, node: Node) -> Found | None:
    """A thread that stays at a synchronisation of a card which cannot be read."""
    asleep = waits_forever(node)  # an event that was made to block does not spin
    if not asleep and not (_spins(node.state, node.motion) and _stays(node)):
        return None
    named = "device_sync" in node.inner  # torch's own function for it: there is a card, whether we see it or not
    known = named or ((cards_of(history, pid).uuids or unseen(history, pid)) and in_sync(history, node.stack))
    return ("its GPU, which could not be read", (), End("gpu", node)) if known else None


def _on_device(history: History, node: Node) -> bool:
    """True if a thread is blocked in a call on the driver's files, as in a context that was made to wait without spinning."""
    return any(file.target.startswith(DEVICE_FILES) for file in waited_on(history, node))


def in_driver(history: History, node: Node) -> bool:
    """True if a thread is in an uninterruptible call into the driver, and has been for a while: any call is in state D for a moment."""
    ago, share = node.motion.ran_ago_seconds, node.motion.run_share or 0.0
    lately = share > RUNS_SHARE if ago is None else ago < STANDS_SECONDS
    if node.state != "D" or node.thread is None or lately:
        return False
    return _on_device(history, node) or bool(DRIVER_WAITS.search(node.thread.wchan or ""))


def awaited(history: History, node: Node, cards: Iterable[Regime]) -> Regime | None:
    """The card that a thread waits for, or None where it is not known to wait for one."""
    syncs = in_sync(history, node.stack)
    asleep = (node.state != "D" and _on_device(history, node)) or (syncs and waits_forever(node))
    if not asleep and not _spins(node.state, node.motion):
        return None
    engine = node.thread is not None and node.thread.name.startswith(AUTOGRAD_THREADS)
    certain = cards_of(history, node.rank_pid or node.pid).certain
    for card in cards:
        if (card.kind == "spin" or card.polls) and (syncs or engine or certain) and (asleep or _stays(node)):
            return card
        served = syncs if card.kind == "wait" else (engine or _mostly_waits(history, node))
        if card.kind not in ("work", "wait"):
            continue
        if (syncs and _stays(node)) if shared(history, card.uuid) else served:
            return card
    return None


def others_work(history: History, card: Regime) -> bool:
    """True if a card works, and perhaps for other jobs alone: what it does says nothing about a thread that waits for it."""
    return card.kind in ("work", "wait") and not card.polls and shared(history, card.uuid)


def _mostly_waits(history: History, node: Node) -> bool:
    """True if a thread is nearly always at a call that waits for the device, or for room in its queue."""
    looks = [one.reading for one in stacks_of(history, node.pid, node.tid)]
    total = sum(look.samples for look in looks)
    if any(any_tag(tags(look), *OTHER_PHASES) for look in looks):
        return False
    waits = sum(look.samples for look in looks if in_sync(history, look) or "graph_replay" in tags(look))
    return total > 0 and waits >= MOSTLY * total


def in_sync(history: History, stack: r.Stack | None) -> bool:
    """True if a stack is at a call that waits for the device: in torch's own function for it, or at a line that calls one."""
    if stack is None:
        return False
    line = calling_line(history, stack)  # none inside another function, which the line calls too
    waits = line is not None and (
        not names(line.calls).isdisjoint(SYNC_CALLS) or SYNC_TEXTS.search(line.text) is not None
    )
    return waits or "device_sync" in tags(stack)


def autograd_thread(history: History, job: Job, node: Node) -> Node | None:
    """The thread of torch's engine that runs while this one sleeps in ``backward``."""
    if not any_tag(node.inner, "backward") or node.state == "R":
        return None
    engine = (
        one for one in threads_of(history, node.pid) if one.tid != node.tid and one.name.startswith(AUTOGRAD_THREADS)
    )
    spinning = (one for one in engine if _spins(one.state, motion(history, one.pid, one.tid)))
    return next((node_of(history, job, one.pid, one.tid) for one in spinning), None)


def engine_share(history: History, pid: int, seconds: float) -> float:
    """Of a core, what the threads of torch's engine use: the backward pass does not run in the thread that asks for it."""
    return sum(motion(history, pid, tid, seconds).wanted_share for tid in engine_threads(history, pid))


def spin_for_cards(history: History, job: Job, pid: int) -> list[int]:
    """The threads that wait for a card which only polls: of torch's engine, and those that stay at a synchronisation."""
    if not polls(history, pid):
        return []
    return [*engine_threads(history, pid), *(one.tid for one in waiting_for_cards(history, job, pid))]


def engine_threads(history: History, pid: int) -> list[int]:
    """The threads in which torch's engine runs the backward pass of a process, those that were seen.

    torch makes one for each card that it sees; of a training on the CPU it has nothing to do.
    """
    engine = (one for one in threads_of(history, pid) if one.name.startswith(AUTOGRAD_THREADS))
    return [one.tid for one in engine if one.run_seconds is None or one.run_seconds >= BEGUN_SECONDS]


def served(history: History, pid: int, tid: int, job: Job) -> tuple[bool, str] | None:
    """Of a training thread that waits for its card: whether the card does something for it, and what; None for any other."""
    node = node_of(history, job, pid, tid)
    cards = regimes(history, pid)
    card = awaited(history, autograd_thread(history, job, node) or node, cards) if cards else None
    if card is None:
        return None
    name = name_of(history, card.uuid)
    if card.polls and card.kind != "spin":
        under_way = newest_flow(history, pid)
        travels = under_way is not None and not under_way.silent
        return (True, f"{name} waits for data, which comes: {under_way.shown()}") if under_way and travels else None
    if others_work(history, card):
        stands = node.motion.seconds >= UNBROKEN_SECONDS
        return (False, f"it stays at a line that waits for {name}, which other jobs use as well") if stands else None
    if card.kind != "spin":
        return True, f"{name} is working on it ({card.shown()})"
    seen = kernels(history, card.uuid)
    if seen.go_on:
        return True, f"{name}: long kernels, the last one ended {duration(seen.since_seconds)} ago"
    if seen.since_seconds >= UNBROKEN_SECONDS:
        return False, f"it waits for {name}, whose kernel has not ended for {duration(seen.since_seconds)}"
    return None


def unmonitored(history: History, pids: Iterable[int]) -> tuple[Missing, ...]:
    """What is not seen of the cards of these processes: of those older than Hopper, once for each kind, and where units tell nothing."""
    uuids = dict.fromkeys(uuid for pid in pids for uuid in cards_of(history, pid).uuids)
    cards = (history.latest(r.Gpu, uuid) for uuid in uuids)
    zeros = tuple(
        Missing(
            witness="gpm",
            reason=f"the units of {name_of(history, uuid)} tell that no kernel ran, against utilisation and power: they are not believed",
            advice="does another profiler (DCGM, ncu, nsys) use its counters?",
        )
        for uuid in uuids
        if contradicted(history, uuid)
    )
    names = dict.fromkeys(card.reading.name for card in cards if card is not None and card.reading.gpm is False)
    return zeros + tuple(
        Missing(
            witness="gpm",
            reason=f"{name} has no performance monitoring (Hopper and newer have): what its multiprocessors, tensor cores and "
            "memory do is not seen",
            advice="perfwatch capture torch shows its kernels",
        )
        for name in names
    )


def _spins(state: str | None, moved: Motion) -> bool:
    return moved.wanted_share > RUNS_SHARE or (moved.run_share is None and state == "R")


def _stays(node: Node) -> bool:
    """At one line; a thread without Python has none."""
    return node.motion.samples == 0 or node.motion.steady_share >= NEARLY_ALL
