"""``diagnose(recording, at)``: the one pure function from a recording to a verdict. Live and offline, it is the same."""

from collections.abc import Sequence
from datetime import datetime, timezone

from perfwatch.probes import readings as r
from perfwatch.recording import Recording
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.rule import Rule
from perfwatch.triage.rules import RULES
from perfwatch.triage.verdict import (
    Abstention,
    Alternative,
    Coverage,
    Finding,
    Missing,
    ObserverCost,
    Suspect,
    Timeline,
    Verdict,
)

SURE = 0.6  # a finding below this is a suspicion, not a verdict
SHOWN_FINDINGS = 4


def diagnose(recording: Recording, at: float | None = None, rules: Sequence[Rule] = RULES) -> Verdict:
    """Judge the job as it was known ``at`` seconds after the session began (default: at its end)."""
    history = History(recording.records, recording.end if at is None else at)
    return judge(Case(history, recording.session, recording.events), rules)


def judge(case: Case, rules: Sequence[Rule] = RULES) -> Verdict:
    """Ask the rules in the catalogue's order, which is their precedence.

    The first sure finding names the cause, the others are kept beside it. A rule that fails is recorded as missing and does
    not stop the others.
    """
    findings: list[Finding] = []
    missing: list[Missing] = list(case.missing)
    for rule in rules:
        try:
            outcome = rule.judge(case)
        except Exception as error:  # a broken rule must not silence the sound ones
            missing.append(
                Missing(witness=f"rule {rule.CAUSE.name}", reason=f"failed: {type(error).__name__}: {error}")
            )
            continue
        if isinstance(outcome, Finding):
            findings.append(outcome)
        elif isinstance(outcome, Abstention):
            missing.extend(outcome.missing)
    return _verdict(case, findings, tuple(dict.fromkeys(missing)))


def _verdict(case: Case, findings: list[Finding], missing: tuple[Missing, ...]) -> Verdict:
    sure = [f for f in findings if f.confidence >= SURE and f.decides_in_seconds <= 0]
    waiting = [f for f in findings if f.decides_in_seconds > 0]
    chosen = sure[0] if sure else None
    if chosen is None or (
        waiting
        and chosen.state in ("slow", "healthy", "busy")
        and findings.index(waiting[0]) < findings.index(chosen)
        and chosen.state != "busy"
    ):
        return _inconclusive(case, findings, waiting, missing)
    others = [f for f in findings if f is not chosen]
    alternatives = chosen.alternatives + tuple(
        Alternative(cause=f.cause, refuted_by=f"also seen ({f.confidence:.0%}), but {chosen.cause} explains it first")
        for f in others
        if f.state == chosen.state
    )
    return Verdict(
        state=chosen.state,
        cause=chosen.cause,
        confidence=chosen.confidence,
        summary=chosen.summary,
        owner=chosen.owner,
        culprits=chosen.culprits,
        wait_chain=chosen.wait_chain,
        evidence=chosen.evidence,
        alternatives=alternatives[:SHOWN_FINDINGS],
        next=chosen.next,
        silent_seconds=chosen.silent_seconds,
        onset=_clock(case, case.at - chosen.silent_seconds) if chosen.silent_seconds is not None else None,
        findings=tuple(others[:SHOWN_FINDINGS]),
        suspect=None,
        missing=missing,
        **_common(case),
    )


def _inconclusive(case: Case, findings: list[Finding], waiting: list[Finding], missing: tuple[Missing, ...]) -> Verdict:
    best = waiting[0] if waiting else max(findings, key=lambda f: f.confidence, default=None)
    suspect = None
    summary = "what was seen does not suffice for a verdict"
    if best is not None:
        suspect = Suspect(
            state=best.state,
            cause=best.cause,
            silent_seconds=best.silent_seconds or 0.0,
            decides_in_seconds=best.decides_in_seconds,
        )
        summary = f"suspected: {best.summary}"
    return Verdict(
        state="inconclusive",
        cause=None,
        confidence=round(best.confidence * 0.5, 2) if best else 0.0,
        summary=summary,
        owner=best.owner if best else "unknown",
        culprits=best.culprits if best else (),
        wait_chain=best.wait_chain if best else (),
        evidence=best.evidence if best else (),
        next=best.next if best else (),
        silent_seconds=best.silent_seconds if best else None,
        findings=tuple(findings[:SHOWN_FINDINGS]),
        suspect=suspect,
        missing=missing,
        **_common(case),
    )


def _common(case: Case) -> dict[str, object]:
    """The fields that do not depend on which finding won."""
    counts = [p.steps.count for p in case.progress.values() if p.steps is not None]
    calls = case.history.every(r.ProbeCall)
    return {
        "at": _clock(case, case.at),
        "last_step": max(counts) if counts else None,
        "coverage": Coverage(
            ranks_seen=len(case.job.ranks), world_size=case.job.world_size or (len(case.job.ranks) or None)
        ),
        "timeline": Timeline(
            suspected=next((round(e.at, 2) for e in case.events if e.kind == "suspicion"), None),
            decided=round(case.at, 2),
        ),
        "observer_cost": ObserverCost(
            cpu_seconds=round(sum(c.reading.cpu_seconds or 0.0 for c in calls), 3),
            stack_dumps=sum(1 for c in calls if c.reading.probe.startswith("stack")),
        ),
    }


def _clock(case: Case, at: float) -> str:
    """ISO 8601 in UTC."""
    moment = datetime.fromtimestamp(case.session.created + at, tz=timezone.utc)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
