"""How ranks are told that wait for each other in different calls: who stands where."""

import msgspec

from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung
from perfwatch.triage.ranks.exchanges import at_odds
from perfwatch.triage.roles.rank_gaps import rank_ranges
from perfwatch.triage.rule import Cause
from perfwatch.triage.waits.chain import Chain
from perfwatch.verdict import Alternative, Finding

Places = dict[tuple[str, str | None], list[Chain]]  # by the call and the program's line


def told_apart(case: Case, cause: Cause, places: Places, patience: float, ceiling: float, unless: str = "") -> Finding:
    """The verdict on ranks that stand in different calls, as sure as ``ceiling`` once all stood for ``patience`` seconds."""
    parted = sorted(places.items(), key=lambda one: len(one[1]))  # whoever differs from most is looked at first
    chains = tuple(chain for _, there in parted for chain in there)
    parts = "; ".join(
        f"{numbers(there)} {'is' if len(there) == 1 else 'are'} in {name} at {line}" for (name, line), there in parted
    )
    found = hung(
        case,
        cause.name,
        chains[0],
        owner=cause.owner,
        summary=f"{at_odds({name for name, _ in places})}: {parts}{unless}",
        patience=patience,
        silent=min(chain.end.silent_seconds or 0.0 for chain in chains),
        ceiling=ceiling,
        evidence=tuple(
            case.saw(
                "collective",
                f"rank {chain.start.rank}",
                f"waits in {name}",
                f"{line} for {chain.end.silent_seconds or 0:.1f} s",
                "all ranks in the same call",
            )
            for (name, line), there in parted
            for chain in there
        ),
        alternatives=(Alternative(cause="stalled_collective", refuted_by="every rank is in a collective"),),
        next=("compare the named lines: which condition sends the ranks apart?",),
    )
    return msgspec.structs.replace(
        found,
        culprits=tuple(one for chain in chains for one in chain.culprits()),
        wait_chain=tuple(link for chain in chains for link in chain.links),
    )


def numbers(chains: list[Chain]) -> str:
    """``ranks 0-2``."""
    ranks = [chain.start.rank for chain in chains if chain.start.rank is not None]
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {rank_ranges(ranks)}"
