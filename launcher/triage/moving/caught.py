"""A training thread that is caught in a loop of one module's forward, or of the fetch of one batch."""

from perfwatch.triage.cards.gpu import regime
from perfwatch.triage.case import Case
from perfwatch.triage.hang import hung, temporal, who
from perfwatch.triage.independence import ONE_SOURCE
from perfwatch.triage.moving.loops import COUNTED_LOOP, blamed, computes_on_card, moves_data, releases_gil
from perfwatch.triage.moving.memory import GUESSED
from perfwatch.triage.moving.within import FETCH, Within
from perfwatch.triage.rule import Cause
from perfwatch.triage.verdict import Alternative, Outcome
from perfwatch.triage.waits.chain import Chain
from perfwatch.triage.waits.node import End
from perfwatch.triage.words.frames import show

COUNTED = 0.88  # steps are counted, and none came
MANY_SAMPLES = 300  # a pass that is left for 1 % of the time would have shown it
# A fetch asks for one item after the other, and each may turn in the same loop: it is left for a thousandth of the time.
MANY_OF_A_FETCH = 3000


def at_work(case: Case, end: End) -> bool:
    """Whether a thread waits for a card that serves it: it is let go on, if only to ask again in the next turn of its loop."""
    card = regime(case.history, end.detail) if end.kind == "gpu" else None
    return card is not None and card.kind in ("work", "wait") and not card.polls


def caught(case: Case, cause: Cause, chain: Chain, within: Within) -> Outcome:
    """It runs in training code, and never comes out of one loop there."""
    steps = case.progress[chain.start.pid].steps
    counted = steps is not None and steps.ago_seconds is not None and steps.longest_seconds is not None
    silent, runs = within.seconds, chain.start.motion.run_share or 0.0
    known = counted or within.usual_seconds > 0.0  # how long it takes here, by what was seen before
    fetches = within.called == FETCH and not known
    computes = releases_gil(case.history, chain.start) or computes_on_card(case, chain.start.pid)
    takes_its_time = fetches or moves_data(case.history, chain.start) or (computes and not known)
    patience = max(temporal(case) * (COUNTED_LOOP if takes_its_time else 1.0), within.usual_seconds)
    sure = COUNTED if counted else GUESSED
    enough = within.read and within.samples >= (MANY_OF_A_FETCH if fetches else MANY_SAMPLES)
    found = hung(
        case,
        cause.name,
        chain,
        owner=cause.owner,
        summary=f"{who(chain)} does not come out of its loop, within one {within.called}",
        patience=patience,
        silent=silent,
        evidence=(
            case.saw(
                "stack",
                f"pid {chain.start.pid}",
                f"stays in one loop of one {within.called}",
                f"{within.samples} samples, all of that loop",
                "other parts of a step in between",
            ),
            case.saw(
                "schedstat",
                f"pid {chain.start.pid}",
                "is served by its card" if at_work(case, chain.end) else "waits for nobody",
                f"{runs:.0%} of a core",
                "the same, and steps come",
            ),
        ),
        ceiling=sure if enough else ONE_SOURCE,
        alternatives=(
            Alternative(cause="evaluating", refuted_by="no other part of the model, no other batch was seen"),
        ),
        next=(f"look at {show(within.frame)}: what would end that loop?",),
    )
    return blamed(case.history, chain.start, found)
