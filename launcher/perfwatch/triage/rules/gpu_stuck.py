"""The hangs of a GPU: a kernel or a stream that does not end, and a driver that does not answer."""

import msgspec

from perfwatch.text import duration
from perfwatch.triage.cards.accelerated import inferred
from perfwatch.triage.cards.gpu import (
    Kernels,
    Regime,
    baseline,
    idle_card_seconds,
    kernels,
    regime,
    regimes,
    stands_out,
)
from perfwatch.triage.cards.whose import cards_of, index_of, lost_cards, name_of, with_wholes
from perfwatch.triage.cards.xids import HARDWARE, announced, of_job
from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, stands_in_sync
from perfwatch.triage.history import Seen
from perfwatch.triage.moving.memory import engine_quiet, unfed
from perfwatch.triage.patience import STRUCTURAL_SECONDS, temporal
from perfwatch.triage.rule import Cause, Facts, Rule
from perfwatch.triage.shares.thresholds import BEYOND, ENOUGH_SAMPLES, LATELY_SECONDS, NOW_SECONDS
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.devices import SYNC_CALLS, engine_threads, in_driver, in_sync
from perfwatch.triage.waits.node import Node
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import show
from perfwatch.verdict import Abstention, Evidence, Finding, Level, Missing, Outcome
from perfwatch_probes.readings import Gpu, GpuSample, GpuSilence, Process, Thread

STUCK_KERNEL = Cause("stuck_kernel", "hung", "gpu", (GpuSample, Thread))
DRIVER_UNRESPONSIVE = Cause("driver_unresponsive", "hung", "gpu", (Gpu, GpuSilence))
DOES_NOT_ANSWER = DRIVER_UNRESPONSIVE.line("""
    [{there:if}the GPU driver does not answer: ]{said}
    - not stuck_kernel: there the driver answers and shows a resident kernel
    - next: dmesg | grep -i xid, then drain the node and reset the card
""")
DOES_NOT_FINISH = STUCK_KERNEL.line("""
    a kernel on {name} has not ended for {lasts:time} and moves no data ({shown}); {who} waits for it
    - saw {source} of {name}: a kernel is resident and no data moves | {shown} | {usually}
    - not gpu_bound: nothing moves to or from the card's memory, the host or another card
    - not endless_python: a kernel is resident on {name}, and the line waits for it
    - next: look at what is launched before {line}
    - next: compute-sanitizer --tool synccheck python ... on a short run
""")
STREAM_WAITS = STUCK_KERNEL.line("""
    {who} waits for {name}, which has had nothing to do for {idle:time}: its stream waits for a value in memory, an event or a host
    function
    - saw {source} of {name}: has nothing to do while the thread waits for it | no kernel for {idle:time} ({shown})
      | a kernel resident while a thread waits
    - not computing_on_host: {line} calls nothing that computes on the host
    - next: look at what the streams were told to wait for before {line}
    - next: cuda-gdb -p PID, then: info cuda streams
""")

# Seconds of the card itself, beside what the kernel of the host remembers: an evaluation has no backward pass either
WATCHED_SECONDS, WATCHED_LONGER_SECONDS = 3.0, 10.0
ANSWER_SECONDS = 5.0  # an answer of the driver takes microseconds, with the driver loading a second or two
# What a line may call beside a synchronisation: nothing of it computes for long without a frame of its own.
_HARMLESS = frozenset("print round format int str len append time perf_counter monotonic write detach".split())
# Of what ``SYNC_CALLS`` names these compute on the host, where the tensor is in its memory.
_COMPUTE = frozenset("masked_select unique unique_consecutive argwhere bincount nonzero tolist numpy".split())


def stuck_kernel(case: Case) -> Outcome:
    """Fires on a training thread that waits for a card whose kernel moves nothing, or whose stream does not go on."""
    at_card = [chain for chain in case.still_chains if chain.end.kind == "gpu"]
    waiting = [(chain, regime(case.history, chain.end.detail)) for chain in at_card if chain.end.detail]
    if at_card and not waiting:
        lacking = case.lacks("gpm") or case.lacks("gpu") or Missing(witness="gpu", reason="the card was not read")
        return Abstention(cause=STUCK_KERNEL.name, missing=(lacking,))
    # Who waits in a collective waits for its card as well, and that may hold it up by a kernel of its own.
    waiting += [(chain, card) for chain in case.still_chains if (card := _own_card(case, chain)) is not None]
    spinning = [(chain, card) for chain, card in waiting if card.kind == "spin"]
    if not spinning:
        return _idle_stream(case)
    if not case.job.covered:
        here = f"{len(case.job.ranks)} of {case.job.world_size} ranks are on this machine"
        reason, advice = f"{here}: the kernel may wait for another", "run perfwatch attach on the other nodes too"
        return Abstention(cause=STUCK_KERNEL.name, missing=(Missing(witness="ranks", reason=reason, advice=advice),))
    if len(case.ranks) == 1:
        return _stuck(case, *spinning[0])
    if len(spinning) < len(case.ranks):
        return None
    # Of several ranks that all wait, the one whose card looks different is not in the others' collective.
    cards = [card for _, card in spinning]
    odd = [(chain, card) for chain, card in spinning if card.is_no_collective]
    odd = odd or [(chain, card) for chain, card in spinning if len(cards) > 2 and stands_out(card, cards)]
    return _stuck(case, *odd[0]) if len(odd) == 1 else None


def _own_card(case: Case, chain: Chain) -> Regime | None:
    """The one card, known to be its own, of a rank that waits in a collective."""
    cards = regimes(case.history, chain.start.pid) if chain.end.kind == "collective" else []
    return cards[0] if len(cards) == 1 and cards_of(case.history, chain.start.pid).certain else None


def driver_unresponsive(case: Case) -> Outcome:
    """Fires on ranks that stand still while the driver does not answer."""
    errors = [one for one in announced(case) if one.kind == HARDWARE and of_job(case, one)]
    for rank in case.ranks:
        chain = case.chains[rank.pid]
        cards = cards_of(case.history, rank.pid)
        own = with_wholes(case.history, cards.uuids)
        silences = [one for one in _silences(case) if not one.reading.uuid or one.reading.uuid in own]
        lost = [one for one in lost_cards(case.history) if one.reading.uuid in own]
        inside = in_driver(case.history, chain.end.node)
        deaf = bool(own) and case.progress[rank.pid].kind == "still" and bool(silences or lost)
        if not inside and not deaf:
            continue
        waited = [one.reading.waited_seconds + case.at - one.at for one in silences]
        silent = max([*waited, *(case.at - card.at for card in lost)], default=0.0)
        evidence = [_silent(case, one) for one in silences]
        for name, at in ((name_of(case.history, card.reading.uuid), card.at) for card in lost):
            claim = f"{name} is lost:"
            evidence.append(case.saw("nvml", name, claim, "the driver no longer reaches it", "answers", at))
        if inside:
            node = chain.end.node
            where = f"state D, {node.thread.wchan if node.thread else None}"
            evidence.append(case.saw("syscall", f"pid {node.pid}", "stands in the driver", where, "returns"))
        quiet = {one.reading.uuid for one in silences} | {card.reading.uuid for card in lost}
        all_silent = not all(quiet) or all(with_wholes(case.history, (uuid,)) & quiet for uuid in cards.uuids)
        # Level.LOW: other cards answer, and it is not known which of them the job uses: a suspicion, behind what is seen of those
        binding = 1.0 if inside or cards.certain else Level.HIGH if all_silent else Level.LOW
        evidence += [inferred(case, rank.pid)] if binding < 1.0 else []
        for one in errors:
            evidence.append(case.saw(one.source, name_of(case.history, one.card), "error", one.shown(), "none", one.at))
        said = "; ".join(f"{one.claim} {one.observed}" for one in evidence[:2])
        alone = not (errors or inside or lost)  # with our own call alone it may only be busy
        return hung(
            case,
            DOES_NOT_ANSWER,
            chain,
            patience=STRUCTURAL_SECONDS,
            silent=max(silent, chain.end.silent_seconds or 0.0) if inside else silent,
            evidence=tuple(evidence),
            ceiling=min(binding, Level.HIGH if alone else 1.0),
            **Facts(said=said, there=not lost),
        )
    return None


# A kernel that does not end


def _stuck(case: Case, chain: Chain, card: Regime) -> Outcome:
    name, seen = name_of(case.history, card.uuid), kernels(case.history, card.uuid)
    if _has_come_back(case, chain.end.node, seen.since_seconds):
        return None
    silent, evidence = _silent_seconds(case, chain, card, seen)
    usual, basis = _usual_seconds(case, chain.start.pid, seen)
    by_units = card.source == "gpm"  # without units no end of a kernel is seen
    may_end = card.computes or not by_units or usual is None
    least, watched = (temporal(case), WATCHED_LONGER_SECONDS) if may_end else (STRUCTURAL_SECONDS, WATCHED_SECONDS)
    patience = max(least, BEYOND * (usual or seen.longest_seconds))
    unwatched = watched - seen.since_seconds
    certain = cards_of(case.history, chain.start.pid).certain
    guessed = () if certain else (inferred(case, chain.start.pid),)
    usually = baseline(case.history, card.uuid, NOW_SECONDS) or "data moves while a kernel is resident"
    found = hung(
        case,
        DOES_NOT_FINISH,
        chain,
        patience=patience,
        silent=min(silent, patience - unwatched) if unwatched > 0.0 else silent,
        evidence=(*evidence, _spins(case, chain.end.node), *guessed),
        ceiling=min(
            basis,
            Level.HIGH if card.computes or not certain else Level.CERTAIN,
            Level.CERTAIN if by_units else Level.MEDIUM,
        ),
        **Facts(name=name, lasts=silent, shown=card.shown(), source=card.source, usually=usually),
        line=show(chain.start.frame or chain.end.node.frame),
    )
    culprits = tuple(msgspec.structs.replace(one, gpu=index_of(case.history, card.uuid)) for one in found.culprits)
    return msgspec.structs.replace(found, culprits=culprits)


def _usual_seconds(case: Case, pid: int, seen: Kernels) -> tuple[float | None, float]:
    """How long kernels of this run take at most, as far as it is known, and how sure a hang is by that; None if it is not known.

    The card was seen at work before; or the kernel of the host remembers how often torch's engine ran a backward pass, and so how long
    a step took on average.
    """
    if seen.usual_known:
        return seen.longest_seconds, Level.CERTAIN
    process = case.history.latest(Process, pid)
    engines = [case.history.latest(Thread, pid, tid) for tid in engine_threads(case.history, pid)]
    returns = max((one.reading.voluntary_switches or 0 for one in engines if one is not None), default=0)
    if process is None or process.reading.age_seconds is None or returns < ENOUGH_SAMPLES:
        return None, Level.MEDIUM
    return max(seen.longest_seconds, (process.reading.age_seconds + case.at - process.at) / returns), Level.HIGH


def _silent_seconds(case: Case, chain: Chain, card: Regime, seen: Kernels) -> tuple[float, tuple[Evidence, ...]]:
    """For how long it has had no result: as watched, and as the kernel of the host remembers of the threads beside."""
    rank = case.job.members[chain.start.pid]
    fed = unfed(case, rank)
    asleep = (chain.start.motion.ran_ago_seconds or 0.0) if chain.start.tid != chain.end.node.tid else 0.0
    engine = engine_quiet(case, rank)
    if engine is None:
        return max(seen.since_seconds, fed.seconds, asleep), fed.evidence
    age, told = engine
    watched = seen.since_seconds if card.source == "gpm" else min(seen.since_seconds, age)
    return max(watched, fed.seconds, asleep, age), (*fed.evidence, *told)


def _has_come_back(case: Case, node: Node, seconds: float) -> bool:
    """True if the thread wrote or read meanwhile: then it came back from its wait."""
    grown = case.history.growth(
        Thread, node.pid, node.tid, of=lambda t: (t.read_calls or 0) + (t.write_calls or 0), seconds=seconds
    )
    return grown is not None and grown[0] > 0


def _spins(case: Case, node: Node) -> Evidence:
    share = node.motion.wanted_share
    claim = ("spins" if share > 0.0 else "sleeps") + (
        " in a synchronisation" if in_sync(case.history, node.stack) else ""
    )
    entity, observed = f"pid {node.pid} thread {node.tid}", f"{share:.0%} of a core at one line"
    return case.saw("schedstat", entity, claim, observed, "returns within a step", node.thread_at)


# A stream that does not go on


def _idle_stream(case: Case) -> Finding | None:
    """Fires on the one rank of a job that waits for its card, which has nothing to do, while no thread works that could change that.

    A stream stops at a wait for a value in memory (``cuStreamWaitValue32``), for an event of another stream or process, or at a host
    function that does not return. No kernel is resident then, and the thread spins in its synchronisation as it would for one.
    """
    if len(case.ranks) != 1 or (case.job.world_size or 1) > 1:
        return None  # copies between cards wait for values that other ranks write
    for chain in case.still_chains:
        node = chain.start
        idle = idle_card_seconds(case.history, node.pid) if _stands_in_sync(case, chain) else None
        if idle is None or _has_come_back(case, node, idle):
            continue
        card = regimes(case.history, node.pid)[0]
        engine = engine_quiet(case, case.ranks[0])
        return hung(
            case,
            STREAM_WAITS,
            chain,
            patience=temporal(case),
            silent=max(idle, engine[0]) if engine is not None and idle >= WATCHED_LONGER_SECONDS else idle,
            ceiling=Level.HIGH,  # that the thread is in the driver, and not at work of its own, is known from the text of its line
            evidence=(_spins(case, node),),
            **Facts(name=name_of(case.history, card.uuid), idle=idle, source=card.source, shown=card.shown()),
            line=show(node.frame),
        )
    return None


def _stands_in_sync(case: Case, chain: Chain) -> bool:
    source, waits = line_of(case.history, chain.start.frame), SYNC_CALLS - _COMPUTE
    called = names(source.calls) if source is not None else frozenset[str]()
    asks = "device_sync" in chain.start.inner or (not called.isdisjoint(waits) and called <= waits | _HARMLESS)
    return asks and stands_in_sync(case, chain)


# A driver that does not answer


def _silences(case: Case) -> list[Seen[GpuSilence]]:
    """Calls that have not returned; the newest sample of each. A sample of the card after it means that the driver answers again."""
    found = []
    for key in case.history.entities(GpuSilence):
        seen = case.history.latest(GpuSilence, *key)
        if seen is None or case.at - seen.at > LATELY_SECONDS or seen.reading.waited_seconds < ANSWER_SECONDS:
            continue
        cards = [seen.reading.uuid] if seen.reading.uuid else [one for (one,) in case.history.entities(GpuSample)]
        answers = [last.at for uuid in cards if (last := case.history.latest(GpuSample, uuid)) is not None]
        if not any(at > seen.at for at in answers):
            found.append(seen)
    return found


def _silent(case: Case, seen: Seen[GpuSilence]) -> Evidence:
    state = f", state {seen.reading.state}" if seen.reading.state else ""
    name = name_of(case.history, seen.reading.uuid) if seen.reading.uuid else "driver"
    claim = f"the call {seen.reading.call!r} has not returned"
    waited = f"for {duration(seen.reading.waited_seconds + case.at - seen.at)}{state}"
    return case.saw("nvml", name, claim, waited, "within 0.1 s", seen.at)


RULES = (Rule(STUCK_KERNEL, stuck_kernel), Rule(DRIVER_UNRESPONSIVE, driver_unresponsive))
