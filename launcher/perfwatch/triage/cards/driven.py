"""Whether a rank that computes on the host drives a card meanwhile: then what it computes may be no result of the CPU's."""

from perfwatch.triage.busy import Phase
from perfwatch.triage.cards.gpu import regimes, unseen
from perfwatch.triage.cards.whose import cards_of
from perfwatch.triage.case import Case
from perfwatch.triage.waits.devices import in_sync
from perfwatch.triage.words.code import line_of, names
from perfwatch.triage.words.frames import tags

READ_BACK = frozenset({"item", "cpu", "synchronize"})  # what torch alone has; numpy has ``unique`` and ``tolist``


def drives_a_card(case: Case, phase: Phase) -> bool:
    """Whether the rank's own GPU has something to do meanwhile, or the line waits for it: the value is no result of the CPU's."""
    cards = regimes(case.history, phase.rank.pid)
    own = cards_of(case.history, phase.rank.pid)
    if (own.uuids or unseen(case.history, phase.rank.pid)) and _awaits_it(case, phase):
        return True
    return any(card.kind == "spin" or (own.certain and card.kind != "idle") for card in cards)


def _awaits_it(case: Case, phase: Phase) -> bool:
    stack = case.chains[phase.rank.pid].start.stack
    source = line_of(case.history, phase.profile.top_line())
    reads = source is not None and names(source.calls) & READ_BACK and in_sync(case.history, stack)
    return bool(reads) or (stack is not None and "device_sync" in tags(stack))
