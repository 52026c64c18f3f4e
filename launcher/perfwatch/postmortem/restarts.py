"""Several attempts of one job are one story: what ended each, what recurs, whether training advanced, and how fast it was restarted.

Each earlier attempt was judged by itself (an ``attempt`` event with its verdict). The verdict is on the last one.

- The same host in every attempt, with other hosts beside it and another rank: that node is suspect. The same rank on other hosts:
  not the node, but that rank's data or code. The same rank on the same host: one of the two.
- Attempts that begin at the same step make no progress: no checkpoint was saved in between, or it is not loaded.
- Three or more attempts that lived for less than ten minutes each are a restart storm.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

import msgspec

from perfwatch.failures import AFTER_FIXING
from perfwatch.recording.recording import Event
from perfwatch.text import duration
from perfwatch.triage.case import Case
from perfwatch.verdict import Evidence, Verdict

ATTEMPT = "attempt"  # the kind of the event
STORM, SHORT_SECONDS = 3, 600.0  # attempts at least, and their mean life at most
AGAIN = 2  # attempts with one end in which something recurs
MOST_TOLD = 6  # attempts whose evidence is kept, the newest
MOST_EVIDENCE = 10
_NODE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"
)  # anything else in a recording is no name to be pasted into a shell


@dataclass(frozen=True)
class Told:
    """One attempt, and what is known of it."""

    event: Event
    verdict: Verdict

    @property
    def end(self) -> str:
        """What it ended by."""
        return self.verdict.sub_cause or self.verdict.cause or "nothing that is known"

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks at fault."""
        return frozenset(one.rank for one in self.verdict.culprits if one.rank is not None)

    @property
    def hosts(self) -> frozenset[str]:
        """The hosts at fault."""
        return frozenset(one.host for one in self.verdict.culprits if one.host)

    @property
    def start_step(self) -> int | None:
        """Where it began: at the checkpoint that it loaded, else at its first step."""
        resumed = self.event.facts.get("resumed_step")
        found = self.event.facts.get("first_step") if resumed is None else resumed
        return found if isinstance(found, int) else None

    @property
    def seconds(self) -> float | None:
        """How long it lived."""
        began, ended = self.event.facts.get("began"), self.event.facts.get("ended")
        known = isinstance(began, int | float) and isinstance(ended, int | float) and ended > began
        return float(ended - began) if known else None  # type: ignore[operator]


def with_attempts(case: Case, verdict: Verdict) -> Verdict:
    """The verdict on the last attempt with the story of all of them; as it is where there was one."""
    told = [Told(one, one.verdict or verdict) for one in case.events if one.kind == ATTEMPT]
    if len(told) < AGAIN:
        return verdict
    same_end = len({one.end for one in told}) == 1
    node, rank = _suspect_node(told), _same_rank(told)
    stuck_at, storm = _no_progress(told), _storm(told)
    said = [f"{len(told)} attempts ended" + (f", each by {told[-1].end}" if same_end else "")]
    first_of_all, advice = [], []
    alone = _is_only_host(told)
    if node:
        said.append(f"each time on {node}: suspect that node" + (" if the job had others" if alone else ""))
        commands = f"scontrol update nodename={node} state=drain reason=perfwatch; kubectl cordon {node}"
        first_of_all.append(
            f"start the job without that node: {commands}"
            if _NODE.fullmatch(node)
            else "start the job without that node"
        )
    elif rank is not None:
        hosts = {host for one in told for host in one.hosts}
        elsewhere = len(hosts) > 1
        said.append(
            f"each time in rank {rank}"
            + (", on different nodes: its data or its code, not a node" if elsewhere else "")
        )
    if stuck_at is not None:
        said.append(stuck_at)
        advice.append("save checkpoints more often, and check that the newest one is loaded")
    if storm:
        said.append(storm)
        advice.append(
            "stop the restarts until the cause is fixed: torchrun --max-restarts=0; scontrol hold JOBID; kubectl delete job"
        )
    hopeless = (node and not alone) or (same_end and stuck_at is not None) or (same_end and storm)
    return msgspec.structs.replace(
        verdict,
        summary=f"{verdict.summary}; {'; '.join(said)}",
        evidence=(*verdict.evidence[:1], *_timeline(told), *verdict.evidence[1:])[:MOST_EVIDENCE],
        retry=AFTER_FIXING if hopeless and verdict.retry is not None else verdict.retry,
        next=(*first_of_all, *verdict.next[:1], *advice, *verdict.next[1:]),
    )


def _suspect_node(told: list[Told]) -> str:
    """The one host on which every attempt failed, unless the job had no other or it was always the same rank with the same error."""
    hosts = frozenset.intersection(*(one.hosts for one in told))
    if len(hosts) != 1 or (_is_only_host(told) and any(map(_saw_every_rank, told))):
        return ""
    only_rank = _same_rank(told)
    code = all(one.verdict.owner in ("user_code", "data") for one in told)
    return next(iter(hosts)) if only_rank is None or not code else ""


def _saw_every_rank(one: Told) -> bool:
    """True if all ranks of the job were seen on that host."""
    size = one.verdict.coverage.world_size or 0
    return one.verdict.coverage.ranks_seen == size > max(one.ranks, default=-1) and size > 0


def _is_only_host(told: list[Told]) -> bool:
    """True if the files name no other host."""
    return len({host for one in told for host in _hosts(one)}) < 2


def _hosts(one: Told) -> Iterable[str]:
    listed = one.event.facts.get("hosts")
    return (*one.hosts, *(str(host) for host in (listed if isinstance(listed, list | tuple) else ())))


def _same_rank(told: list[Told]) -> int | None:
    ranks = frozenset.intersection(*(one.ranks for one in told))
    return next(iter(ranks)) if len(ranks) == 1 else None


def _no_progress(told: list[Told]) -> str | None:
    """That the newest attempts began where the one before them had begun, in words."""
    starts = [one.start_step for one in told]
    alike = 1
    while alike < len(starts) and starts[-1] is not None and starts[-1 - alike] == starts[-1]:
        alike += 1
    if alike < AGAIN:
        return None
    every = "every attempt" if alike == len(told) else f"each of the last {alike} attempts"
    saved = [it for one in told[-alike:] if isinstance(it := one.event.facts.get("saved_step"), int)]
    newer = max(saved, default=None)
    start = starts[-1]
    assert start is not None
    if newer is not None and newer > start:
        return f"{every} began at step {start}, although a checkpoint of step {newer} was saved: it is not loaded"
    why = "no newer checkpoint was saved" if saved else "no log tells of a checkpoint that was saved"
    return f"{every} began at step {start}: {why}"


def _storm(told: list[Told]) -> str:
    lives = [one.seconds for one in told if one.seconds is not None]
    if len(told) < STORM or len(lives) < STORM or sum(lives) / len(lives) > SHORT_SECONDS:
        return ""
    return f"restart storm: they lived for {duration(sum(lives) / len(lives))} on average"


def _timeline(told: list[Told]) -> list[Evidence]:
    """What ended each of the newest attempts, in order of time."""
    skipped = max(0, len(told) - MOST_TOLD)
    return [_evidence(one, number, len(told)) for number, one in enumerate(told[skipped:], skipped + 1)]


def _evidence(one: Told, number: int, of: int) -> Evidence:
    facts = one.event.facts
    ranks = ", ".join(f"rank {rank}" for rank in sorted(one.ranks)[:4])
    hosts = ", ".join(sorted(one.hosts)[:4])
    first, last, saved = one.start_step, facts.get("last_step"), facts.get("saved_step")
    parts = [
        " on ".join(part for part in (ranks, hosts) if part),
        "" if one.seconds is None else f"lived {duration(one.seconds)}",
        f"steps {first} to {last}" if first is not None and last is not None else "",
        f"saved a checkpoint at step {saved}" if saved is not None else "",
    ]
    began = facts.get("began")
    at = f", {_clock(began)}" if isinstance(began, int | float) else ""
    return Evidence(
        witness="attempts",
        entity=f"attempt {number} of {of}{at}",
        claim=f"ended by {one.end}" if one.verdict.state == "gone" else f"was {one.verdict.state}: {one.end}",
        observed="; ".join(part for part in parts if part) or one.verdict.summary[:200],
    )


def _clock(moment: float) -> str:
    try:
        return f"{datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%d %H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"
