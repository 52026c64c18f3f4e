"""What every form of a report tells: one recording, judged at one moment. Read once, shown in many ways."""

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from perfwatch.postmortem import judge
from perfwatch.recording.recording import Recording
from perfwatch.report.moment import lasts, of_its_time, told_first
from perfwatch.text import clean, duration
from perfwatch.triage.case import Case
from perfwatch.triage.history import History
from perfwatch.triage.questions import has_ended, show, user_frame
from perfwatch.verdict import Spread, Verdict
from perfwatch_probes import readings as r

NO_ID = "none"  # of a torchrun that was given none
JOB_IDS = {"SLURM_JOB_ID": "Slurm", "FLUX_JOB_ID": "Flux", "TORCHELASTIC_RUN_ID": "torchelastic run"}
CONDITIONS = {"patience_seconds": "hang timeout in seconds"}
MOST_NAMED = 8
ROLES = ("rank", "worker", "pool_worker", "compile", "child", "launcher", "service")


@dataclass(frozen=True)
class Story:
    """A recording up to ``at`` seconds after its start, and the verdict on it.

    recording: all of it, so that what came afterwards can be shown as such; case: what was known at ``at``; lived: where the
    verdict is on how the job ended, the last one while it lived.
    """

    folder: Path
    recording: Recording
    at: float
    case: Case
    verdict: Verdict
    lived: Verdict | None = None

    @cached_property
    def whole(self) -> Case:
        """What was known at the end of the recording: the time axis of a report goes that far, whenever it was judged."""
        end = self.recording.end
        if self.at >= end:
            return self.case
        return Case(History(self.recording.records, end), self.recording.session, self.recording.events)

    @cached_property
    def lasted(self) -> str:
        """From when until when the state lasted, in words."""
        return lasts(self.recording, self.at, self.verdict)

    @property
    def title(self) -> str:
        """The state and the cause, as a window's title has it."""
        cause = f" {self.verdict.cause}" if self.verdict.cause else ""
        return f"{self.verdict.state}{cause}: {self.folder.name}"


@dataclass(frozen=True)
class ThreadLine:
    """One thread as it was last seen. ``state``: the kernel's letter; ``waits_for``: its system call, with the wait's kind."""

    role: str
    rank: int | None
    pid: int
    tid: int
    name: str
    state: str
    frame: str
    waits_for: str
    still_seconds: float | None  # since it last ran
    cpu_seconds: float | None
    seen_at: float


@dataclass(frozen=True)
class ProbeLine:
    """What one probe has cost and how often it had nothing to say."""

    probe: str
    calls: int
    cpu_seconds: float
    longest_seconds: float
    failed: int
    reason: str


@dataclass(frozen=True)
class Crash:
    """The traceback with which processes ended, redacted as it was recorded; its lines are cleaned."""

    heading: str
    lines: tuple[str, ...]


def about(recording: Recording) -> list[tuple[str, str]]:
    """Which job this is, whose, where, and with which versions, as far as was seen: name and value."""
    session = recording.session
    processes = [one.reading for one in recording.records if isinstance(one.reading, r.Process)]
    software = next((one.reading for one in recording.records if isinstance(one.reading, r.Software)), None)
    uids = {one.uid for one in processes if one.pid in session.root_pids and one.uid is not None}
    user = session.conditions.get("user") or ", ".join(f"uid {uid}" for uid in sorted(uids))
    variables = {name: value for one in processes for name, value in one.environment.items()}
    jobs = [
        f"{what} {variables[name]}" for name, what in JOB_IDS.items() if variables.get(name, NO_ID) not in ("", NO_ID)
    ]
    parts = [("torch", "torch"), ("cuda", "CUDA"), ("nccl", "NCCL"), ("python", "Python")]
    versions = [f"{what} {getattr(software, name)}" for name, what in parts if getattr(software, name, None)]
    facts = [
        ("command", " ".join(session.command)),
        ("user", str(user)),
        ("job", ", ".join(jobs)),
        ("host", session.machine.name),
        ("pid", ", ".join(map(str, session.root_pids))),
        ("versions", ", ".join(versions)),
        ("watched by", f"perfwatch {session.version}, {session.mode}"),
    ]
    return [(name, value) for name, value in facts if value]


def tell(folder: Path, recording: Recording, at: float) -> Story:
    """Judge a recording as it was known ``at`` seconds after its start, and keep what was read for it."""
    case = Case(History(recording.records, at), recording.session, recording.events)
    return Story(folder, recording, at, case, judge(case))


def tell_whole(folder: Path, recording: Recording) -> Story:
    """The same at the moment that matters: the last of the living job, or its end."""
    story, lived = told_first(recording, lambda at: tell(folder, recording, at))
    return replace(story, verdict=of_its_time(recording, story.verdict), lived=lived)


def crashes(story: Story) -> list[Crash]:
    """The tracebacks of ranks and their threads in the order in which they were raised, equal ones once; all that were recorded."""
    raised = [one for one in story.recording.records if isinstance(one.reading, r.Traceback | r.ThreadError)]
    raised.sort(key=lambda one: one.at - (getattr(one.reading, "ago_seconds", None) or 0.0))
    whose: dict[str, list[str]] = defaultdict(list)
    for one in raised:
        assert isinstance(one.reading, r.Traceback | r.ThreadError)
        rank = story.whole.job.rank_of(one.reading.pid)
        who = f"pid {one.reading.pid}" if rank is None else f"rank {rank} (pid {one.reading.pid})"
        who += f", thread {one.reading.tid} alone" if isinstance(one.reading, r.ThreadError) else ""
        if who not in whose[one.reading.text]:
            whose[one.reading.text].append(who)
    return [
        Crash(
            ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""),
            tuple(map(clean, text.rstrip().splitlines())),
        )
        for text, names in whose.items()
    ]


def threads(story: Story) -> list[ThreadLine]:
    """Every thread that was looked at, ranks first, then by process; of a dead process none."""
    history, job = story.case.history, story.case.job
    keys = dict.fromkeys([*history.entities(r.Thread), *history.entities(r.Stack)])
    lines = []
    for pid, tid in keys:
        member = job.members.get(pid)
        if member is None or not member.alive or has_ended(history, pid, tid):
            continue
        thread, stack = history.latest(r.Thread, pid, tid), history.latest(r.Stack, pid, tid)
        frame = "" if stack is None else show(user_frame(stack.reading) or next(iter(stack.reading.frames), None)) or ""
        seen = thread.reading if thread is not None else None
        name = seen.name if seen is not None else stack.reading.thread if stack is not None else ""
        lines.append(
            ThreadLine(
                role=member.role,
                rank=member.rank,
                pid=pid,
                tid=tid,
                name=name,
                state=seen.state if seen is not None else "?",
                frame=frame,
                waits_for=wait_text(seen),
                still_seconds=seen.ran_ago_seconds if seen is not None else None,
                cpu_seconds=seen.cpu_seconds if seen is not None else None,
                seen_at=max(one.at for one in (thread, stack) if one is not None),
            )
        )
    return sorted(
        lines, key=lambda one: (ROLES.index(one.role), _order(one.rank), one.pid, one.tid != one.pid, one.tid)
    )


def probes(story: Story) -> list[ProbeLine]:
    """What each probe has cost up to the verdict, the dearest first."""
    calls: dict[str, list[r.ProbeCall]] = defaultdict(list)
    for seen in story.case.history.every(r.ProbeCall):
        calls[seen.reading.probe].append(seen.reading)
    lines = []
    for probe, made in calls.items():
        failures = Counter(one.reason for one in made if one.outcome not in ("ok", "absent"))
        lines.append(
            ProbeLine(
                probe=probe,
                calls=len(made),
                cpu_seconds=sum(one.cpu_seconds or 0.0 for one in made),
                longest_seconds=max(one.duration_seconds for one in made),
                failed=failures.total(),
                reason=failures.most_common(1)[0][0] if failures else "",
            )
        )
    return sorted(lines, key=lambda one: -one.cpu_seconds)


def conditions(story: Story) -> list[tuple[str, str]]:
    """How it was measured: what a figure depends on, as name and value."""
    session, machine = story.recording.session, story.recording.session.machine
    facts = [
        *about(story.recording),
        ("machine", f"{machine.name}, {machine.cpus} CPUs, {machine.memory_bytes / 2**30:,.0f} GiB"),
        ("kernel", f"{machine.kernel} {machine.architecture}"),
        ("watched for", f"{duration(story.recording.end)}; judged at {duration(story.at)}"),
    ]
    facts += [
        (CONDITIONS.get(name, name.replace("_", " ")), str(value))
        for name, value in session.conditions.items()
        if value is not None and name != "user"
    ]
    history = story.case.history
    for key in history.entities(r.Gpu):
        seen = history.latest(r.Gpu, *key)
        if seen is not None:
            card = seen.reading
            limit = "" if card.power_limit_watts is None else f", {card.power_limit_watts:.0f} W"
            clock = "" if card.sm_clock_max_mhz is None else f", up to {card.sm_clock_max_mhz} MHz"
            units = "" if card.gpm is None else ", units seen (GPM)" if card.gpm else ", units not seen (no GPM)"
            facts.append((f"gpu {card.index}", f"{card.name}, driver {card.driver_version}{limit}{clock}{units}"))
    if story.recording.left_out:
        facts.append(("left out", story.recording.left_out))
    return facts


def wait_text(seen: r.Thread | None) -> str:
    """What a thread waits in, as the kernel names it; not cleaned."""
    if seen is None:
        return ""
    if seen.wait is None:
        return seen.wchan or ""
    path = f" {seen.wait.path}" if seen.wait.path else ""
    return f"{seen.wait.call}{path}" + ("" if seen.wait.kind == seen.wait.call else f" ({seen.wait.kind})")


def efficiency(story: Story) -> list[tuple[str, str]]:
    """How close the cards came to what they can do, as the verdict has it: name and value."""
    figures = story.verdict.efficiency
    facts = []
    for card in figures.cards if figures is not None else ():
        name = card.name if card.gpu is None else f"gpu {card.gpu}"
        parts = [
            ("tensor TFLOP/s", card.tensor_tflops, card.peak_tflops, "{:,.0f}"),
            ("of the peak at its highest clock", card.hfu_at_boost, None, "{:.0%}"),
            ("of the memory's bandwidth", card.dram_share, None, "{:.0%}"),
        ]
        said = [f"{what} {_spread(value, peak, shape)}" for what, value, peak, shape in parts if value is not None]
        facts.append((name, "; ".join(said) or card.unknown))
    model = figures.model if figures is not None else None
    if model is not None:
        mfu = model.missing if model.mfu is None else _spread(model.mfu, None, "{:.1%}")
        facts.append(("model FLOPs utilisation", mfu))
    return facts


def _spread(value: Spread, peak: float | None, shape: str) -> str:
    """The middle value, with the one that 5 % exceed, and what the card can do."""
    text = f"p50 {shape.format(value.p50)}, p95 {shape.format(value.p95)}"
    return text if peak is None else f"{text} of {shape.format(peak)}"


def _order(rank: int | None) -> int:
    return 1 << 30 if rank is None else rank
