"""How the job ended, by the lines of its logs: the first end over all ranks is the culprit, the others are its consequences.

A line is named by ``perfwatch.failures``. Three weights decide before time does: an end of its own precedes what a rank says that lost
another one (a watchdog, a connection), and both precede what only repeats an end (a launcher's summary, a signal).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from perfwatch.failures import ECHO, GENERAL, ORIGIN, PEER, THROUGH, TORN, Failure, is_frame, named
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
SEEN_SECONDS = 10.0  # until a launcher tells of a rank that was killed; those that it ends get SIGTERM first, and 30 s
BEFORE_SECONDS = (
    3600.0  # that a word of the machine may precede the end that it explains: watchdogs wait for up to half an hour
)
MOST_EVIDENCE, MOST_TEXT = 6, 240
SILENT = "by the logs (no time-out there)"
CAUSES = {
    "crashed": Cause("crashed", "gone", "user_code", (r.FailureLine,)),
    "killed": Cause("killed", "gone", "unknown", (r.FailureLine,)),
    "out_of_memory": Cause("out_of_memory", "gone", "user_code", (r.FailureLine,)),
    "gpu_fault": Cause("gpu_fault", "gone", "gpu", (r.FailureLine,)),
}

_OF_MACHINE = re.compile(
    r"NVRM: |SXid|invoked oom-killer|oom-kill:|Killed process \d+|Memory cgroup out of memory|segfault at|oom_reaper|^nvidia-smi: |"
    r"^dcgmi diag: |\[Hardware Error\]|EDAC |Kernel panic|Memory failure: |blocked for more than|detected stall|soft lockup"
)
# What NCCL's watchdog says of the calls of its rank (torch, ProcessGroupNCCL.cpp), group by group.
_NUMBER = re.compile(r"\d")
BY_SIGNAL = ("sigkill", "segmentation_fault", "abort", "bus_error", "illegal_instruction")
_ENQUEUED = re.compile(r"[Ll]ast enqueued NCCL work: (-?\d{1,12})")
_GROUP = re.compile(r"PG GUID ([^\s(\]]{1,80})")


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
            Missing(witness="logs", reason=f"none of the {lines:,} log lines says how it ended") if lines else None
        )
        return Abstention(cause="crashed", missing=(nothing,)) if nothing else None
    first, others = _first_of_a_rank(ends)
    blamed, line = first.failure, first.line
    return Finding(
        cause=blamed.cause,
        state="gone",
        sub_cause=blamed.name,
        retry=blamed.retry,
        summary=_summary(case, first),
        confidence=_confidence(case, first),
        owner=blamed.owner,
        culprits=_culprits(case, first),
        evidence=(
            _evidence(case, first),
            *(_evidence(case, one) for one in _distinct(others)),
        )[:MOST_EVIDENCE],
        alternatives=tuple(_alternatives(first, others)),
        next=(blamed.fix, *((f"read {line.file} from line {max(1, line.line - 40)}",) if line.line > 1 else ())),
    )


def first_end(case: Case) -> End | None:
    """The end that the others follow from, by the logs; None where none tells of any."""
    ends = _ends(case)
    return _first_of_a_rank(ends)[0] if ends else None


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


def _says_who(ends: list[End]) -> list[End]:
    """Without what says less than another line of the same rank in the same file: a lost connection. And without an exception of no kind
    that another rank raised where its kind can be told."""

    # A launcher may first say that a rank failed, and below that how: in its summary, or by the signal.
    known = {one.line.file for one in ends if (one.line.exit_code, one.line.signal) != (None, None)}
    known |= {one.line.file for one in ends if one.failure.name in BY_SIGNAL}
    ends = [
        one
        for one in ends
        if one.failure.name != "failed_child" or one.line.file not in known or _NUMBER.search(one.line.text)
    ]

    def is_torn(one: End) -> bool:
        return not is_frame(one.line.text) and TORN.search(one.line.text) is not None

    clear = {(one.line.file, one.line.rank) for one in ends if one.weight <= PEER and not is_torn(one)}
    told = {_words(one) for one in ends if one.failure.name not in GENERAL}
    return [
        one
        for one in ends
        if not (is_torn(one) and (one.line.file, one.line.rank) in clear)
        and not (one.failure.name in GENERAL and _words(one) in told)
    ]


def _words(one: End) -> str:
    """What a line says, without the frame that it came through."""
    return one.line.text.rpartition(THROUGH)[2] if is_frame(one.line.text) else one.line.text


def _first(ends: list[End]) -> End:
    """The end that the others follow from."""
    ends = _says_who(ends)
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
    first = _earliest(by_weight[min(by_weight)])
    if first.failure.name == "lost_peer":  # the peer was killed, unless a launcher killed it for what the others say
        killed = [one for one in ends if one.failure.name == "sigkill" and not _came_later(one, first)]
        return _earliest(killed or [first])
    return first


def _came_later(one: End, other: End) -> bool:
    """True if a line is from more than ``SEEN_SECONDS`` after another one, as far as both have a time."""
    at, before = one.line.logged_at, other.line.logged_at
    return at is not None and before is not None and at > before + SEEN_SECONDS


def _first_of_a_rank(ends: list[End]) -> tuple[End, list[End]]:
    """The first end, with the rank that another line gives to it, and the others.

    The kernel knows processes and no ranks; native code writes past the prefix that Python's own words of that error have.
    """
    first = _first(ends)
    others = [one for one in ends if one is not first]
    line = first.line
    if line.rank is not None:
        return first, others

    def is_same(one: End) -> bool:
        by_pid = one.line.pid == line.pid is not None and line.host in ("", one.line.host)
        return by_pid or (one.failure.name == first.failure.name not in GENERAL and one.line.file == line.file)

    known = {one.line.rank for one in others if one.line.rank is not None and is_same(one)}
    rank = next(iter(known)) if len(known) == 1 else None
    return End(msgspec.structs.replace(line, rank=rank), first.failure), others


def _earliest(ends: list[End]) -> End:
    """By time, as far as the lines have one; within a file the first line, and a kernel's or a scheduler's word before a guess."""
    timed = [(at, one) for one in ends if (at := _moment(one, ends)) is not None]
    return min(timed or [(0.0, one) for one in ends], key=lambda pair: (pair[0], pair[1].line.line))[1]


def _moment(one: End, ends: list[End]) -> float | None:
    """When a line was written: no later than the lines below it in its file."""
    if one.line.logged_at is not None:
        return one.line.logged_at
    below = (other.line for other in ends if other.line.file == one.line.file and other.line.line > one.line.line)
    return min((line.logged_at for line in below if line.logged_at is not None), default=None)


def _confidence(case: Case, first: End) -> float:
    if first.weight == PEER and _awaited(case)[1] == SILENT:
        return REPEATED
    return {ORIGIN: NAMED, PEER: FOLLOWED, ECHO: REPEATED}.get(first.weight, HINTED)


def _summary(case: Case, first: End) -> str:
    failure, line = first.failure, first.line
    who = f"rank {line.rank}" if line.rank is not None else f"pid {line.pid}" if line.pid else "the job"
    host = f" on {line.host}" if line.host else ""
    said = f"{who}{host}: {failure.means}: {line.text[:MOST_TEXT]}"
    if first.weight != PEER:
        return said
    faulty, why = _awaited(case)
    return f"{said}; {why} {listed(faulty)} {'is' if len(faulty) == 1 else 'are'} at fault" if faulty else said


def _awaited(case: Case) -> tuple[tuple[int, ...], str]:
    """The ranks that the others waited for and that never came, and what tells it; none where nothing does."""
    if faulty := faulty_ranks(case):
        return faulty, "by the flight recorders"
    ends = _ends(case)
    counts: dict[str, dict[int, int]] = {}
    for one in ends:
        told = _ENQUEUED.search(one.line.text)
        if told is not None and one.line.rank is not None:
            group = _GROUP.search(one.line.text)
            counts.setdefault(group[1] if group else "", {}).setdefault(one.line.rank, int(told[1]))
    for calls in counts.values():
        least = min(calls.values())
        behind = tuple(rank for rank, count in sorted(calls.items()) if count == least)
        if len(behind) < len(calls):
            return behind, f"by the watchdogs' own counts (last enqueued: {least} and {max(calls.values())})"
    waited = {one.line.rank for one in ends if one.failure.name == "nccl_timeout"}
    silent = tuple(
        sorted({rank for one in case.job.ranks if (rank := one.rank) is not None} - {one.line.rank for one in ends})
    )
    few = len(silent) == 1 or len(silent) < len(
        waited
    )  # a launcher ends the others soon: of many, victims may be silent too
    if silent and few and waited and None not in waited and all(one.weight >= PEER for one in ends):
        return silent, SILENT
    return (), ""


def _culprits(case: Case, first: End) -> tuple[Culprit, ...]:
    """Of an end that follows from another rank, that rank, where the flight recorders name it."""
    if first.weight == PEER and (faulty := _awaited(case)[0]):
        return tuple(culprit(case, rank) for rank in faulty)
    line = first.line
    frame = show(line.frame) if line.frame is not None else frame_of(case, line.rank) if line.rank is not None else None
    pid = line.pid or pid_of(case, line.rank)
    if line.rank is None and not pid and frame is None and not line.host:
        return ()
    return (Culprit(pid=pid, rank=line.rank, frame=frame, host=line.host or None),)


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
