"""One verdict for a job on many hosts.

How it is made, and why so: the readings of all hosts are put together (``merging``) and the same rules judge them as judge a
job on one machine. So the chain from a rank on one host through a collective to a worker on another is followed as
everywhere, and there is no second set of rules that could come to differ. What each host sends of ranks that wait is little
(``compacting``), which keeps this linear and small: 4,096 ranks take seconds.

Rules that need what belongs to one machine (its memory, its CPUs, its limits) cannot be asked of several at once. There the
word of each host counts, which has judged its own part with everything it read (``_SaidByHosts``): as a cause of its own
where nothing else was found, and beside the culprit that lives there otherwise.

A rule that says "every rank" holds only if every rank was seen on some host. Ranks that were seen nowhere, and hosts that do
not answer, are judged by ``absent_ranks``.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from perfwatch.fleet.merge.absent_ranks import AbsentRanks
from perfwatch.fleet.merge.compacting import OF_THE_MACHINE
from perfwatch.fleet.merge.hosts import AS_OWNER, HostReport
from perfwatch.fleet.merge.merging import Merged, Part
from perfwatch.report.folded_stacks import Folded, Place, fold, newest
from perfwatch.text import duration, listed
from perfwatch.triage.case import Case
from perfwatch.triage.diagnose import SURE, judge
from perfwatch.triage.history import History
from perfwatch.triage.job import rank_ranges
from perfwatch.triage.questions import lacks_common_moment
from perfwatch.triage.rule import Cause, Rule
from perfwatch.triage.rules import RULES
from perfwatch.verdict import (
    Coverage,
    Evidence,
    Finding,
    Level,
    Link,
    Missing,
    ObserverCost,
    Outcome,
    Verdict,
    confidence_word,
)

MOST_MISSING, MOST_CULPRITS, MOST_EVIDENCE, MOST_LINKS = 12, 16, 12, 24
LONGEST_SUMMARY = 700  # characters
MOST_DOUBLED = 3
CLAIMED_TWICE = Level.MEDIUM  # at most, if two hosts claim the same ranks: one of them is of another start, or job
AGREED = ("healthy", "busy", "gone")  # states of a whole job only if no host says otherwise
GOING_ON = ("slow", "busy", "healthy")  # the worst first
ACROSS_RANKS = ("straggling_rank", "exposed_communication")  # causes of slowness that no host can see in its own part
OWN_SHARE = (
    0.99  # of the time that a host's own word explains: more than another cause, less than what is behind all others
)


class _SaidByHosts:
    """The rule that takes the word of the hosts for it: the cause that most of them name, with the surest of them as witness."""

    def __init__(self, parts: Sequence[Part], state: str, agreed: bool = True) -> None:
        self.cause = Cause("said_by_hosts", state, "unknown", ())
        self._parts = parts
        self._agreed = agreed and state in AGREED

    def judge(self, case: Case) -> Outcome:
        """Fires when hosts are sure of this state of their own part."""
        state = self.cause.state
        said = [(part.host, part.view.verdict) for part in self._parts]
        named = [(h, v) for h, v in said if v.state == state and v.cause and v.confidence >= SURE]
        if not named or (self._agreed and len(named) < len(said)):
            return None
        cause, _ = Counter(v.cause for _, v in named).most_common(1)[0]
        alike = [(h, v) for h, v in named if v.cause == cause]
        host, surest = max(alike, key=lambda one: one[1].confidence)
        return Finding(
            cause=cause or "",
            state=state,
            summary=f"{host}: {surest.summary}"
            + (f" ({len(alike)} of {len(said)} hosts say so)" if len(said) > 1 else ""),
            confidence=min(v.confidence for _, v in alike) if state in AGREED else surest.confidence,
            owner=surest.owner,
            culprits=tuple(msgspec.structs.replace(one, host=one.host or host) for one in surest.culprits),
            wait_chain=tuple(msgspec.structs.replace(one, host=one.host or host) for one in surest.wait_chain),
            evidence=tuple(msgspec.structs.replace(one, entity=f"{one.entity} on {host}") for one in surest.evidence),
            alternatives=surest.alternatives,
            next=tuple(f"on {host}: {one}" for one in surest.next),
            silent_seconds=surest.silent_seconds,
            lost_share=OWN_SHARE if state == "slow" else None,
        )


def _across(rule: Rule) -> Rule:
    """A rule that compares ranks: what it finds is behind whatever a single host sees in its own part."""

    def judge(case: Case) -> Outcome:
        found = rule.judge(case)
        return msgspec.structs.replace(found, lost_share=1.0) if isinstance(found, Finding) else found

    return Rule(rule.cause, judge)


class _OwnWord:
    """The rule for a job that goes on: where every host is sure of its own part, the worst of these words holds for the whole.

    Each has judged with everything that it read, and what it sent is less.
    """

    cause = Cause("own_word", "slow", "unknown", ())

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def judge(self, case: Case) -> Outcome:
        """Fires when no host is in doubt, and none has a part that is hung or gone."""
        said = [part.view.verdict for part in self._parts]
        if any(one.confidence < SURE or one.state not in GOING_ON for one in said):
            return None
        worst = next((state for state in GOING_ON if any(one.state == state for one in said)), None)
        return _SaidByHosts(self._parts, worst, agreed=False).judge(case) if worst else None


def judge_hosts(
    merged: Merged, parts: Sequence[Part], reports: Sequence[HostReport], complete: bool = False
) -> tuple[Verdict, Folded]:
    """Judge the whole job, and fold the stacks of all its ranks.

    Args:
        merged: the readings of all hosts that answered.
        parts: what they answered, for their own verdicts.
        reports: what became of every host that was asked.
        complete: whether these are all hosts of the job.
    """
    case = Case(History(merged.records, merged.end), merged.session)
    verdict = merged.translation.verdict(judge(case, _rules(parts, AbsentRanks(reports, complete).rule)))
    present = set(merged.present)
    verdict = msgspec.structs.replace(
        _bounded(verdict),
        confidence=float(min(verdict.confidence, CLAIMED_TWICE)) if merged.doubled else verdict.confidence,
        coverage=Coverage(ranks_seen=len(present), world_size=case.job.world_size or len(present) or None),
        evidence=verdict.evidence + _of_culprits(verdict, parts) + _at_odds(verdict, merged),
        missing=(*_unseen(case, merged, reports), *verdict.missing)[:MOST_MISSING],
        observer_cost=ObserverCost(
            cpu_seconds=round(sum(part.view.verdict.observer_cost.cpu_seconds for part in parts), 3),
            stack_dumps=sum(part.view.verdict.observer_cost.stack_dumps for part in parts),
            target_paused_ms=max((part.view.verdict.observer_cost.target_paused_ms for part in parts), default=0.0),
        ),
    )
    return verdict, _folded(case, merged)


def _bounded(verdict: Verdict) -> Verdict:
    """What fits on a page and into a message, however many ranks there are."""
    cut = len(verdict.summary) > LONGEST_SUMMARY
    return msgspec.structs.replace(
        verdict,
        summary=f"{verdict.summary[:LONGEST_SUMMARY].rpartition(' ')[0]} ..." if cut else verdict.summary,
        wait_chain=_links(verdict.wait_chain),
        culprits=verdict.culprits[:MOST_CULPRITS],
        evidence=verdict.evidence[:MOST_EVIDENCE],
    )


def _links(chain: Sequence[Link]) -> tuple[Link, ...]:
    """The chain with ranks that wait at one line for the same thing as one link."""
    victims = Counter((link.waits_for, link.frame) for link in chain if link.depth == 0)
    shown: set[tuple[str, str | None]] = set()
    found = []
    for link in chain:
        alike = (link.waits_for, link.frame)
        if link.depth == 0 and alike in shown:
            continue
        if link.depth == 0:
            shown.add(alike)
            if victims[alike] > 1:
                more = victims[alike] - 1
                text = (
                    f"{link.waits_for} (as do {more} other ranks)"
                    if more > 1
                    else f"{link.waits_for} (as does 1 other rank)"
                )
                link = msgspec.structs.replace(link, waits_for=text)
        found.append(link)
    return tuple(found[:MOST_LINKS])


def _as_rule(one: _SaidByHosts | _OwnWord) -> Rule:
    return Rule(one.cause, one.judge)


def _rules(parts: Sequence[Part], absent: Rule) -> tuple[Rule, ...]:
    """Those that judge readings of processes and cards; of a job that goes on, what the hosts say of their own comes first."""
    asked = [rule for rule in RULES if not set(rule.cause.needs) & set(OF_THE_MACHINE)]
    across = [rule for rule in asked if rule.cause.name in ACROSS_RANKS]
    rules: list[Rule] = []
    for state in ("gone", "hung", "busy", "slow", "healthy"):
        rules += (
            [_as_rule(_SaidByHosts(parts, state))] if state == "gone" else []
        )  # the kernel's log and the limits stay there
        rules += [absent] if state == "hung" else []
        rules += [rule for rule in asked if rule.cause.state == state and rule not in across]
        rules += [*map(_across, across), _as_rule(_OwnWord(parts))] if state == "hung" else []
        rules += [_as_rule(_SaidByHosts(parts, state))] if state in GOING_ON else []
    return tuple(rules)


def _of_culprits(verdict: Verdict, parts: Sequence[Part]) -> tuple[Evidence, ...]:
    """What the culprits' hosts say of their own part, where that is another cause: it may be the reason behind this one."""
    hosts = dict.fromkeys(culprit.host for culprit in verdict.culprits)
    found = []
    for part in parts:
        own = part.view.verdict
        if part.host in hosts and own.cause not in (None, verdict.cause) and own.confidence >= SURE:
            found.append(
                Evidence(
                    witness="host",
                    entity=part.host,
                    claim=f"says of its own part: {own.state}, {own.cause} ({confidence_word(own.confidence)})",
                    observed=own.summary,
                )
            )
    return tuple(found[:3])


def _at_odds(verdict: Verdict, merged: Merged) -> tuple[Evidence, ...]:
    """Ranks that two hosts claim, and masters that have two names: why ranks never meet."""
    found = [
        Evidence(
            witness="job",
            entity=f"rank {rank}",
            claim="is claimed more than once",
            observed=f"by {listed(hosts)}",
            expected="one process for each rank: compare the node rank that each host was started with",
        )
        for rank, hosts in list(merged.doubled.items())[:MOST_DOUBLED]
    ]
    masters = dict.fromkeys(merged.addresses.values())
    if verdict.cause == "blocked_rendezvous" and len(masters) > 1:
        said = "; ".join(f"{host} has {address}" for host, address in list(merged.addresses.items())[:4])
        found.append(Evidence(witness="job", entity="job", claim="the hosts name different masters", observed=said))
    return tuple(found)


def _unseen(case: Case, merged: Merged, reports: Sequence[HostReport]) -> tuple[Missing, ...]:
    absent = case.job.absent_beside(merged.present)
    found = [
        Missing(
            witness="ranks",
            reason=f"rank {rank_ranges(absent)} was seen nowhere",
            advice="name every host of the job; a rank may also have ended",
        )
    ]
    alike: dict[tuple[str, str, str], list[str]] = {}
    for report in reports:
        if report.state in ("silent", "failed", "garbled"):
            alike.setdefault((report.state, report.reason, report.advice), []).append(report.host)
        elif report.hidden:
            reason = f"{report.hidden} processes that run the job's program may not be looked into"
            alike.setdefault((report.state, reason, AS_OWNER), []).append(report.host)
    hosts = [
        Missing(witness=f"host {listed(same)}", reason=reason or state, advice=advice)
        for (state, reason, advice), same in alike.items()
    ]
    if merged.counted:
        hosts.append(
            Missing(
                witness="ranks",
                reason="the job's launcher numbered no ranks: they are numbered in the order of the hosts",
            )
        )
    if lacks_common_moment(case):
        hosts.append(
            Missing(
                witness="moment",
                reason=f"the hosts looked {duration(case.apart_seconds)} apart: a wait that is shorter is not called a hang",
            )
        )
    if left_out := sum(report.left_out for report in reports):
        hosts.append(Missing(witness="readings", reason=f"{left_out} readings did not fit into the hosts' answers"))
    return (*(found if absent else ()), *hosts)


def _folded(case: Case, merged: Merged) -> Folded:
    translation = merged.translation
    stacks = [
        (Place(translation.pid(place.pid), place.rank, place.role, translation.host(place.pid) or ""), frames)
        for place, frames in newest(case.history, case.job)
    ]
    return fold(stacks, case.job.world_size)
