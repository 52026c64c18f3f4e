"""How the job ended, by the lines of its logs: the first end over all ranks is the culprit, the others are its consequences.

A line is named by ``perfwatch.failures``. Three weights decide before time does: an end of its own precedes what a rank says that lost
another one (a watchdog, a connection), and both precede what only repeats an end (a launcher's summary, a signal).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from perfwatch.failures import ECHO, ORIGIN, PEER, Failure, named
from perfwatch.postmortem.stalled import culprit, faulty_ranks, frame_of, listed, pid_of
from perfwatch.triage.case import Case
from perfwatch.triage.questions import show
from perfwatch.triage.rule import Cause, Rule
from perfwatch.verdict import Abstention, Alternative, Culprit, Evidence, Finding, Missing, Outcome
from perfwatch_probes import readings as r

NAMED, FOLLOWED, REPEATED, HINTED = 0.95, 0.85, 0.75, 0.7
AT_ONCE_SECONDS = (
    30.0  # an end of its own so long after a consequence is one itself: what is torn down fails in its own ways
)
BEFORE_SECONDS = (
    3600.0  # that a word of the machine may precede the end that it explains: watchdogs wait for up to half an hour
)
MOST_EVIDENCE, MOST_TEXT = 6, 240
MOST_ATTEMPTS = 3  # earlier ones that are told
CAUSES = {
    "crashed": Cause("crashed", "gone", "user_code", (r.FailureLine,)),
    "killed": Cause("killed", "gone", "unknown", (r.FailureLine,)),
    "out_of_memory": Cause("out_of_memory", "gone", "user_code", (r.FailureLine,)),
    "gpu_fault": Cause("gpu_fault", "gone", "gpu", (r.FailureLine,)),
}

_OF_MACHINE = re.compile(
    r"NVRM: |SXid|invoked oom-killer|oom-kill:|Killed process \d+|Memory cgroup out of memory|segfault at|oom_reaper|^nvidia-smi: "
)


@dataclass(frozen=True)
class End:
    """One line, and what it is called."""

    line: r.FailureLine
    failure: Failure

    @property
    def weight(self) -> int:
        """Of a hint less than of anything else."""
        return ECHO + 1 if self.failure.hint else self.failure.weight

    @property
    def where(self) -> str:
        """``train.log:812``, with the rank."""
        rank = "" if self.line.rank is None else f"rank {self.line.rank}, "
        return f"{rank}{self.line.file}:{self.line.line}"


def judge(case: Case) -> Outcome:
    """Fires where a log or a scheduler tells of an end that the job did not get over."""
    ends = _ends(case)
    if not ends:
        lines = case.session.conditions.get("log_lines")
        nothing = (
            Missing(witness="logs", reason=f"no end is told in the {lines:,} lines of the logs") if lines else None
        )
        return Abstention(cause="crashed", missing=(nothing,)) if nothing else None
    before, ends = _attempts(ends)
    first = _first(ends)
    blamed, line = first.failure, first.line
    others = [one for one in ends if one is not first]
    return Finding(
        cause=blamed.cause,
        state="gone",
        sub_cause=blamed.name,
        retry=blamed.retry,
        summary=_summary(case, first) + _again(first, before),
        confidence=_confidence(first),
        owner=blamed.owner,
        culprits=_culprits(case, first),
        evidence=(
            _evidence(case, first),
            *(_of_attempt(case, one) for one in before[-MOST_ATTEMPTS:]),
            *(_evidence(case, one) for one in _distinct(others)),
        )[:MOST_EVIDENCE],
        alternatives=tuple(_alternatives(first, others)),
        next=(blamed.fix, *((f"read {line.file} from line {max(1, line.line - 40)}",) if line.line > 1 else ())),
    )


def _attempts(ends: list[End]) -> tuple[list[End], list[End]]:
    """The end of each attempt but the last, and all ends of the last one. What no attempt wrote (the kernel) is of the last."""
    last = max((one.line.attempt for one in ends if one.line.attempt is not None), default=None)
    by_attempt: dict[int, list[End]] = {}
    for one in ends:
        if one.line.attempt not in (None, last):
            by_attempt.setdefault(one.line.attempt or 0, []).append(one)
    return [_first(by_attempt[one]) for one in sorted(by_attempt)], [
        one for one in ends if one.line.attempt in (None, last)
    ]


def _again(first: End, before: list[End]) -> str:
    """How often the job was started again, and what all attempts ended by."""
    if not before:
        return ""
    every = [*before, first]
    said = f"; {len(every)} attempts ended"
    if len({one.failure.name for one in every}) == 1:
        said += f", each by {first.failure.name}"
    ranks, hosts = ({getattr(one.line, name) for one in every} for name in ("rank", "host"))
    if len(ranks) == 1 and first.line.rank is not None:
        said += f", each time in rank {first.line.rank}"
    return said + (
        f", each time on {first.line.host}: suspect that node" if len(hosts) == 1 and first.line.host else ""
    )


def _of_attempt(case: Case, one: End) -> Evidence:
    said = f"{one.failure.name} ({one.where}): {one.line.text[:MOST_TEXT]}"
    return case.saw("attempts", f"attempt {one.line.attempt}", "ended before", said)


def _ends(case: Case) -> list[End]:
    found = []
    for seen in case.history.every(r.FailureLine):
        failure = named(seen.reading.text)
        if failure is not None and not seen.reading.got_over:
            found.append(End(seen.reading, failure))
    strong = [one for one in found if not one.failure.hint]
    return _of_this_job(strong) or found


def _of_this_job(ends: list[End]) -> list[End]:
    """Without what a machine says of other jobs: its log goes back for days, and its card keeps its counts.

    Of what the machine says counts what names a process of the job, or fits an end for which the job itself gives no reason.
    """
    told = [one for one in ends if not _OF_MACHINE.search(one.line.text)]
    if not told:
        return ends
    pids = {one.line.pid for one in told} - {None}
    first = min((one.line.logged_at for one in told if one.line.logged_at is not None), default=None)
    has_reason = any(one.weight == ORIGIN and one.failure.cause != "gpu_fault" for one in told)

    def fits(one: End) -> bool:
        at = one.line.logged_at
        timely = at is None or first is None or -BEFORE_SECONDS <= at - first <= AT_ONCE_SECONDS
        explains = not has_reason or (one.failure.cause == "gpu_fault" and at is not None)
        return one.line.pid in pids or (timely and explains)

    return [one for one in ends if one in told or fits(one)]


def _first(ends: list[End]) -> End:
    """The end that the others follow from."""
    by_weight = {weight: [one for one in ends if one.weight == weight] for weight in {one.weight for one in ends}}
    origins, peers = by_weight.get(ORIGIN, []), by_weight.get(PEER, [])
    if origins and peers:
        torn = min((one.line.logged_at for one in peers if one.line.logged_at is not None), default=None)
        before = [
            one
            for one in origins
            if torn is None or one.line.logged_at is None or one.line.logged_at <= torn + AT_ONCE_SECONDS
        ]
        return _earliest(before or peers)
    return _earliest(by_weight[min(by_weight)])


def _earliest(ends: list[End]) -> End:
    """By time, as far as the lines have one; within a file the first line, and a kernel's or a scheduler's word before a guess."""
    timed = [one for one in ends if one.line.logged_at is not None]
    return min(timed or ends, key=lambda one: (one.line.logged_at or 0.0, one.line.line))


def _confidence(first: End) -> float:
    return {ORIGIN: NAMED, PEER: FOLLOWED, ECHO: REPEATED}.get(first.weight, HINTED)


def _summary(case: Case, first: End) -> str:
    failure, line = first.failure, first.line
    who = f"rank {line.rank}" if line.rank is not None else f"pid {line.pid}" if line.pid else "the job"
    host = f" on {line.host}" if line.host else ""
    said = f"{who}{host}: {failure.means}: {line.text[:MOST_TEXT]}"
    faulty = faulty_ranks(case) if first.weight == PEER else ()
    return f"{said}; by the flight recorders {listed(faulty)} is at fault" if faulty else said


def _culprits(case: Case, first: End) -> tuple[Culprit, ...]:
    """Of an end that follows from another rank, that rank, where the flight recorders name it."""
    if first.weight == PEER and (faulty := faulty_ranks(case)):
        return tuple(culprit(case, rank) for rank in faulty)
    line = msgspec.structs.replace(first.line, rank=_rank_of(case, first.line))
    frame = show(line.frame) if line.frame is not None else frame_of(case, line.rank) if line.rank is not None else None
    pid = line.pid or pid_of(case, line.rank)
    if line.rank is None and not pid and frame is None and not line.host:
        return ()
    return (Culprit(pid=pid, rank=line.rank, frame=frame, host=line.host or None),)


def _rank_of(case: Case, line: r.FailureLine) -> int | None:
    """The rank of which a line is, or that another line gives to its process: the kernel knows no ranks."""
    if line.rank is not None or line.pid is None:
        return line.rank
    lines = (seen.reading for seen in case.history.every(r.FailureLine))
    known = {one.rank for one in lines if one.pid == line.pid and one.rank is not None and line.host in ("", one.host)}
    return next(iter(known)) if len(known) == 1 else None


def _evidence(case: Case, one: End) -> Evidence:
    witness = "log" if one.line.line else "scheduler"
    return case.saw(witness, one.where, one.failure.means, one.line.text[:MOST_TEXT])


def _distinct(ends: Iterable[End]) -> list[End]:
    """One of each kind of end for each rank and file, the weightiest first."""
    found: dict[tuple[str, int | None, str], End] = {}
    for one in sorted(ends, key=lambda one: (one.weight, one.line.logged_at or 0.0, one.line.line)):
        found.setdefault((one.failure.name, one.line.rank, one.line.file), one)
    return list(found.values())


def _alternatives(first: End, others: list[End]) -> Iterable[Alternative]:
    seen = {first.failure.name}
    for one in _distinct(others):
        if one.failure.name in seen or one.failure.cause == first.failure.cause:
            continue
        seen.add(one.failure.name)
        later = one.line.logged_at is not None and first.line.logged_at is not None
        why = "came later" if later and one.line.logged_at > first.line.logged_at else "follows from it"  # type: ignore[operator]
        yield Alternative(cause=one.failure.cause, refuted_by=f"{one.failure.name} ({one.where}) {why}")


RULES = tuple(Rule(cause, judge) for cause in list(CAUSES.values())[:1])
