"""``capture stacks``: where every rank is now, on one page: equal stacks once, with the ranks that show them, the odd one out first.

``sample`` is what the command does: it finds the processes of the job, runs py-spy on all of them and folds the result. No watch,
no session and no verdict come before it, and nothing is written. ``collect`` is the same inside of a watch, which records it.

Nothing is paused: ``py-spy dump --nonblocking``, asked again where a stack moved while it was read. ``--native`` adds the
C and C++ frames, and for that py-spy must stop the process (45 ms for 41 threads, up to a second with torch loaded): so
only on a rank that a confirmed hang blames, named by ``--rank``, and never while one of its threads is in state D.
"""

import contextlib
import json
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from perfwatch.captures.capture import PTRACE, Collected, File, Outcome, Request, Scene, Subject, Window
from perfwatch.captures.guard import refuse_absent_ranks
from perfwatch.errors import CaptureFailed, CaptureRefused, CaptureUnavailable, PermissionDenied
from perfwatch.jobs.discovery import who_is_who
from perfwatch.jobs.other_trees import job_around
from perfwatch.jobs.permission import refuse_unreadable
from perfwatch.recording.redaction import redact, redact_command
from perfwatch.report.folded_stacks import Folded, Place, fold
from perfwatch.report.folding import MOST_IN_FULL, as_text, heading
from perfwatch.text import clean, duration
from perfwatch.triage.job import Job
from perfwatch.triage.questions import is_user, show
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.external import Finished
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Frame, ProbeCall, Reading, Stack, StackFailure
from perfwatch_probes.stacks import MISSING_ADVICE, Stacks, find_py_spy, left_traced, parse_dump
from perfwatch_probes.stat import stat_fields

NAME = "stacks"
SUMMARY = "py-spy: the stacks of all ranks and workers now, equal ones folded, the odd one out first"
DISTURBS = "nothing; --native pauses each named rank for up to a second, and says for how long"
USES: frozenset[str] = frozenset({PTRACE})
TRIGGERED_BY = ""
OPTIONS: Mapping[str, str] = {
    "native": "with C and C++ frames: pauses the rank, so only one that hangs and is named",
    "locals": "with the values of variables, on the terminal alone: they are never recorded",
    "threads": "with every thread of every process",
}

DUMP_SECONDS = 30.0  # for all of them: 16 ms each, four at once
NATIVE_SECONDS = 10.0
MOST_NATIVE = 2  # ranks; the suspect, and one to compare it with
_AGAIN_SECONDS = 0.2
MOST_LOCALS = 20  # of one frame
LONGEST_VALUE = 120
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SECRET_NAME = re.compile(r"pass|secret|token|key|auth|cred", re.I)


def belongs_to_the_user(scene: Scene) -> bool:
    """py-spy is ours, and may need our rights to read the process."""
    return False


def available(request: Request, scene: Scene) -> None:
    """py-spy is there; for native frames the hang is sure and the suspect named."""
    if find_py_spy() is None:
        raise CaptureUnavailable("py-spy is not installed", MISSING_ADVICE)
    if not scene.wanted(request):
        raise CaptureRefused("this machine has no rank of that number", "perfwatch ps lists the ranks")
    if request.options.get("native"):
        _allow_native(request, scene)


def estimated_bytes(request: Request, scene: Scene) -> int:
    """30 kB a process with many threads."""
    return 64 * 2**10 * sum(1 + len(one.workers) for one in scene.wanted(request))


def command(request: Request, scene: Scene, folder: Path) -> tuple[tuple[str, ...], ...]:
    """One dump per process; those of the native frames."""
    py_spy = find_py_spy() or "py-spy"
    if request.options.get("native"):
        return tuple(native_command(py_spy, one.pid) for one in scene.wanted(request))
    return tuple(
        (py_spy, "dump", "--nonblocking", "--json", "--pid", str(pid))
        for one in scene.wanted(request)
        for pid in (one.pid, *one.workers)
    )


def native_command(py_spy: str, pid: int) -> tuple[str, ...]:
    """With C and C++ frames, which needs a pause; pure."""
    return (py_spy, "dump", "--native", "--json", "--pid", str(pid))


def sample(pid: int, request: Request) -> Outcome:
    """The stacks of the job that a process belongs to, now; nothing is written.

    Args:
        pid: any process of the job.
        request: ``ranks`` and the options ``locals`` and ``threads`` count.

    Raises NoSuchTarget, NotATrainingJob and PermissionDenied as ``find_job`` does; PermissionDenied also where the kernel lets us
    read no process of the job; CaptureFailed, CaptureRefused and CaptureUnavailable as every capture.
    """
    began = time.monotonic()
    filesystem, child = Filesystem(), KillableChild()
    try:
        job = job_around(filesystem, pid, child)
    finally:
        child.close()
    answers: dict[int, bytes] | None = {} if request.options.get("locals") else None
    readings = _of_unclear_parts(job, answers)
    if readings:
        stacks = [one for one in readings if isinstance(one, Stack)]
        job = who_is_who(filesystem, (one.process for one in job.members.values()), stacks)
    ranks = tuple(
        Subject(
            pid=rank.pid,
            start_ticks=rank.process.start_ticks,
            rank=rank.rank,
            workers=tuple(one.pid for one in job.workers(rank.pid) if one.alive),
        )
        for rank in job.ranks
    )
    scene = Scene(subjects=ranks)
    refuse_absent_ranks(request, scene)
    available(request, scene)
    subjects = scene.wanted(request)
    wanted = {pid for one in subjects for pid in (one.pid, *one.workers)}
    known = {one.pid for one in readings if isinstance(one, Stack)}
    readings = [one for one in readings if isinstance(one, Stack) and one.pid in wanted]
    readings += _plain(wanted - known, scene.proc, answers)
    if answers is not None:
        answers = {one: answer for one, answer in answers.items() if one in wanted}
    stacks = [one for one in readings if isinstance(one, Stack)]
    if not stacks:
        with contextlib.closing(KillableChild()) as child:
            refuse_unreadable(filesystem, child, pid, f"perfwatch capture stacks {pid}")
        raise _nothing(readings, f"perfwatch capture stacks {pid}")
    folded = _odd_first(fold(_of_interest(subjects, stacks)))
    parts = [as_text(folded)]
    if answers is not None:
        parts.append(f"variables\n\n{_every_local(subjects, answers)}")
    if request.options.get("threads"):
        parts.append(f"every thread\n\n{_every_thread(subjects, stacks)}")
    return Outcome(
        kind=NAME,
        notes=tuple(_missing(subjects, readings)),
        total_seconds=round(time.monotonic() - began, 3),
        summary="\n".join(parts).rstrip(),
        report={"groups": _report(folded)},
    )


def collect(request: Request, scene: Scene, window: Window) -> Collected:
    """Dump every process, fold, write the page and every thread below it."""
    subjects = scene.wanted(request)
    notes: list[str] = []
    if request.options.get("native"):
        readings, notes = _native(subjects, scene, window)
    else:
        readings = _plain([pid for one in subjects for pid in (one.pid, *one.workers)], scene.proc)
    stacks = [one for one in readings if isinstance(one, Stack)]
    if not stacks:
        raise _nothing(readings, "perfwatch capture stacks PID")
    folded = _odd_first(fold(_of_interest(subjects, stacks)))
    page = as_text(folded)
    path = window.folder / "stacks.txt"
    path.write_text(page + "\nevery thread\n\n" + _every_thread(subjects, stacks))
    path.chmod(0o600)
    return Collected(
        files=(File(path=str(path), size_bytes=path.stat().st_size, opens_with="any editor"),),
        notes=(*notes, *_missing(subjects, readings)),
        summary=page.rstrip(),
        report={"groups": _report(folded)},
        readings=tuple(msgspec.to_builtins(one) for one in readings if isinstance(one, Stack) or _paused(one)),
    )


def _allow_native(request: Request, scene: Scene) -> None:
    if scene.state != "hung":
        unsure = scene.state in ("", "inconclusive")
        seen = "suspected" if scene.may_be_hung else "confirmed" if unsure else f"seen: the job is {scene.state}"
        raise CaptureRefused(
            f"--native pauses the job, and is for a confirmed hang alone; {'a' if scene.may_be_hung else 'no'} hang is {seen}",
            "leave --native out; perfwatch attach confirms a hang",
        )
    subjects = scene.wanted(request)
    if len(subjects) > MOST_NATIVE:
        raise CaptureRefused(
            f"--native would pause {len(subjects)} ranks",
            "name the suspect: --native --rank N (perfwatch attach says which)",
        )
    for subject in subjects:
        blocked = [
            tid for tid in _threads(subject.pid, scene.proc) if _state(subject.pid, tid, scene.proc) in ("D", "T", "t")
        ]
        if blocked:
            raise CaptureRefused(
                f"thread {blocked[0]} of pid {subject.pid} is blocked in the kernel or stopped: a pause might never end",
                "leave --native out",
            )


def _of_unclear_parts(job: Job, answers: dict[int, bytes] | None) -> list[Reading]:
    """The stacks that tell whether a rank only waits for others that it has started; none where it has started no training."""
    children = [
        one.pid for one in job.members.values() if one.role == "child" and one.alive and one.process.torch_loaded
    ]
    return _plain([*(rank.pid for rank in job.ranks), *children], Scene(()).proc, answers) if children else []


def _plain(pids: Collection[int], proc: Path, answers: dict[int, bytes] | None = None) -> list[Reading]:
    """``answers``: is given what py-spy said of each process, with the variables."""
    if not pids:
        return []
    probe = Stacks(proc=proc)
    readings = probe.dump(sorted(pids), DUMP_SECONDS, answers=answers)
    moved = [one.pid for one in readings if isinstance(one, StackFailure)]
    if moved:  # it was running: once more is mostly enough
        time.sleep(_AGAIN_SECONDS)
        readings = [one for one in readings if not isinstance(one, StackFailure)]
        readings += probe.dump(moved, DUMP_SECONDS, answers=answers)
    return readings


def _native(subjects: tuple[Subject, ...], scene: Scene, window: Window) -> tuple[list[Reading], list[str]]:
    readings: list[Reading] = []
    notes: list[str] = []
    probe = Stacks(proc=scene.proc)
    for subject in subjects:
        finished = window.run(native_command(find_py_spy() or "py-spy", subject.pid), NATIVE_SECONDS, None)
        notes.append(f"{_name(subject)} was paused for at most {duration(finished.duration_seconds, 3)}")
        readings += [_pause(subject.pid, finished.duration_seconds), *_answer(subject.pid, finished, probe)]
        try:
            marks = left_traced(subject.pid, scene.proc)
        except OSError:
            marks = []
        notes += [f"pid {subject.pid} is not as it was before: {mark}" for mark in marks]
    return readings, notes


def _pause(pid: int, seconds: float) -> ProbeCall:
    return ProbeCall(
        probe=NAME, entity=f"pid {pid}", duration_seconds=seconds, outcome="ok", target_paused_seconds=seconds
    )


def _paused(reading: Reading) -> bool:
    return isinstance(reading, ProbeCall) and reading.target_paused_seconds > 0.0


def _answer(pid: int, finished: Finished, probe: Stacks) -> list[Reading]:
    if finished.returncode == 0:
        try:
            return list(parse_dump(pid, finished.output))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return [StackFailure(pid=pid, message=f"unreadable answer of py-spy: {error}")]
    problem = probe.failure(pid, finished)
    if isinstance(problem, Unavailable):
        return [
            ProbeCall(
                probe=NAME,
                entity=f"pid {pid}",
                duration_seconds=finished.duration_seconds,
                outcome="unavailable",
                reason=problem.reason,
                advice=problem.advice,
            )
        ]
    return [problem]


def _of_interest(subjects: tuple[Subject, ...], stacks: list[Stack]) -> list[tuple[Place, tuple[Frame, ...]]]:
    """The main thread of each process: of a rank it trains, of a worker it fetches."""
    ranks = {one.pid: (one.rank, "rank") for one in subjects}
    ranks |= {pid: (one.rank, "worker") for one in subjects for pid in one.workers}
    found = []
    for pid, (rank, role) in ranks.items():
        own = [stack for stack in stacks if stack.pid == pid]
        main = next((one for one in own if one.tid == pid or one.thread == "MainThread"), own[0] if own else None)
        if main is not None:
            found.append((Place(pid, rank, role), main.frames))
    return found


def _odd_first(folded: Folded) -> Folded:
    """Ranks that stand apart before those that agree, and these still among the groups that a page shows in full."""
    if folded.dominant is None:
        return folded
    before = folded.outliers[: MOST_IN_FULL - 1]
    return replace(folded, groups=(*before, folded.dominant, *folded.outliers[len(before) :]))


def _every_thread(subjects: tuple[Subject, ...], stacks: list[Stack]) -> str:
    names = _names(subjects)
    lines = []
    for stack in stacks:
        lines.append(f"{names[stack.pid]}, thread {stack.tid} {stack.thread!r}")
        lines += [f"    {show(frame)}" for frame in stack.frames]
    return "\n".join(lines) + "\n"


def _every_local(subjects: tuple[Subject, ...], answers: Mapping[int, bytes]) -> str:
    """The variables of the program's own frames of each main thread, innermost first. What looks like a secret is left out."""
    names = _names(subjects)
    lines = []
    for pid, answer in answers.items():
        threads = json.loads(answer)
        main = next((one for one in threads if pid in (one["os_thread_id"], one["thread_id"])), threads[0])
        lines.append(names[pid])
        for frame in main["frames"]:
            shown = Frame(frame["name"], frame["filename"], frame["line"])
            if is_user(shown):
                lines.append(f"    {show(shown)}")
                lines += [f"        {_local(one)}" for one in (frame["locals"] or ())[:MOST_LOCALS]]
    return "\n".join(map(clean, lines)) + "\n"


def _local(found: Mapping[str, Any]) -> str:
    name, value = str(found["name"]), str(found["repr"])
    if _SECRET_NAME.search(name):
        return f"{name} = [redacted]"
    words = iter(redact_command(_QUOTED.findall(value)))  # a list of words may be a command line: "--password", "..."
    value = _QUOTED.sub(lambda _: f'"{next(words)}"', value)
    text = redact(f"{name}={value}").partition("=")[2]
    return f"{name} = {text if len(text) <= LONGEST_VALUE else f'{text[:LONGEST_VALUE]}…'}"


def _report(folded: Folded) -> list[dict[str, object]]:
    return [
        {
            "who": heading(group, folded.ranks),
            "role": group.role,
            "ranks": list(group.ranks),
            "pids": [place.pid for place in group.places],
            "frames": [{"function": one.function, "file": one.file, "line": one.line} for one in group.frames],
        }
        for group in folded.groups
    ]


def _missing(subjects: tuple[Subject, ...], readings: list[Reading]) -> list[str]:
    seen = {one.pid for one in readings if isinstance(one, Stack)}
    reasons = {one.entity: one.reason for one in readings if isinstance(one, ProbeCall) and one.reason}
    notes = []
    for one in subjects:
        for pid in (one.pid, *one.workers):
            if pid not in seen:
                notes.append(f"no stack of pid {pid}: {reasons.get(f'pid {pid}', 'it moved while it was read, twice')}")
    return notes


def _nothing(readings: list[Reading], command: str) -> CaptureFailed | PermissionDenied:
    refused = next((one for one in readings if isinstance(one, ProbeCall) and one.reason), None)
    if refused is not None:
        if "denied" in refused.reason:
            return PermissionDenied(refused.reason, f"sudo {command}")
        return CaptureFailed(refused.reason, refused.advice)
    return CaptureFailed("every stack moved while it was read", "try again, or: perfwatch capture flame")


def _name(subject: Subject) -> str:
    return f"rank {subject.rank}" if subject.rank is not None else f"pid {subject.pid}"


def _names(subjects: tuple[Subject, ...]) -> dict[int, str]:
    """By pid: ``rank 0, pid 700``, ``worker of rank 0, pid 701``."""
    found = {}
    for one in subjects:
        found[one.pid] = f"{_name(one)}, pid {one.pid}" if one.rank is not None else _name(one)
        found |= {pid: f"worker of {_name(one)}, pid {pid}" for pid in one.workers}
    return found


def _threads(pid: int, proc: Path) -> list[int]:
    try:
        return sorted(int(one.name) for one in (proc / str(pid) / "task").iterdir())
    except OSError:
        return []


def _state(pid: int, tid: int, proc: Path) -> str:
    try:
        return stat_fields(proc / str(pid) / "task" / str(tid))[0].decode()
    except (OSError, IndexError):
        return ""
