"""The parts of a verdict in words, for every form of a report and for what ``run`` says; nothing here is cleaned, and nothing draws."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from perfwatch.text import duration
from perfwatch.triage.job import rank_ranges
from perfwatch.verdict import (
    IT_RUNS,
    NAPS,
    SLEEP,
    Culprit,
    Evidence,
    Link,
    Missing,
    Place,
    Verdict,
    confidence_word,
    doing,
)

_NUMBER = re.compile(r"\d+")
BLAMELESS = ("busy", "healthy", "inconclusive")  # states of a job in which nothing is wrong, or it is not known what
MOST_PIDS, LONGEST_SOURCE = 4, 120


def footer(verdict: Verdict) -> str:
    """When, of how many ranks, and what it cost; of a job that was not watched only what its files tell."""
    cost = verdict.observer_cost
    size, seen = verdict.coverage.world_size, verdict.coverage.ranks_seen
    ranks = f", {seen} of {size or '?'} {'rank' if size == 1 else 'ranks'} seen" if size or seen else ""
    step = "" if verdict.last_step is None else f", step {verdict.last_step:,}"
    if not (cost.cpu_seconds or cost.stack_dumps or cost.target_paused_ms):
        return f"{verdict.at}{ranks}{step}"
    calls = f"{cost.stack_dumps} py-spy {'call' if cost.stack_dumps == 1 else 'calls'}"
    paused = (
        f"paused the job for {duration(cost.target_paused_ms / 1e3)}"
        if cost.target_paused_ms
        else "never paused the job"
    )
    return f"{verdict.at}{ranks}{step}; perfwatch used {duration(cost.cpu_seconds)} of CPU, {calls}, {paused}"


def culprit_title(verdict: Verdict) -> str:
    """What a list of its culprits is called: what is normal, or not known, has no culprit."""
    return "where" if verdict.state in BLAMELESS else "culprit"


def fixed_in(verdict: Verdict) -> str:
    """Where the cause is usually fixed; empty where there is nothing to fix, or where that is unknown."""
    nothing = verdict.owner == "unknown" or verdict.state in ("healthy", "busy") or verdict.cause == "finished"
    return "" if nothing else verdict.owner.replace("_", " ")


def also_lines(verdict: Verdict) -> list[str]:
    """What other rules found beside the cause."""
    return [
        f"matches {one.cause} (confidence: {confidence_word(one.confidence)}), a consequence of {verdict.cause}"
        for one in verdict.findings
        if verdict.cause is not None and one.state == verdict.state
    ]


def not_seen(missing: Iterable[Missing]) -> list[str]:
    """What was not seen and why, stacks first: without them most verdicts are worth little. What differs in a number alone is told once."""
    alike: dict[tuple[str, str], list[Missing]] = {}
    for one in sorted(missing, key=lambda one: one.witness != "stacks"):
        alike.setdefault((one.witness, _NUMBER.sub("", one.reason)), []).append(one)
    lines = []
    for first, *others in alike.values():
        more = f" (and {len(others)} more like it)" if others else ""
        lines.append(f"{first.witness}: {first.reason}{more}" + (f" -> {first.advice}" if first.advice else ""))
    return lines


@dataclass(frozen=True)
class Blamed:
    """Culprits that stand at one place: which they are, where that is (``/data/train.py:21  in fetch``), and the text of the line."""

    who: str
    where: str = ""
    source: str = ""


def culprits_of(culprits: Iterable[Culprit]) -> list[Blamed]:
    """Whom to name, those at one place once."""
    alike: dict[tuple[object, ...], list[Culprit]] = {}
    for one in culprits:
        alike.setdefault((one.frame, one.thread, bool(one.worker_pid), one.gpu, one.host, _program(one)), []).append(
            one
        )
    return [_blamed(ones) for ones in alike.values()]


def _blamed(alike: list[Culprit]) -> Blamed:
    one = alike[0]
    program = _program(one)
    of_each = [each.worker_pid or each.pid for each in alike]
    pids, several = _pids(of_each), len(set(of_each)) > 1
    parents = {each.pid for each in alike}
    of = f" of pid {one.pid}" if one.worker_pid and len(parents) == 1 else ""
    ranks = [each.rank for each in alike if each.rank is not None]
    kind = ("process" if program else "worker") if one.worker_pid else "pid"
    words = [f"{_plural(kind, several)} {pids}{f' ({program})' if program else ''}{of}"] if pids else []
    if ranks:
        words = [_rank_text(ranks) + (f" ({words[0]})" if words else "")]
    words += [f"gpu {one.gpu}"] if one.gpu is not None else []
    words += [f"on {one.host}"] if one.host else []
    if one.thread and one.thread != "MainThread" and not program:
        words += [f"{len(alike)} threads {one.thread}" if len(alike) > len(set(of_each)) else f"thread {one.thread}"]
    place = one.place
    where = place_text(one.frame, place)
    return Blamed(
        ", ".join(words) or "the job", where, (place.source or "")[:LONGEST_SOURCE] if place is not None else ""
    )


def _pids(of_each: Iterable[int]) -> str:
    """``1, 3, 4 and 2 more``."""
    known = [pid for pid in dict.fromkeys(of_each) if pid]
    more = f" and {len(known) - MOST_PIDS} more" if len(known) > MOST_PIDS else ""
    return ", ".join(map(str, known[:MOST_PIDS])) + more


def culprit_text(one: Blamed) -> str:
    """Culprits in one line."""
    return "  ".join(part for part in (one.who, one.where, one.source) if part)


def place_text(frame: str | None, place: Place | None) -> str:
    """``/data/train.py:21  in fetch``, from the frame alone where no stack shows its path."""
    if place is not None:
        return f"{place.file}:{place.line}  in {place.function}"
    function, _, at = (frame or "").removesuffix(")").rpartition(" (")
    return f"{at}  in {function}" if function else frame or ""


def _rank_text(ranks: Iterable[int]) -> str:
    known = sorted(set(ranks))
    return f"{_plural('rank', len(known) > 1)} {rank_ranges(known)}"


def _plural(word: str, several: bool) -> str:
    return word if not several else "processes" if word == "process" else f"{word}s"


def _program(one: Culprit) -> str | None:
    """The name of a child that runs no Python, as far as was seen: its first thread bears that of the program."""
    first = one.worker_pid is not None and one.tid == one.worker_pid and one.frame is None
    return one.thread if first and one.thread != "MainThread" else None


def lived_text(verdict: Verdict) -> str:
    """What the last verdict on the living job was, beside one on its end."""
    after = "" if verdict.timeline.decided is None else f" (after {duration(verdict.timeline.decided)})"
    said = f"{verdict.state} {verdict.cause}" if verdict.cause else verdict.state
    return f"last verdict before it ended{after}: {said}, confidence {confidence_word(verdict.confidence)}: {verdict.summary}"


def links_of(chain: Iterable[Link]) -> list[tuple[int, str]]:
    """The wait chain, threads that stand alike at one depth once: depth and text of each line."""
    alike: dict[tuple[object, ...], list[Link]] = {}
    for one in chain:
        alike.setdefault((one.depth, one.frame, _NUMBER.sub("", one.waits_for), one.host), []).append(one)
    steps = list(alike.values())
    deeper = [after[0].depth > before[0].depth for before, after in pairwise([*steps, *steps[-1:]])]
    return [(ones[0].depth, _link_text(ones, last=not on)) for ones, on in zip(steps, deeper, strict=True)]


def _link_text(alike: list[Link], last: bool) -> str:
    """``ranks 0,2-3 (pids 1, 3, 4)  train.py:20 main  wait for all_reduce, for 21 s``; of those that wait for the next one no time."""
    one, several = alike[0], len(alike) > 1
    of_each = [each.pid for each in alike]
    pids = _pids(of_each)
    who = f"{_plural('pid', len(set(of_each)) > 1)} {pids}" if pids else ""
    ranks = [each.rank for each in alike if each.rank is not None]
    if ranks:
        who = _rank_text(ranks) + (f" ({who})" if who else "")
    function, _, at = (one.frame or "").removesuffix(")").rpartition(" (")
    frame = f"  {at} {function} " if function else f"  {one.frame} " if one.frame else " "
    silent = min((each.silent_seconds for each in alike if each.silent_seconds is not None), default=None)
    shown = silent is not None and last and not one.waits_for.startswith((IT_RUNS, NAPS))
    lasts = f", for {duration(silent)}" + (" so far" if one.waits_for.startswith(SLEEP) else "")
    return f"{who}{f' on {one.host}' if one.host else ''}{frame} {doing(one.waits_for, many=several)}{lasts if shown else ''}"


def evidence_of(evidence: Iterable[Evidence]) -> list[tuple[Evidence, str]]:
    """Each observation once, with the entities of which it was made, though its figures may differ a little."""
    alike: dict[tuple[str, str, str], list[Evidence]] = {}
    for one in evidence:
        alike.setdefault((one.witness, _NUMBER.sub("", one.claim), _NUMBER.sub("", one.observed)), []).append(one)
    return [(ones[0], _entities(ones)) for ones in alike.values()]


def _entities(alike: list[Evidence]) -> str:
    names = list(dict.fromkeys(one.entity for one in alike))
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
