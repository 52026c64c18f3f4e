"""Ask every host of a job for its snapshot, put the answers together, and give one verdict.

What a host says is read as soon as it comes, so that no more than one raw answer is held. Nothing that a host does or says can
do more than make its own part missing.
"""

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from perfwatch import __version__
from perfwatch.errors import NoSuchTarget
from perfwatch.fleet import wire
from perfwatch.fleet.engine import REACH_SECONDS, Answer, Engine
from perfwatch.fleet.grouping import Group, chosen
from perfwatch.fleet.merge.fleet_recording import MODE, Said, said
from perfwatch.fleet.merge.hosts import AS_OWNER, HostReport, names
from perfwatch.fleet.merge.job_wide import judge_hosts
from perfwatch.fleet.merge.merging import Merged, Part, merge
from perfwatch.fleet.merge.snapshot import JobView, Snapshot
from perfwatch.hang_timeout import HANG_TIMEOUT_SECONDS
from perfwatch.recording.session import Session, this_machine
from perfwatch.report.folded_stacks import Folded
from perfwatch.text import duration, listed
from perfwatch.verdict import Verdict

START_SECONDS = 15.0  # a Python on a busy machine and a cold disk, reading what is there, and packing it
MOST_HOSTS_NAMED = 6

Progress = Callable[[int, int], None]  # hosts that have answered, hosts


@dataclass(frozen=True)
class Question:
    """What is asked of every host. ``deadline_seconds``: for the whole answer; None: what it takes as a rule."""

    seconds: float = 6.0
    patience_seconds: float = HANG_TIMEOUT_SECONDS
    job: str = ""
    deadline_seconds: float | None = None

    @property
    def ends_seconds(self) -> float:
        """After so many seconds a host that has not answered does not answer."""
        return self.deadline_seconds or REACH_SECONDS + START_SECONDS + self.seconds

    def arguments(self, nonce: str, scheduler: str = "") -> list[str]:
        """Words after ``perfwatch`` for each host. ``scheduler``: as ``Engine.job``."""
        words = ["snapshot", f"--seconds={self.seconds:g}", f"--patience={self.patience_seconds:g}", f"--nonce={nonce}"]
        words += [f"--job={self.job}"] if self.job else []
        return [*words, f"--scheduler={scheduler}"] if scheduler else words


@dataclass(frozen=True)
class Outcome:
    """The verdict for the whole job, its stacks, and what became of each host."""

    verdict: Verdict
    folded: Folded
    reports: tuple[HostReport, ...]
    job: str  # who the job says that it is
    merged: Merged
    said: list[Said]  # what a recording of it needs besides


@dataclass
class _Answers:
    """What has come so far."""

    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    reports: dict[str, HostReport] = field(default_factory=dict)
    received: dict[str, float] = field(default_factory=dict)  # unix time, on our clock


def ask(engine: Engine, question: Question, progress: Progress = lambda done, total: None) -> Outcome:
    """One round: every host looks for some seconds, and the whole is judged.

    Raises:
        NoSuchTarget: no host that answered has a training job.
        UsageError: there is more than one job on these hosts, and the question does not say which.
    """
    answers = _asked(engine, question, progress)
    if not any(snapshot.jobs for snapshot in answers.snapshots.values()):
        raise _nobody(answers)
    job = chosen(answers.snapshots, engine.job)
    parts, reports = _parts(engine.hosts, answers, job, engine.job)
    looked = [looked_at(answers.snapshots[part.host], part.view, answers.received[part.host]) for part in parts]
    now = time.time()
    session = Session(
        version=__version__,
        created=now - max(part.view.end for part in parts),
        mode=MODE,
        machine=this_machine(),
        command=parts[0].view.session.command,
        conditions={
            "patience_seconds": question.patience_seconds,
            "apart_seconds": round(max(looked) - min(looked), 1),
        },
    )
    merged = merge(parts, session)
    verdict, folded = judge_hosts(merged, parts, reports, engine.complete)
    beside = said(merged, parts, reports, engine.complete)
    return Outcome(verdict, folded, tuple(reports), job.identity.shown(), merged, beside)


def _asked(engine: Engine, question: Question, progress: Progress) -> _Answers:
    nonce = secrets.token_hex(8)
    asked_at = time.time()
    answers = _Answers()
    progress(0, len(engine.hosts))

    def heard(answer: Answer) -> None:
        _hear(answers, answer, nonce, asked_at, question, engine)
        progress(len(answers.reports), len(engine.hosts))

    engine.ask(question.arguments(nonce, engine.job), question.ends_seconds, heard)
    return answers


def _hear(answers: _Answers, answer: Answer, nonce: str, asked_at: float, question: Question, engine: Engine) -> None:
    """Read one host's answer; whatever is wrong with it becomes its report."""
    host = answer.host
    try:
        if answer.too_long:
            raise wire.Garbled(f"its answer is longer than {wire.LONGEST_ANSWER_BYTES // 2**20} MiB")
        snapshot = wire.read(answer.lines, nonce)
    except wire.Garbled as error:
        answers.reports[host] = _without(answer, str(error), question, engine)
        return
    twin = next((name for name, known in answers.snapshots.items() if known.place == snapshot.place), None)
    if twin is not None:
        reason = f"it is the same machine as {twin}"
        answers.reports[host] = HostReport(host=host, state="double", reason=reason)
        return
    answers.snapshots[host], answers.received[host] = snapshot, answer.received
    skew = skew_seconds(snapshot.made, asked_at + question.seconds, answer.received)
    answers.reports[host] = _without_the_job(snapshot, host, skew, question)


def _without_the_job(snapshot: Snapshot, host: str, skew: float, question: Question) -> HostReport:
    """A host that turns out to have no part of the job. Only where nothing was hidden or passed over, that is evidence."""
    if snapshot.hidden:
        reason = f"{snapshot.hidden} Python processes there may not be looked into"
        return HostReport(host=host, state="failed", reason=reason, advice=AS_OWNER)
    if snapshot.unwanted:
        reason = f"{snapshot.unwanted} jobs there do not say {question.job!r} of themselves"
        return HostReport(host=host, state="failed", reason=reason, advice="choose --job so that it fits on every host")
    return HostReport(host=host, state="no_job", skew_seconds=skew, reason="no process of the job is there")


def _without(answer: Answer, wrong: str, question: Question, engine: Engine) -> HostReport:
    """Why there is no snapshot: the machine, the way to it, or what runs there."""
    if answer.unasked:
        return HostReport(host=answer.host, state=answer.unasked, reason=answer.said)
    if answer.timed_out:
        reason = f"no answer within {duration(answer.waited or question.ends_seconds)}"
        if answer.nearly_all is not None:
            reason += f"; nearly all others had answered after {duration(answer.nearly_all)}"
        if answer.said:  # a banner, or what went wrong
            reason += f"; the last that came: {answer.said}"
        early, advice = answer.nearly_all is not None, engine.by_hand(answer.host)
        return HostReport(host=answer.host, state="silent", reason=reason, advice=advice, early=early)
    if answer.unreached:
        return HostReport(host=answer.host, state="silent", reason=answer.said)
    if answer.not_installed:
        return HostReport(
            host=answer.host,
            state="failed",
            reason=f"perfwatch could not be started there: {answer.said or 'not found'}",
            advice="install it there, or say where it is: --command /path/to/perfwatch",
        )
    if answer.exit_code and answer.said and not answer.too_long:
        return HostReport(host=answer.host, state="failed", reason=answer.said)
    if answer.lines or answer.too_long:
        return HostReport(host=answer.host, state="garbled", reason=wrong, advice="use one version on all hosts")
    return HostReport(host=answer.host, state="failed", reason=answer.said or "it printed nothing")


def skew_seconds(made: float, earliest: float, latest: float) -> float:
    """How far a clock is ahead (negative: behind), at least: what it showed at a moment between two of ours.

    0.0 where it may be right: an answer takes its time.
    """
    if made > latest:
        return round(made - latest, 1)
    return round(min(0.0, made - earliest), 1)


def looked_at(snapshot: Snapshot, view: JobView, received: float) -> float:
    """When a host's look at a job ended, on our clock: how long it then took to say so, its own clock tells.

    Hosts do not look at the same moment: a login takes its time, and of many only some are asked at once.
    """
    packing = snapshot.made - view.session.created - view.end
    return received - min(max(0.0, packing), START_SECONDS)


def _nobody(answers: _Answers) -> NoSuchTarget:
    reports = list(answers.reports.values())
    answered = names(reports, "no_job", "double")
    told = [f"no training job on {listed(answered)}"] if answered else []
    for report in reports:
        if report.state in ("silent", "failed", "garbled") and len(told) < 1 + MOST_HOSTS_NAMED:
            told.append(f"{report.host}: {report.reason}")
    advice = next((report.advice for report in reports if report.advice), "perfwatch ps, on one of the hosts")
    return NoSuchTarget("; ".join(told), advice)


def _parts(hosts: Sequence[str], answers: _Answers, job: Group, scheduler: str) -> tuple[list[Part], list[HostReport]]:
    """In the order of the hosts: the parts of the job, and what became of every host."""
    parts: list[Part] = []
    reports: list[HostReport] = []
    views = dict(job.views)
    for host in hosts:
        report = answers.reports.get(host) or HostReport(host=host, state="silent", reason="no answer")
        snapshot, view = answers.snapshots.get(host), views.get(host)
        if view is not None:
            parts.append(Part(host, view))
            report = HostReport(
                host=host,
                state="answered",
                ranks=view.ranks,
                hidden=view.hidden,
                skew_seconds=report.skew_seconds,
                left_out=view.left_out,
                folder=view.folder,
                verdict=f"{view.verdict.state} {view.verdict.cause or ''}".strip(),
                summary=view.verdict.summary,
                confidence=view.verdict.confidence,
            )
        elif scheduler and snapshot is not None and snapshot.jobs:
            reason = f"{len(snapshot.jobs)} jobs there do not say of which job of Slurm's they are"
            report = HostReport(host=host, state="failed", reason=reason, advice="choose one by --job TEXT")
        reports.append(report)
    return parts, reports
