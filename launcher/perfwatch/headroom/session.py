"""The headroom of a recorded session: from the newest torch trace in it, else from counters and stacks, with fewer levers."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from msgspec import structs

from perfwatch.errors import TraceUnreadable
from perfwatch.headroom.advice import LEAST_TIMES, MOST, Advice, Headroom, Part, Slow, advise, middle
from perfwatch.headroom.levers import LEVERS, MORE_WORKERS
from perfwatch.headroom.step import read
from perfwatch.recording.recording import Recording
from perfwatch.triage.case import Case
from perfwatch.triage.questions import data_wait_share, regimes, spare_cores
from perfwatch.triage.rules import RULES
from perfwatch.verdict import Finding, Verdict
from perfwatch_probes.readings import Gpu, GpuSample, Steps

# What a finding of triage speaks for, and how much of the share of the time that it explains the change saves, at least and at most.
FROM_FINDINGS: Mapping[str, tuple[str, float, float]] = {
    "wrong_precision": ("mixed_precision", 0.4, 0.9),
    "slow_attention_fallback": ("flash_attention", 0.3, 0.9),
    "memory_bound_gpu": ("compile", 0.1, 0.5),
    "underfilled_gpu": ("micro_batch", 0.2, 0.8),
    "host_bound_python": ("cuda_graphs", 0.3, 0.9),
    "synchronising": ("synchronising_reads", 0.3, 1.0),
    "copy_bound": ("pageable_copies", 0.5, 1.0),
    "allocator_thrash": ("allocator", 0.3, 1.0),
    "serial_loading": ("data_loading", 0.5, 1.0),
    "starved_by_transforms": ("data_loading", 0.4, 1.0),
    "starved_by_storage": ("data_loading", 0.2, 1.0),
    "bursty_loading": ("data_loading", 0.4, 1.0),
    "exposed_communication": ("bucket_size", 0.2, 0.9),
}
OF_ITS_SHARE = (0.5, 1.0)  # what fixing any other cause saves of the time that it takes
MOST_LOST = 0.95
BEHIND_OTHERS = 1.0  # the share of a cause that comes before all others, whatever it takes
GOES_ON = ("slow", "healthy")
WARM_UP_STEPS = 10
TRACE = "perfwatch capture torch --steps 5 --shapes --stacks"
FEWER = f"a torch trace: counters and stacks name fewer levers, and no kernels ({TRACE})"
NO_CARD = "a GPU: none was seen at work, and most levers are about what one does"
MOST_WORKERS_MORE = 8  # that are proposed at once


def of_session(
    folder: Path, recording: Recording, case: Case, verdict: Verdict, trace: Path | None = None, refused: str = ""
) -> Headroom:
    """The headroom of a recording; the trace counts where one can be read.

    Args:
        folder: where the recording lies, and its captures.
        case, verdict: of the moment that is told.
        trace: the one that is meant; without it the newest of the session's own.
        refused: why a window that was asked for just now brought none.
    """
    usual = usual_step_seconds(recording)
    unread = [refused] if refused else []
    for path in [trace] if trace is not None else reversed(list(_traces(folder, recording))):
        try:
            steps = read(path, usual)
            found = advise(replace(steps, peak_bytes=steps.peak_bytes or _memory_in_use(recording)), path)
            levers = tuple(_with_workers(one, case) for one in found.levers)
            return structs.replace(found, levers=levers, slow=_slow(case, verdict))
        except TraceUnreadable as error:
            unread.append(error.message.replace(str(path), path.name))
    return of_counters(case, verdict, str(folder), usual, tuple(unread))


def usual_step_seconds(recording: Recording) -> float | None:
    """The median step of the rank that counted most, without its first steps; None where no step was counted."""
    found: dict[int, list[float]] = {}
    for record in recording.records:
        if isinstance(record.reading, Steps):
            told = record.reading
            fresh = zip(range(told.count, 0, -1), reversed(told.interval_seconds), strict=False)
            found.setdefault(told.pid, []).extend(one for step, one in fresh if step > WARM_UP_STEPS and one > 0.0)
    values = max(found.values(), key=len, default=[])
    return statistics.median(values) if values else None


def _memory_in_use(recording: Recording) -> int | None:
    """Most bytes that any card of the job was seen to hold; None where no card was sampled."""
    seen = (one.reading.memory_used_bytes for one in recording.records if isinstance(one.reading, GpuSample))
    return max((one for one in seen if one is not None), default=None)


def _traces(folder: Path, recording: Recording) -> Iterator[Path]:
    """The traces of the session's captures that still lie in it, oldest first; of each capture the first rank's."""
    for event in recording.events:
        if event.kind != "capture" or event.facts.get("kind") != "torch":
            continue
        files: Any = event.facts.get("files")
        for one in files[:1] if isinstance(files, list) else ():
            name = one.get("path") if isinstance(one, dict) else None
            if isinstance(name, str):
                yield from sorted(folder.glob(f"captures/**/{_plain(name)}"))[:1]


def _plain(path: str) -> str:
    """The last part of a path, with nothing in it that a pattern means."""
    return "".join(f"[{one}]" if one in "*?[" else one for one in path.rpartition("/")[2]) or "-"


def of_counters(
    case: Case, verdict: Verdict, source: str, usual: float | None, missing: tuple[str, ...] = ()
) -> Headroom:
    """What the card's counters, the stacks and the verdict on them say. Shares are of time, from the first rank's busiest card."""
    card = next((found[0] for rank in case.ranks if (found := regimes(case.history, rank.pid))), None)
    seen = case.history.latest(Gpu, card.uuid) if card is not None else None
    parts: tuple[Part, ...] = ()
    if card is not None and card.graphics is not None:
        data = min(data_wait_share(case), card.waiting)
        rows = (("kernels", card.graphics), ("data", data), ("host", card.waiting - data))
        parts = tuple(
            Part(what, round(share, 4), round(share * (usual or 0.0), 6)) for what, share in rows if share > 0
        )
    units = (f"kernels: the card's units show {card.shown()}",) if card is not None else ()
    return Headroom(
        source=source,
        seen_from="counters and stacks",
        card=seen.reading.name if seen is not None else "",
        steps=0,
        step_seconds=usual,
        traced_step_seconds=None,
        shares=parts,
        roofs=(),
        levers=_levers(case) if verdict.state in GOES_ON else (),
        missing=(*(_standing(verdict) or missing or (FEWER if card is not None else NO_CARD,)), *units),
        judged=verdict.state in GOES_ON,
        slow=_slow(case, verdict),
    )


def _standing(verdict: Verdict) -> tuple[str, ...]:
    """Why a job that does not go on, or of which that is not known, has no headroom."""
    if verdict.state in GOES_ON:
        return ()
    lacks = "a verdict" if verdict.state == "inconclusive" else f"steps: the job is {verdict.state}"
    return (f"{lacks}: {verdict.summary}",)


def _slow(case: Case, verdict: Verdict) -> Slow | None:
    """The cause of a slow run, and how many times as fast a step would be without it."""
    found = _finding(case, verdict.cause) if verdict.state == "slow" and verdict.cause is not None else None
    if found is None:
        return None
    _, *saved = FROM_FINDINGS.get(found.cause, ("", *OF_ITS_SHARE))
    share = found.lost_share if found.lost_share != BEHIND_OTHERS else None
    times = _times(share, *saved) if share else None
    return Slow(found.cause, verdict.summary, verdict.confidence, share, times, verdict.next)


def _finding(case: Case, cause: str) -> Finding | None:
    rule = next((one for one in RULES if one.cause.name == cause), None)
    found = rule.judge(case) if rule is not None else None
    return found if isinstance(found, Finding) else None


def _times(share: float, least: float, most: float) -> tuple[float, float]:
    """How many times as fast a step is without so much of a share of its time."""
    lost = min(share, MOST_LOST)
    return round(1 / (1 - least * lost), 2), round(1 / (1 - most * lost), 2)


def _levers(case: Case) -> tuple[Advice, ...]:
    rows = {lever.name: lever for lever in LEVERS}
    found: dict[str, Advice] = {}
    for finding in (_finding(case, cause) for cause in FROM_FINDINGS):
        if finding is None or not finding.lost_share:
            continue
        name, least, most = FROM_FINDINGS[finding.cause]
        lever = rows[name]
        advice = Advice(
            lever=name,
            title=lever.title,
            evidence=_evidence(finding),
            times=_times(finding.lost_share, least, most),
            cost=lever.cost,
            change=lever.change,
            where=next((one.frame for one in finding.culprits if one.frame), ""),
            source=f"the share that triage attributes to {finding.cause}",
            excludes=lever.excludes,
            unsure="without a trace the share is that of samples",
        )
        advice = _with_workers(advice, case)
        if name not in found or middle(advice) > middle(found[name]):
            found[name] = advice
    ranked = sorted((one for one in found.values() if middle(one) >= LEAST_TIMES), key=middle, reverse=True)
    return tuple(ranked[:MOST])


def _with_workers(advice: Advice, case: Case) -> Advice:
    """A lever of data loading with as many workers as the free cores of the machine feed; others, and without knowledge, as it is."""
    spare = spare_cores(case, case.ranks[0].pid) if advice.lever == "data_loading" and case.ranks else None
    if spare is None:
        return advice
    now = max(len(case.job.workers(rank.pid)) for rank in case.ranks)
    more = min(int(spare / len(case.ranks)), MOST_WORKERS_MORE)
    if not more:
        change = (
            "no core is free for more workers: make each sample cheaper, as by preparing the files once, before the run"
        )
    else:
        has = f"now {now}; " if now else ""
        are = f"{spare:.0f} core{'s are' if spare >= 1.5 else ' is'} free"
        change = advice.change.replace(MORE_WORKERS, f"num_workers={now + more} ({has}{are})")
    return structs.replace(advice, change=change)


def _evidence(finding: Finding) -> str:
    """The summary, and the first observation behind it."""
    shown = next((f" ({one.entity}: {one.observed})" for one in finding.evidence if one.observed), "")
    return f"{finding.summary}{shown}"
