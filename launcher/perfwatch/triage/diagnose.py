"""``diagnose(recording, at)``: the one pure function from a recording to a verdict. Live and offline, it is the same."""

import re
from collections.abc import Sequence
from datetime import datetime, timezone

import msgspec

from perfwatch.actions import action_of
from perfwatch.ownership import labels
from perfwatch.recording.recording import Recording
from perfwatch.triage.cards.hardware import efficiency
from perfwatch.triage.case import Case
from perfwatch.triage.ends.gone import called, unproven
from perfwatch.triage.graph.decide import (
    TABLE,
    a_releaser_runs,
    ends_at,
    fate_of,
    in_call,
    is_settled,
    states_of,
    wakes_soon,
)
from perfwatch.triage.graph.model import Acts, Fate, NativeCode, Prospect
from perfwatch.triage.hang import silent_seconds, stacks_of, who
from perfwatch.triage.history import History
from perfwatch.triage.moving.motion import moves
from perfwatch.triage.moving.thresholds import LATE_SECONDS
from perfwatch.triage.patience import temporal
from perfwatch.triage.roles.placement import rank_ranges
from perfwatch.triage.rule import Rule
from perfwatch.triage.rules import RULES
from perfwatch.triage.rules.by_graph import unnamed_suspect
from perfwatch.triage.rules.late_ranks import who_train
from perfwatch.triage.shares.traced import sharpened
from perfwatch.triage.shares.training import NOT_BY_SHARES, beginning
from perfwatch.triage.words.code import place_of
from perfwatch.verdict import (
    IT_RUNS,
    NAPS,
    SLEEP,
    Abstention,
    Coverage,
    Efficiency,
    Finding,
    Level,
    Missing,
    ObserverCost,
    Suspect,
    Timeline,
    Verdict,
    doing,
)
from perfwatch_probes.readings import CaptureWindow, Cgroup, Stack

SURE = Level.MEDIUM  # a finding below this is a suspicion, not a verdict
SHOWN = 4
SHOWN_LINKS = 12
RANK = re.compile(r"\branks?\b(?!\.)")  # the word, and not the name of a file
DUMP = re.compile(r"perfwatch capture stacks (\d+)( --native)?$")
TELLING = (IT_RUNS, SLEEP, NAPS)  # what a thread does is said with it
UNNAMED = "unknown"  # in place of a cause, where none can be told
STANDS_SECONDS = 2.0  # longer than the waits within a healthy step, shorter than any patience
MOVING = ("slow", "healthy")  # states that a job which may be hung cannot be called yet


def diagnose(recording: Recording, at: float | None = None, rules: Sequence[Rule] = RULES) -> Verdict:
    """Judge the job as it was known ``at`` seconds after the session began (default: at its end)."""
    history = History(
        recording.records, recording.end if at is None else at, recording.cost(recording.end if at is None else at)
    )
    return judge(Case(history, recording.session, recording.events), rules)


def judge(case: Case, rules: Sequence[Rule] = RULES) -> Verdict:
    """Ask the rules in the catalogue's order, which is their precedence.

    The first sure finding names the cause (of slow ones, the one that explains most of the time), the others are kept beside
    it. A rule that fails is recorded as missing and does not stop the others.
    """
    findings: list[Finding] = []
    missing: list[Missing] = list(case.missing)
    for rule in rules:
        if rule.cause.name == UNNAMED and any(one.state == "hung" and _is_sure(one) for one in findings):
            continue
        try:
            outcome = rule.judge(case)
            if isinstance(outcome, Finding):
                outcome = _of_rank(case, sharpened(case, outcome))
                outcome = msgspec.structs.replace(
                    outcome, confidence=float(Level.of(outcome.confidence)), next=_possible(case, outcome.next)
                )
                outcome = called(case, outcome) if outcome.state == "gone" and outcome.sub_cause is None else outcome
                outcome = _unless_it_ends(case, outcome) if outcome.state == "hung" else outcome
        except Exception as error:  # a broken rule must not silence the sound ones
            missing.append(_failed(f"rule {rule.cause.name}", error))
            continue
        if isinstance(outcome, Finding):
            findings.append(outcome)
        elif isinstance(outcome, Abstention):
            missing.extend(outcome.missing)
    if measured_by(case):
        findings = [one for one in findings if one.state == "gone"]
    slow = [one for one in findings if one.state == "slow" and one.cause not in NOT_BY_SHARES]
    if slow and beginning(case):  # a start is slow by nature: it is not known yet
        findings = [one for one in findings if one.state not in MOVING or one.cause in NOT_BY_SHARES]
    if unproven(case):  # well it may be, and end as the last one did
        findings = [one for one in findings if one.state != "healthy"]
    return _addressed(case, _placed(case, _verdict(case, findings, tuple(dict.fromkeys(missing)))))


def _failed(what: str, error: Exception) -> Missing:
    return Missing(witness=what, reason=f"failed: {type(error).__name__}: {error}")


def _placed(case: Case, verdict: Verdict) -> Verdict:
    """The verdict with the full path, the line and the text of it beside each frame that some stack shows."""
    return msgspec.structs.replace(
        verdict,
        culprits=tuple(
            msgspec.structs.replace(one, place=place_of(case.history, one.frame, one.worker_pid or one.pid, one.tid))
            for one in verdict.culprits
        ),
        wait_chain=tuple(
            msgspec.structs.replace(one, place=place_of(case.history, one.frame, one.pid, one.tid))
            for one in verdict.wait_chain
        ),
    )


def _addressed(case: Case, verdict: Verdict) -> Verdict:
    """The verdict with whose job it is, and what may be done about it."""
    job = labels(
        case.session,
        [rank.process for rank in case.job.ranks],
        "\n".join(path for (path,) in case.history.entities(Cgroup)),
        rank_ranges(rank.rank for rank in case.job.ranks if rank.rank is not None),
        verdict.coverage.world_size,
    )
    return msgspec.structs.replace(verdict, action=action_of(verdict), job=job)


def _unless_it_ends(case: Case, finding: Finding) -> Finding | None:
    """A hang, unless a task works for what is waited for; later, if a task that may release it wakes at a known moment."""
    waiting = next((link.pid for link in finding.wait_chain), None)
    fate = fate_of(case, waiting) if waiting is not None else None
    if fate is None or waiting is None:
        return finding
    if fate.prospect is Prospect.LIVE:
        return None
    unseen = fate.prospect is Prospect.OPEN and _acts_unseen(fate)
    if unseen:
        lasts = max(finding.decides_in_seconds, temporal(case) - (finding.silent_seconds or 0.0))
        summary = f"{finding.summary}, unless {fate.why} releases it"
        finding = msgspec.structs.replace(finding, summary=summary, decides_in_seconds=round(lasts, 1))
    if fate.prospect is Prospect.OPEN and (unseen or fate.strangers or a_releaser_runs(case, waiting)):
        finding = msgspec.structs.replace(finding, confidence=min(finding.confidence, float(Level.MEDIUM)))
    if (until := ends_at(case, waiting)) is None:
        return finding
    wakes = round(until - case.at + LATE_SECONDS, 1)
    return msgspec.structs.replace(finding, decides_in_seconds=max(finding.decides_in_seconds, wakes))


def _acts_unseen(fate: Fate) -> bool:
    """True if what may release a wait is no thread of Python's: it may act at any time or never, so it has the whole hang timeout."""
    by_native_code = isinstance(fate.why, NativeCode) and fate.by is not None and fate.by[0] == "thread"
    return isinstance(fate.why, Acts) or by_native_code


def _of_rank(case: Case, finding: Finding) -> Finding:
    """A finding about one rank among several says in its summary which one that is."""
    blamed = {one.rank for one in finding.culprits}
    rank = next(iter(blamed), None)
    if len(case.job.ranks) < 2 or len(blamed) > 1 or rank is None or RANK.search(finding.summary):
        return finding
    return msgspec.structs.replace(finding, summary=f"rank {rank}: {finding.summary}")


def _possible(case: Case, actions: tuple[str, ...]) -> tuple[str, ...]:
    """What to do next, where py-spy cannot read a process: what would let it, in place of the dump that would fail."""
    lacking = case.lacks("stacks")
    if lacking is None:
        return actions
    dumps = [(one, DUMP.match(one)) for one in actions]
    return tuple(
        one if dump is None or case.history.of(Stack, int(dump[1])) else lacking.advice or f"perfwatch doctor {dump[1]}"
        for one, dump in dumps
    )


def _verdict(case: Case, findings: list[Finding], missing: tuple[Missing, ...]) -> Verdict:
    findings = _named_first(case, findings)
    waiting = [f for f in findings if f.decides_in_seconds > 0]
    sure = [f for f in findings if _is_sure(f)]
    suspected = waiting or [f for f in findings if f.state == "hung" and f.confidence < SURE]
    if any(f.state in MOVING for f in sure) and (any(one.state != "busy" for one in suspected) or _stands(case)):
        sure = [f for f in sure if f.state not in MOVING]
    chosen = _choose(sure)
    if chosen is None:
        return _inconclusive(case, findings, suspected, missing)
    others = [f for f in findings if f is not chosen]
    matching = {one.cause for one in others if one.state == chosen.state}  # not refuted: they stand in ``findings``
    onset = None if chosen.silent_seconds is None else _clock(case, case.at - chosen.silent_seconds)
    return msgspec.structs.replace(
        _resting_on(case, chosen, missing),
        efficiency=_efficiency(case) if chosen.state in MOVING else None,
        state=chosen.state,
        cause=chosen.cause,
        sub_cause=chosen.sub_cause,
        retry=chosen.retry,
        confidence=chosen.confidence,
        summary=chosen.summary,
        onset=onset,
        alternatives=tuple(one for one in chosen.alternatives if one.cause not in matching)[:SHOWN],
        findings=tuple(others[:SHOWN]),
    )


def _named_first(case: Case, findings: list[Finding]) -> list[Finding]:
    """A rule that has a name for a hang gives the name; where nothing can release the wait of any rank, it needs no more time.

    Work that is surely done says that something can. A name that would take the hang timeout waits until a better one had its time.
    """
    settled = next((one for one in findings if one.cause == UNNAMED), None)
    if settled is None:
        return findings
    rest = [one for one in findings if one is not settled]
    hung = [one for one in rest if one.state == "hung"]
    sure = any(_is_sure(one) for one in rest if one.state in ("hung", "busy"))
    silent = _shorter(hung[0], settled) if hung else settled.silent_seconds or 0.0
    needs = max([case.apart_seconds, *(one.needs_seconds for one in states_of(case))])
    later = bool(hung) and settled.decides_in_seconds > 0 and hung[0].decides_in_seconds > TABLE.settled
    if sure or silent < needs or later or not is_settled(case):
        return rest if hung or sure else findings
    return [_decided(hung[0], settled), *(one for one in rest if one is not hung[0])] if hung else findings


def _is_sure(finding: Finding) -> bool:
    """A verdict, and no suspicion."""
    return finding.confidence >= SURE and finding.decides_in_seconds <= 0


def _shorter(one: Finding, other: Finding) -> float:
    """Of two silences the shorter: each knows of moves that the other does not."""
    return min(value for value in (one.silent_seconds, other.silent_seconds, float("inf")) if value is not None)


def _decided(named: Finding, settled: Finding) -> Finding:
    """A suspicion, where it is certain that the wait does not end by itself."""
    return msgspec.structs.replace(
        named,
        confidence=float(max(named.confidence, SURE)),
        evidence=(*named.evidence, *settled.evidence[:1]),
        silent_seconds=_shorter(named, settled),
        decides_in_seconds=0.0,
    )


def _efficiency(case: Case) -> Efficiency | None:
    figures = efficiency(case)
    return figures if figures.cards or figures.model is not None else None


def _choose(sure: list[Finding]) -> Finding | None:
    """The first; but a slow run can be slow for several reasons at once, and the largest is named.

    What is busy for want of a better name gives way to a slow cause that is clear.
    """
    if not sure:
        return None
    clear = any(one.state == "slow" and one.confidence >= Level.CERTAIN for one in sure)
    if sure[0].state != "slow" and not (sure[0].state == "busy" and sure[0].confidence < Level.HIGH and clear):
        return sure[0]
    return max((f for f in sure if f.state == "slow"), key=lambda f: f.lost_share or 0.0)


def _stands(case: Case) -> bool:
    """True if some rank just stopped moving: too short for a hang, too long to be called slow or healthy.

    One that waits beside others that train on has another part.
    """
    for rank in who_train(case):
        chain = case.chains[rank.pid]
        rested = [node.motion.ran_ago_seconds or 0.0 for node in (chain.start, chain.end.node)]
        recurs = moves(case.history, chain.start.pid, chain.start.tid).recurrent
        if min(rested) >= STANDS_SECONDS and not wakes_soon(case, chain.end) and not recurs:
            return True
    return False


def _inconclusive(
    case: Case, findings: list[Finding], suspected: list[Finding], missing: tuple[Missing, ...]
) -> Verdict:
    """What is known when nothing is sure: the suspicion that is nearest to a verdict, if there is one."""
    best = suspected[0] if suspected else max(findings, key=lambda f: f.confidence, default=None)
    verdict = _resting_on(case, best, missing)
    if best is None:
        try:
            return _as_seen(case, verdict)
        except Exception as error:  # what the rules could not read is not known here either: say so, and keep the rest
            return msgspec.structs.replace(verdict, missing=(*missing, _failed("wait graph", error)))
    suspect = Suspect(
        state=best.state,
        cause=best.cause,
        silent_seconds=best.silent_seconds or 0.0,
        decides_in_seconds=best.decides_in_seconds,
    )
    return msgspec.structs.replace(
        verdict,
        confidence=float(Level.LOW),
        summary=f"suspected: {best.summary}",
        suspect=suspect,
        findings=tuple(findings[:SHOWN]),
    )


def _as_seen(case: Case, verdict: Verdict) -> Verdict:
    """Where things stand, when not even a suspicion can be named: a reader who knows the program may see more in it."""
    if kind := measured_by(case):
        measured = f"{kind} is measuring the job and pauses it: nothing else can be said until it is done"
        return msgspec.structs.replace(verdict, summary=measured)
    here = [member.process for member in case.job.members.values()]
    if here and all(one.torch_loaded is False for one in here):
        names = ", ".join(f"{one.name} {one.pid}" for one in here[:SHOWN])
        nothing = f"no training is seen: no process of this tree ({names}) has torch loaded"
        return msgspec.structs.replace(verdict, summary=nothing, next=("perfwatch ps",))
    seen = (one for one in case.chains.items() if one[1].end.node.stack is not None)
    absent = (one for one in seen if not in_call(case, one[1]))  # those in it wait for these, whatever they do
    rank, chain = next(absent, next(iter(case.chains.items()), (0, None)))
    if chain is None:
        return verdict
    suspect = unnamed_suspect(case) or _stuck_somehow(case)
    return msgspec.structs.replace(
        verdict,
        confidence=0.0 if suspect is None else float(Level.LOW),
        suspect=suspect,
        silent_seconds=None if suspect is None else suspect.silent_seconds,
        summary=f"no cause fits so far: {who(chain)} {doing(chain.awaited)}"
        + ("; too little was sampled in between to say if it trains" if chain.awaited.startswith(NAPS) else "")
        + ("" if chain.awaited.startswith(TELLING) else f" ({case.progress[rank].basis})"),
        wait_chain=tuple(link for one in case.chains.values() for link in one.links)[:SHOWN_LINKS],
        next=_possible(
            case,
            (
                *((unseen.advice,) if (unseen := case.lacks("ranks")) is not None and unseen.advice else ()),
                stacks_of(chain.end.node.pid),
                f"perfwatch attach {rank} --watch",
            ),
        ),
    )


def _stuck_somehow(case: Case) -> Suspect | None:
    """A hang without a name: no stack can be read, and the kernel remembers that no training thread ran for the whole hang timeout."""
    if case.lacks("stacks") is None or len(case.still_chains) < len(case.chains):
        return None
    fates = [fate_of(case, chain.start.pid) for chain in case.still_chains]
    if any(one is not None and one.prospect >= Prospect.DUE for one in fates):
        return None
    silent = min((silent_seconds(case, chain) for chain in case.still_chains), default=0.0)
    if silent < temporal(case):
        return None
    return Suspect(state="hung", cause=UNNAMED, silent_seconds=round(silent, 1), decides_in_seconds=0.0)


def _resting_on(case: Case, finding: Finding | None, missing: tuple[Missing, ...]) -> Verdict:
    """An inconclusive verdict with everything that does not depend on how it is judged."""
    counts = [p.steps.count for p in case.progress.values() if p.steps is not None]
    spent = case.history.spent
    return Verdict(
        state="inconclusive",
        cause=None,
        confidence=0.0,
        summary="what was seen does not suffice for a verdict",
        owner=finding.owner if finding else "unknown",
        at=_clock(case, case.at),
        silent_seconds=finding.silent_seconds if finding else None,
        last_step=max(counts, default=None),
        coverage=Coverage(
            ranks_seen=len(case.job.ranks), world_size=case.job.world_size or (len(case.job.ranks) or None)
        ),
        culprits=finding.culprits if finding else (),
        wait_chain=finding.wait_chain if finding else (),
        evidence=finding.evidence if finding else (),
        missing=missing,
        next=finding.next if finding else (),
        timeline=Timeline(
            suspected=next((round(e.at, 2) for e in case.events if e.kind == "suspicion"), None),
            decided=round(case.at, 2),
        ),
        observer_cost=ObserverCost(
            cpu_seconds=round(spent.cpu_seconds, 3),
            stack_dumps=spent.stack_dumps,
            target_paused_ms=round(1e3 * spent.target_paused_seconds, 1),
        ),
    )


def _clock(case: Case, at: float) -> str:
    """ISO 8601 in UTC."""
    moment = datetime.fromtimestamp(case.session.created + at, tz=timezone.utc)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


# A capture of ours

# ncu runs every kernel of the window many times over: a step of 470 kernels took 20 to 113 s on H200.
STANDS_FOR = ("ncu",)
LONGEST_SECONDS = 300.0  # of a window whose end nothing shows


def measured_by(case: Case) -> str:
    """The capture for which the job may stand still now; empty without one.

    A window that took too long is given up before ncu is done with it: it has ended when a step was made after it.
    """
    for kind in STANDS_FOR:
        seen = case.history.latest(CaptureWindow, kind)
        if seen is None or case.at - seen.at >= LONGEST_SECONDS:
            continue
        since = case.at - seen.at
        clocks = [now.steps for now in case.progress.values() if now.steps is not None]
        stepped = any(clock.ago_seconds is not None and clock.ago_seconds < since for clock in clocks)
        if seen.reading.at_work or not stepped:
            return kind
    return ""
