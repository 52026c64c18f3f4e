"""Attach to a job: find it, record it, watch it until the verdict is clear (or for as long as the user stays)."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from perfwatch import __version__
from perfwatch.captures.capture import Outcome, Request, Scene
from perfwatch.captures.scene import scene_of
from perfwatch.captures.telling import Progress, headline
from perfwatch.errors import CaptureFailed, NoSuchTarget
from perfwatch.exporters.exporters import Open, Outlet, Outlets
from perfwatch.hang_timeout import HANG_TIMEOUT_SECONDS
from perfwatch.jobs.discovery import refuse_orphan, refuse_several
from perfwatch.jobs.other_trees import Relatives, relatives
from perfwatch.jobs.permission import refuse_unreadable
from perfwatch.jobs.pods import pod_names
from perfwatch.jobs.target import find_job
from perfwatch.processes.channel import Message
from perfwatch.processes.control import Answer, ControlServer, find_place, joined_control
from perfwatch.processes.linux import volunteer_for_the_oom_killer
from perfwatch.processes.stop_signals import Leaving
from perfwatch.recording.kept import remove_session
from perfwatch.recording.recording import BUDGET_BYTES, CAPTURE_BEGUN
from perfwatch.recording.session import Session, this_machine, user_of
from perfwatch.text import duration, say
from perfwatch.triage.questions import tags
from perfwatch.verdict import Verdict
from perfwatch.watching.answering import answer, answer_user, status
from perfwatch.watching.capturing import Capturing
from perfwatch.watching.failures import Failures
from perfwatch.watching.news import News
from perfwatch.watching.opening import keep_within_limits, open_recorder
from perfwatch.watching.status_line import StatusLine, leaning
from perfwatch.watching.watch import Watch
from perfwatch.watching.when_to_stop import UNCLEAR_SECONDS, OneShot, unjudged
from perfwatch_probes import readings as r
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.filesystem import Absent, Filesystem
from perfwatch_probes.guest import Guests, identity_of
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readable import readable

AFTER_FAILURE_SECONDS = 1.0
WITHOUT_TORCH_SECONDS = (
    3.0  # of samples: then a tree of processes without torch is no training, unless it imports something
)
FEW_NAMED = 3
FRESH_SECONDS = 2.0  # of a verdict that is given to a user who leaves
LOOK_SECONDS = 3.0  # before a capture: is it safe to make one?
CAPTURE_TURN_SECONDS = 0.1
REMOVE_SECONDS = 5.0


class _RequestServer:
    """Where other commands ask a watcher that stays. A machine without room for its socket does without."""

    def __init__(self, attached: "Attached", stream: IO[str]) -> None:
        self._attached, self._stream = attached, stream
        self.attended = False
        self._server: ControlServer | None = None
        self._capturing = Capturing(attached.folder, lambda: attached.scene(stream), attached.captured, attached.begun)
        with contextlib.suppress(OSError):
            self._server = ControlServer(joined_control(), self._answer, public=self._public)

    def serve(self, seconds: float) -> None:
        """Answer what is asked for so long, or until the watch has something to do sooner, or the user leaves."""
        attached, ends = self._attached, time.monotonic() + seconds
        self.attended = False
        while not self.attended:
            sooner = attached.sooner()
            ours = (*(self._server.filenos() if self._server is not None else ()), *self._capturing.filenos())
            if attached.leaving.wait(max(0.0, ends - time.monotonic()), *sooner, *ours):
                return
            if self._server is not None:
                self._server.serve()
            self._capturing.serve()
            if time.monotonic() >= ends or readable(0.0, *sooner):
                return

    def close(self) -> None:
        """Stop, and end a capture that is at work."""
        self._capturing.close()
        if self._server is not None:
            self._server.close()

    def _answer(self, request: Message) -> Message:
        return answer(
            request, self._attached.state, self._attend, lambda: self._attached.known(self._stream), self._capturing
        )

    def _public(self, uid: int) -> Answer | None:
        """What the job's user is told, at no cost: the state of the watch and the last verdict; of root's watcher alone."""
        attached = self._attached
        if os.geteuid() != 0 or uid != attached.user():
            return None
        return lambda request: answer_user(request, attached.state, attached.last)

    def _attend(self) -> None:
        """Look closely from now on, and at once."""
        self.attended = self._attached.attend()


class Attached:
    """A look at one running job.

    Args:
        pid: any process of the job.
        leaving: tells when the user wants to go.
        session: where to keep the recording; the first local disk by default.
        patience_seconds: for temporal ends.
        model: what the user says of the model, as conditions of the session.
        mode: how the session calls itself: attach, or daemon.
        budget_bytes: what the recording may take.
        outlets: opens what else is told to other programs while we stay; nothing by default.
        needs_memory: what the user has typed, where a job whose memory may not be read is refused; empty: it is watched.
        needs_environment: the same where its environment may not be read, as that of other users.
        watch: makes the watch, of what ``Watch`` takes.

    Attributes:
        folder: where the recording lies; None when no disk takes it.
        roots: the pids at the top of the job's trees.
        contained_run: True if a ``perfwatch run`` in a container has started it.
    """

    def __init__(
        self,
        pid: int,
        leaving: Leaving,
        *,
        session: str | None = None,
        patience_seconds: float = HANG_TIMEOUT_SECONDS,
        model: Mapping[str, float] | None = None,
        outlets: Open | None = None,
        needs_memory: str = "",
        needs_environment: str = "",
        mode: str = "attach",
        budget_bytes: int = BUDGET_BYTES,
        watch: Callable[..., Watch] = Watch,
    ) -> None:
        volunteer_for_the_oom_killer()
        self.leaving = leaving
        filesystem, child, self._guests = Filesystem(), KillableChild(), Guests()
        try:
            self._guests.meet(pid)
            place = find_place(pid, guests=self._guests)
            self._agent = place.folder if place is not None else None
            self.contained_run = self._agent is not None and self._agent.inside is not None
            started = place.roots if place is not None else ()
            asked = next((root.pid for root in started if root.launcher == pid), pid)
            target = find_job(filesystem, asked, child)
            refuse_orphan(target, filesystem, child)
            refuse_several(filesystem, child, target)
            if needs_memory and target.gone is None:
                refuse_unreadable(filesystem, child, target.program.pid, needs_memory)
            elif needs_environment and target.gone is None:
                refuse_unreadable(filesystem, child, target.program.pid, needs_environment, "environ")
            # One launcher per rank: each rank is a tree of its own. Under ``perfwatch run`` they share a place; otherwise
            # their environment tells; of those that it says nothing of, who talks to whom.
            others = [root.pid for root in started if len(started) > 1]
            related = Relatives()
            numbered = target.root.rank is not None
            if target.gone is None and not others and (not numbered or (target.asked.world_size or 1) > 1):
                related = relatives(filesystem, child, target)
            tops = list(dict.fromkeys([target.root.pid, *others, *related.tops]))
            described = Session(
                version=__version__,
                created=time.time(),
                mode=mode,
                machine=this_machine(),
                command=target.program.command,
                root_pids=tuple(tops),
                conditions={
                    "patience_seconds": patience_seconds,
                    "world_size": target.asked.world_size,
                    "user": user_of(target.program.uid, child),
                    **pod_names(filesystem, child, target.program.pid),
                    **(model or {}),
                },
            )
            explicit = Path(session) if session else None
            self._in_default_folder = explicit is None
            self._recorder, self.folder, why = open_recorder(explicit, described, child, budget_bytes)
            self._loss = f"nothing was recorded: {why}"
        finally:
            child.close()
        self._news: Callable[[News], None] = lambda _: None
        self._failures, self._failure = Failures(), ""
        self._outlets: Outlet = (outlets or Outlets)(described, self.folder, self._recorder)
        self._described = described
        self._watch = watch(
            tops,
            described,
            recorder=self._outlets.sink,
            agent_folder=self._agent,
            eager=True,
            on_news=lambda news: self._news(news),
        )
        self._watch.look.expect(target.root)
        self._watch.take(related.unseen)
        self.roots = tuple(tops)
        self._gone = target.gone is not None

    def decide(self, stream: IO[str], status: StatusLine) -> Verdict:
        """Look until the verdict is clear; who leaves gets what is known. ``status`` shows what is suspected meanwhile."""
        shot, judged = OneShot(), None
        while True:
            pause = self._tick(stream)
            verdict = self._watch.last
            if verdict is not None and verdict is not judged:
                judged = verdict
                if shot.done(verdict, self._watch.at):
                    return self._final(verdict)  # at once: after a hang was told the next round is seconds away
            elif self._failure and self._watch.at - self._watch.judged_at >= UNCLEAR_SECONDS:
                return self._final(unjudged(self._failure, time.time()))
            if self._watch.at >= WITHOUT_TORCH_SECONDS and (names := self._without_torch()):
                return self._final(_no_training(self._known(stream), names, self.roots[0]))
            status.now(self._progress(verdict, shot.left(verdict, self._watch.at)))
            if self.leaving.wait(pause, *self._watch.sooner()):
                return self._final(self._lately(stream))

    def _without_torch(self) -> str:
        """The processes of a job of which none has imported torch or is importing anything; empty of another, and if no stack was seen."""
        case = self._watch.case()
        here = [one.process for one in case.job.members.values() if one.alive]
        stacks = [one.reading for one in case.history.every(r.Stack, seconds=WITHOUT_TORCH_SECONDS)]
        loaded = any(one.torch_loaded is not False for one in here)
        if not stacks or loaded or any("import" in tags(one) for one in stacks):
            return ""
        named = ", ".join(f"{one.name} {one.pid}" for one in here[:FEW_NAMED])
        return named + (f" and {len(here) - FEW_NAMED} more" if len(here) > FEW_NAMED else "")

    def _progress(self, verdict: Verdict | None, left: float | None) -> str:
        """What is sampled, what that leans to, and when it will be decided."""
        count = len(self._watch.look.known)
        sampled = f"{count} {'process' if count == 1 else 'processes'} sampled for {duration(self._watch.at)}"
        return f"{sampled}; {leaning(verdict, left)}"

    def stay(self, stream: IO[str], tell: Callable[[News], None] | None = None) -> Verdict:
        """Report every change on ``stream``, or to ``tell``, until the job ends or the user leaves; returns the last verdict."""
        self._news = partial(self._tell, stream, tell)
        if stream.isatty():
            say(
                stream,
                f"watching pid {self.roots[0]}: each change is reported here; Ctrl-C prints the verdict and ends",
            )
        with contextlib.closing(_RequestServer(self, stream)) as requests:
            while not self.leaving.asked:
                pause = self._tick(stream)
                if self._watch.last is not None and self._watch.last.state == "gone":
                    self._outlets.ended(self._watch.last)
                    return self._final(self._watch.last)
                self._outlets.tick(0 if self._recorder is None else self._recorder.lost)
                try:
                    requests.serve(pause)
                except Exception as error:  # what others ask for must not end the watch
                    self._failed(error, stream)
        self._outlets.ended(None)
        return self._final(self._lately(stream))

    def capture(self, request: Request, stream: IO[str]) -> Outcome:
        """Make a capture of this job; who leaves ends it. ``stream`` shows what goes on.

        Raises NoSuchTarget if the job has ended.
        """
        if self._gone:
            raise NoSuchTarget(f"process {self.roots[0]} has ended", f"perfwatch attach {self.roots[0]}")
        ends = self._watch.at + LOOK_SECONDS
        while self._watch.at < ends and not self.leaving.wait(min(self._tick(stream), 0.2)):
            pass  # who the ranks are, and whether they move
        scene = self.scene(stream)
        done: list[Outcome] = []
        captures = Capturing(self.folder, lambda: scene, lambda _, outcome: done.append(outcome))
        captures.begin(request)
        progress = Progress(lambda text: say(stream, text))
        while not done:
            if self.leaving.wait(CAPTURE_TURN_SECONDS):
                captures.close()
                return Outcome(
                    kind=request.kind, error="interrupted before it was done", exit_code=CaptureFailed.exit_code
                )
            captures.serve()
            progress.now(captures.said)
        self._watch.take([msgspec.convert(one, r.ANY_READING) for one in done[0].readings])
        if self._recorder is not None:
            facts = msgspec.to_builtins(msgspec.structs.replace(done[0], readings=()))
            self._recorder.event(self._watch.at, "capture", headline(done[0]), facts=facts)
        return done[0]

    def scene(self, stream: IO[str]) -> Scene:
        """The job as a capture needs to know it."""
        return scene_of(
            self._watch.case(), self._known(stream), self._place_here(), os.environ, self._watch.look.guests
        )

    def begun(self, request: Request) -> None:
        """A capture is at work from now on."""
        self._watch.take([r.CaptureWindow(kind=request.kind, at_work=True)])
        if self._recorder is not None:
            self._recorder.event(
                self._watch.at, CAPTURE_BEGUN, f"{request.kind} capture, asked by a {request.asked_by}"
            )

    def captured(self, request: Request, outcome: Outcome) -> None:
        """Keep what a capture says, as evidence and as an event."""
        ended = r.CaptureWindow(kind=request.kind, at_work=False)
        self._watch.take([ended, *(msgspec.convert(one, r.ANY_READING) for one in outcome.readings)])
        if self._recorder is not None:
            facts = msgspec.to_builtins(msgspec.structs.replace(outcome, readings=()))
            self._recorder.event(self._watch.at, "capture", headline(outcome), facts=facts)

    def _place_here(self) -> AgentFolder | None:
        """Where captures may be asked for; None where that is in a container: they work in our own root."""
        return None if self.contained_run else self._agent

    def state(self) -> Message:
        """What a watcher says of itself."""
        patience = self._described.conditions["patience_seconds"]
        here = self._place_here()
        agent = here.path if here is not None else None
        return status(self._described.mode, list(self.roots), self.folder, agent, self._watch.at, patience)

    def attend(self) -> bool:
        """Look closely; True if that is new."""
        new = not self._watch.suspicious
        self._watch.attend()
        return new

    def known(self, stream: IO[str]) -> Verdict | None:
        """The verdict now."""
        return self._known(stream)

    def last(self) -> Verdict | None:
        """The newest verdict that was made."""
        return self._watch.last

    def user(self) -> int | None:
        """The user of every process of the job that was seen and lives; None where they have several."""
        found = set()
        for pid in self._watch.look.known:
            try:
                found.add(identity_of(pid).uid)
            except Absent:
                continue
            except Unavailable:
                return None
        return found.pop() if len(found) == 1 else None

    def sooner(self) -> tuple[int, ...]:
        """Descriptors that are readable when there is something to do."""
        return tuple(self._watch.sooner())

    def close(self) -> str:
        """End our own children and the recording; returns what was not recorded and why, empty when all was."""
        self._watch.close()
        self._guests.close()
        loss = self._loss if self._recorder is None else self._recorder.close()
        if self.folder is not None and self._in_default_folder:
            child = KillableChild()
            keep_within_limits(self.folder, child)
            child.close()
        return loss

    def discard(self) -> None:
        """End our own children, and remove the recording; one in a folder that the user named, or with files of a capture, stays."""
        self.close()
        if self.folder is None or not self._in_default_folder or any((self.folder / "captures").glob("*/*")):
            return
        with contextlib.suppress(Unavailable, OSError), contextlib.closing(KillableChild()) as child:
            child.call(remove_session, self.folder, deadline_seconds=REMOVE_SECONDS)

    def _tick(self, stream: IO[str]) -> float:
        """One round of looks; one that fails must not end the watch: it is told once, and recorded."""
        try:
            return self._watch.tick(lambda: self.leaving.asked)
        except Exception as error:
            self._failed(error, stream)
            return AFTER_FAILURE_SECONDS

    def _lately(self, stream: IO[str]) -> Verdict:
        """The newest verdict where that is of now: the user has asked to leave, and to judge takes seconds on a busy machine."""
        last = self._watch.last
        fresh = last is not None and self._watch.at - self._watch.judged_at <= FRESH_SECONDS
        return last if last is not None and fresh else self._known(stream)

    def _known(self, stream: IO[str]) -> Verdict:
        """The verdict from memory, which may be what fails."""
        try:
            return self._watch.verdict()
        except Exception as error:
            self._failed(error, stream)
            return unjudged(self._failure, time.time())

    def _failed(self, error: Exception, stream: IO[str]) -> None:
        self._failure = f"{type(error).__name__}: {error}"
        text = self._failures.new(error)
        if text:
            say(stream, text)
            if self._recorder is not None:
                self._recorder.event(self._watch.at, "note", text)

    def _tell(self, stream: IO[str], tell: Callable[[News], None] | None, news: News) -> None:
        self._outlets.news(news)
        if tell is not None:
            tell(news)
        else:
            say(stream, news.line())

    def _final(self, verdict: Verdict) -> Verdict:
        if self._recorder is not None:
            at = self._watch.judged_at if verdict is self._watch.last else self._watch.at
            self._recorder.event(at, "verdict", verdict.summary, verdict)
        return verdict


def _no_training(verdict: Verdict, names: str, pid: int) -> Verdict:
    """The verdict on a Python program that is no PyTorch job, or none yet."""
    summary = f"no training is seen: no process of this tree ({names}) has imported torch, and none is importing it"
    steps = ("perfwatch ps lists the training jobs", f"perfwatch attach {pid} --watch waits until it trains")
    return msgspec.structs.replace(
        verdict, state="inconclusive", cause=None, confidence=0.0, summary=summary, owner="unknown", suspect=None,
        silent_seconds=None, onset=None, culprits=(), wait_chain=(), evidence=(), alternatives=(), findings=(), next=steps,
    )  # fmt: skip
