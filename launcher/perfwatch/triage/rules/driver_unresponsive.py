"""The GPU driver does not answer any more."""

from collections.abc import Collection

from perfwatch.triage.cards.spinning import BY_DEVICE
from perfwatch.triage.cards.whose import Cards, cards_of, lost_cards, name_of, with_wholes
from perfwatch.triage.cards.xids import HARDWARE, announced, of_job
from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.history import Seen
from perfwatch.triage.patience import STRUCTURAL_SECONDS
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits.devices import in_driver
from perfwatch.verdict import Alternative, Evidence, Outcome
from perfwatch_probes.readings import Gpu, GpuSample, GpuSilence

CAUSE = Cause("driver_unresponsive", "hung", "gpu", (Gpu, GpuSilence))

SILENT_SECONDS = 5.0  # an answer takes microseconds, with the driver loading a second or two
FRESH_SECONDS = 10.0  # a silence that was not confirmed for so long is over
ALONE = 0.85  # nothing but our own call speaks for it: the driver may only be busy
SOMEBODYS = (
    0.55  # others answer, and nobody knows which of them is the job's: a suspicion, behind what is seen of those
)


def judge(case: Case) -> Outcome:
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
        for card in lost:
            name = name_of(case.history, card.reading.uuid)
            evidence.append(
                case.saw("nvml", name, f"{name} is lost:", "the driver no longer reaches it", "answers", card.at)
            )
        if inside:
            where = chain.end.node.thread.wchan if chain.end.node.thread else None
            evidence.append(
                case.saw("syscall", f"pid {chain.end.node.pid}", "stands in the driver", f"state D, {where}", "returns")
            )
        silent_cards = {one.reading.uuid for one in silences} | {card.reading.uuid for card in lost}
        whose = 1.0 if inside or cards.certain else BY_DEVICE if _all(case, cards, silent_cards) else SOMEBODYS
        if whose < 1.0:
            seen = case.saw(
                "binding", f"pid {rank.pid}", "whose card it is was inferred", cards.how or "not known", "known"
            )
            evidence.append(seen)
        for one in errors:
            evidence.append(case.saw(one.source, name_of(case.history, one.card), "error", one.shown(), "none", one.at))
        return hung(
            case,
            CAUSE.name,
            chain,
            owner=CAUSE.owner,
            summary=("" if lost else "the GPU driver does not answer: ")
            + "; ".join(f"{e.claim} {e.observed}" for e in evidence[:2]),
            patience=STRUCTURAL_SECONDS,
            silent=max(silent, chain.end.silent_seconds or 0.0) if inside else silent,
            evidence=tuple(evidence),
            ceiling=min(whose, 1.0 if errors or inside or lost else ALONE),
            alternatives=(
                Alternative(cause="stuck_kernel", refuted_by="there the driver answers and shows a resident kernel"),
            ),
            next=("dmesg | grep -i xid, then drain the node and reset the card",),
        )
    return None


def _all(case: Case, cards: Cards, silent: Collection[str | None]) -> bool:
    """Whether none of the cards that a rank may use answers."""
    return not all(silent) or all(not with_wholes(case.history, (uuid,)).isdisjoint(silent) for uuid in cards.uuids)


def _silences(case: Case) -> list[Seen[GpuSilence]]:
    """Calls that have not come back; the newest word about each. A sample after it means that the driver answers again."""
    found = []
    for key in case.history.entities(GpuSilence):
        seen = case.history.latest(GpuSilence, *key)
        if seen is None or case.at - seen.at > FRESH_SECONDS or seen.reading.waited_seconds < SILENT_SECONDS:
            continue
        cards = [seen.reading.uuid] if seen.reading.uuid else [one for (one,) in case.history.entities(GpuSample)]
        answers = [last.at for uuid in cards if (last := case.history.latest(GpuSample, uuid)) is not None]
        if not any(at > seen.at for at in answers):
            found.append(seen)
    return found


def _silent(case: Case, seen: Seen[GpuSilence]) -> Evidence:
    state = f", state {seen.reading.state}" if seen.reading.state else ""
    return case.saw(
        "nvml",
        name_of(case.history, seen.reading.uuid) if seen.reading.uuid else "driver",
        f"the call {seen.reading.call!r} does not come back",
        f"for {seen.reading.waited_seconds + case.at - seen.at:.0f} s{state}",
        "within 0.1 s",
        seen.at,
    )


RULES = (Rule(CAUSE, judge),)
