"""Not all ranks have joined the rendezvous: at least one is missing."""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, silent_seconds, who
from perfwatch.triage.patience import temporal
from perfwatch.triage.ranks.absentee import absent, awaited, blamed, departed, have_met, missing, whole
from perfwatch.triage.ranks.calls import listed, rank_of
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import ENDLESS_SECONDS, End
from perfwatch.triage.waits.other_end import open_seconds
from perfwatch.verdict import Alternative, Culprit, Evidence, Finding, Outcome
from perfwatch_probes.readings import Stack, Thread

CAUSE = Cause("blocked_rendezvous", "hung", "scheduler", (Thread, Stack))

INFERRED = 0.9


def judge(case: Case) -> Outcome:
    """Fires on a training thread that stays in the rendezvous."""
    for rank in case.ranks:
        chain = case.chains[rank.pid]
        if chain.end.kind != "rendezvous" or case.progress[rank.pid].kind == "moving" or _has_met(case, chain):
            continue
        late = [chain for chain in case.chains.values() if chain.end.kind not in ("rendezvous", "collective")]
        if any(_comes(case, chain) for chain in late):
            return None  # a rank that is there is elsewhere, and moves or is worked for: it may come yet
        seen, size = len(case.ranks), case.job.world_size
        # a key that is awaited later says nothing of when the waiting began
        open_for = None if chain.end.detail == "store" else open_seconds(case.history, case.job)
        present = sorted(r.rank for r in case.ranks if r.rank is not None)
        lacking = "" if size is None or seen >= size else f"; {absent(case, present, seen, size)}"
        ended, has_ended = departed(case)
        gone = missing(present, seen, size)
        shown = f"{present or seen} of {size or 'an unknown number'}"
        found = hung(
            case,
            CAUSE.name,
            chain,
            owner="user_code" if late else CAUSE.owner,
            summary=_kept_away(case, late[0])
            if late
            else f"{who(chain)} waits for {awaited(case, chain)}{lacking}{has_ended}",
            patience=temporal(case),
            silent=max(silent_seconds(case, chain), open_for or 0.0),
            ceiling=1.0 if lacking else INFERRED,
            evidence=(
                case.saw("job", "ranks", "ranks present", shown, "all of them"),
                *_since(case, open_for),
            ),
            alternatives=(Alternative(cause="starting", refuted_by="no further rank appeared meanwhile"),),
            next=(f"py-spy dump --nonblocking --pid {late[0].end.node.pid}",) if late else _next(case, chain),
        )
        if late:
            return _blaming(found, late)
        return _with_victims(case, found, (ended or blamed(case, gone)) if ended or gone else found.culprits)
    return None


def _comes(case: Case, chain: Chain) -> bool:
    stands = chain.start.motion.frozen is True and all(end.still and not _looks_up(end) for end in chain.ends)
    return not stands


def _looks_up(end: End) -> bool:
    """Whether a thread waits for others of its process for a moment only, and then looks again."""
    wait = end.node.wait
    return (
        end.kind == "lock"
        and wait is not None
        and wait.remaining_seconds is not None
        and wait.remaining_seconds <= ENDLESS_SECONDS
    )


def _has_met(case: Case, chain: Chain) -> bool:
    """Whether a key of the store is awaited while others are in a collective: all have met, and nobody is missing."""
    return chain.end.detail == "store" and any(other.end.kind == "collective" for other in case.chains.values())


def _kept_away(case: Case, late: Chain) -> str:
    """What is said where all ranks are seen and one of them stands elsewhere: those at the rendezvous are its victims."""
    victims = listed([chain for chain in case.chains.values() if chain.end.kind == "rendezvous"])
    return (
        f"rank {rank_of(late)} has not come to the rendezvous: {who(late)} waits for {late.awaited}; {victims} for it"
    )


def _next(case: Case, chain: Chain) -> tuple[str, ...]:
    if not whole(case) and (unseen := case.lacks("ranks")) is not None and unseen.advice:
        return (unseen.advice,)
    if not whole(case) and have_met(case):
        return ("look into the log of the rank that is gone: how did it end?",)
    if chain.end.detail == "store":
        return ("find the rank that should have set the key: perfwatch capture stacks shows where each is",)
    compare = "compare MASTER_ADDR, MASTER_PORT and WORLD_SIZE of every rank"
    return (compare,) if whole(case) else ("start the missing rank", compare)


def _blaming(found: Finding, late: list[Chain]) -> Finding:
    culprits = tuple(one for chain in late for one in chain.culprits())
    links = tuple(link for chain in late for link in chain.links)
    return msgspec.structs.replace(found, culprits=culprits, wait_chain=found.wait_chain + links)


def _with_victims(case: Case, found: Finding, culprits: tuple[Culprit, ...]) -> Finding:
    """All that wait at the rendezvous are shown."""
    waiting = (one for one in case.chains.values() if one.end.kind == "rendezvous")
    links = tuple(link for one in waiting for link in one.links)
    return msgspec.structs.replace(found, wait_chain=links, culprits=culprits)


def _since(case: Case, open_for: float | None) -> tuple[Evidence, ...]:
    if open_for is None:
        return ()
    return (case.saw("store", "job", "has been open", f"for {open_for:.0f} s", "all ranks within seconds"),)


RULES = (Rule(CAUSE, judge),)
