"""The watcher process of ``perfwatch run``: feeds the watch, answers commands, tells the launcher what to print.

It is a child of the launcher and a sibling of the job, holds none of the job's streams, is the first to go when memory
runs out, and ends with the launcher. All that it says goes through the channel: the launcher's printers write it.
"""

import os
import select
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from perfwatch import __version__
from perfwatch.captures.capture import Outcome
from perfwatch.captures.capture import Request as CaptureRequest
from perfwatch.captures.scene import scene_of
from perfwatch.captures.telling import headline, told
from perfwatch.exporters.exporters import opened_outlets
from perfwatch.exporters.own_cost import cpu_seconds
from perfwatch.processes.channel import Channel, Message
from perfwatch.processes.control import ControlServer
from perfwatch.processes.place import LEAVE_SECONDS, Place, roots
from perfwatch.recording.recording import CAPTURE_BEGUN, TERMINATES
from perfwatch.recording.redaction import redact_command
from perfwatch.recording.session import Session, this_machine, user_of
from perfwatch.run.dumps import keep_dumps
from perfwatch.run.first_steps import FirstSteps
from perfwatch.run.leftovers import Leftovers
from perfwatch.run.request import Request
from perfwatch.run.voice import Voice, short
from perfwatch.watching.answering import answer, status
from perfwatch.watching.capturing import Capturing
from perfwatch.watching.failures import Failures
from perfwatch.watching.news import News
from perfwatch.watching.opening import keep_within_limits, open_recorder
from perfwatch.watching.summary import Summary, Tally
from perfwatch.watching.watch import Watch
from perfwatch_probes import readings as r
from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.deadline import KillableChild

PAUSE_SECONDS = 1.0  # between two looks, where none is due
LET_END_SECONDS = 5.0  # a job that is asked to end does so in some order: ranks that go first are no fault

FAILED: Message = {"ok": False, "error": "an internal error of the watcher: it is in the recording"}

T = TypeVar("T")


class Watcher:
    """Watches one job for its launcher.

    Args:
        channel: our end of the line to the launcher.
        place: where the agent writes, and where commands reach us.
        request: what the user asked for.
        child: pid of the command that the launcher has started.
        clock: monotonic seconds.
    """

    def __init__(
        self, channel: Channel, place: Place, request: Request, child: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._channel, self._place, self._clock = channel, place, clock
        self._voice = Voice(channel)
        self._say = self._voice.say
        self._began, looker = clock(), KillableChild()
        self._server = ControlServer(place.control, lambda asked: self._guarded(lambda: self._answer(asked), FAILED))
        try:
            self._session = _session(request, child, user_of(os.getuid(), looker))
            self._recorder, folder, self._unrecorded = open_recorder(request.session, self._session, looker)
        finally:
            looker.close()
        self._in_default_folder = request.session is None
        self._say(f"nothing is recorded: {self._unrecorded}" if self._unrecorded else f"recording to {folder}")
        self._outlets = opened_outlets(request.outlets, self._session, folder, self._recorder, self._say)
        self._tally = Tally(self._outlets.sink)
        self._failures = Failures()
        self._suspended, self._ending_until, self._due = False, 0.0, 0.0
        self._ended: Message | None = None
        self._watch = Watch(
            [child],
            self._session,
            recorder=self._tally,
            agent_folder=AgentFolder(place.folder) if request.agent else None,
            on_news=self._news,
            clock=clock,
        )
        self._first_steps, self._capture_on = FirstSteps(AgentFolder(place.folder)), request.capture_on
        self._leftovers = Leftovers(place, clock)
        self._capturing = Capturing(
            folder,
            lambda: scene_of(
                self._watch.case(), self._watch.last, AgentFolder(place.folder), os.environ, self._watch.look.guests
            ),
            self._captured,
            self._capture_begun,
        )

    def serve(self) -> None:
        """Until the child has ended or the launcher is gone."""
        while self._ended is None and not self._channel.closed:
            self.round()
        self._guarded(self._capturing.close, None)
        if self._ended is not None:
            self._finish(self._ended)
        self._watch.close()

    def round(self) -> None:
        """Look at the job, if it is time or a process of it has ended, and then hear what comes, until it is time again."""
        pause = PAUSE_SECONDS
        sooner: tuple[int, ...] = ()
        if not self._suspended and self._clock() >= self._ending_until:
            if self._clock() >= self._due:
                pause = self._guarded(self._look, PAUSE_SECONDS)
                self._due = self._clock() + pause
            pause, sooner = max(0.0, self._due - self._clock()), self._watch.sooner()
        self._say(self._guarded(lambda: self._first_steps.told(self._tally, self._watch.case), ""))
        self._guarded(self._leftovers.tidy, None)
        self._guarded(lambda: self._outlets.tick(self._recorder.lost if self._recorder else 0), None)
        poll = select.poll()
        for descriptor in (self._channel.fileno(), *self._server.filenos(), *self._capturing.filenos(), *sooner):
            poll.register(descriptor, select.POLLIN)
        if any(descriptor in sooner for descriptor, _ in poll.poll(pause * 1000)):
            self._due = 0.0
        self._guarded(self._server.serve, None)
        self._say(self._guarded(self._capturing.serve, ""))
        for message in self._channel.receive():
            self._guarded(partial(self._handle, message), None)

    def _look(self) -> float:
        for root in roots(self._place.folder):
            self._watch.add_root(root.pid)
        return self._watch.tick()

    def _attend(self) -> None:
        """Look closely, and at once where we did not."""
        if not self._watch.suspicious:
            self._watch.attend()
            self._due = 0.0

    def _handle(self, message: Message) -> None:
        if "suspended" in message:
            self._suspended = bool(message["suspended"])
        elif "trigger" in message:
            self._say(self._trigger(str(message["trigger"]), message.get("signal")))
        elif "terminating" in message:
            verdict = self._guarded(self._watch.verdict, None)
            facts = {name: message.get(name) for name in ("signal", "sender")}
            self._watch.note("signal", TERMINATES, verdict, facts)
            self._ending_until = self._clock() + LET_END_SECONDS
            self._channel.send({"snapshot": True})
        elif "ended" in message:
            self._ended = message["ended"]

    def _trigger(self, what: str, number: int | None) -> str:
        """Do what a trigger asks for; returns what to tell the user."""
        self._tally.event(self._watch.at, "signal", f"asked for {what}", facts={"signal": number})
        if what != "verdict":
            return self._capturing.signalled(what)
        verdict = self._guarded(self._watch.verdict, None)
        if verdict is None:
            return "no verdict can be made now"
        self._tally.event(self._watch.judged_at, "verdict", verdict.summary, verdict)
        return short(verdict)

    def _answer(self, request: Message) -> Message:
        if request.get("command") == "trigger" and request.get("what") in ("verdict", "timeline", "kernels"):
            text = self._trigger(request["what"], request.get("signal"))
            self._say(text)
            return {"ok": True, "text": text}
        return answer(
            request, self._state, self._attend, lambda: self._guarded(self._watch.verdict, None), self._capturing
        )

    def _state(self) -> Message:
        return status(
            "run",
            [root.pid for root in roots(self._place.folder)],
            self._recorder.folder if self._recorder else None,
            self._place.folder,
            self._clock() - self._began,
            self._session.conditions["patience_seconds"],
        )

    def _news(self, news: News) -> None:
        self._outlets.news(news)
        self._voice.news(news)
        if news.kind == "verdict" and news.verdict is not None and news.verdict.state in self._capture_on:
            self._say(self._capturing.ruled(news.verdict.state))

    def _capture_begun(self, request: CaptureRequest) -> None:
        """A reader of the recording sees what is at work."""
        self._tally.event(self._watch.at, CAPTURE_BEGUN, f"{request.kind} capture, asked by a {request.asked_by}")
        self._watch.take([r.CaptureWindow(kind=request.kind, at_work=True)])

    def _captured(self, request: CaptureRequest, outcome: Outcome) -> None:
        """Keep what a capture says, as evidence and as an event; say it in words, unless a command asked for it."""
        ended = r.CaptureWindow(kind=request.kind, at_work=False)
        self._watch.take([ended, *(msgspec.convert(one, r.ANY_READING) for one in outcome.readings)])
        if outcome.readings:
            self._attend()  # a calm job would be judged by it in a minute
        facts = msgspec.to_builtins(msgspec.structs.replace(outcome, readings=()))
        self._tally.event(self._watch.at, "capture", headline(outcome), facts=facts)
        if request.asked_by != "command":
            self._say("\n".join(told(outcome)))

    def _finish(self, ended: Message) -> None:
        """Say how it went within the launcher's patience, then complete the recording, if need be after its end."""
        code, number = ended["exit_code"], ended["signal"]
        verdict = self._guarded(lambda: self._watch.ended(code, number), None)
        ending = f"exit code {code}" if number is None else f"ended by signal {number}"
        summary = Summary(
            elapsed_seconds=ended["elapsed_seconds"],
            ending=ending,
            tally=self._tally,
            verdict=verdict,
            said=tuple(self._voice.said),
            cost_seconds=cpu_seconds(),
            session=str(self._recorder.folder) if self._recorder else "",
            loss=self._recorder.loss if self._recorder else self._unrecorded,
        )
        self._channel.send({"say": summary.text()})
        self._channel.send({"done": True})
        self._server.close()
        if (
            self._recorder is not None and code != 0
        ):  # before the watch is given up: then the launcher may remove the place
            keep_dumps(self._place.folder, self._recorder.folder)
        self._place.give_up_watch()
        self._tally.event(self._watch.at, "outcome", ending, verdict, {"exit_code": code, "signal": number})
        self._guarded(lambda: self._outlets.ended(verdict), None)
        if self._recorder is not None:
            self._recorder.close()
        self._place.leave(LEAVE_SECONDS)
        if self._recorder is not None and self._in_default_folder:
            child = KillableChild()
            keep_within_limits(self._recorder.folder, child)
            child.close()

    def _guarded(self, action: Callable[[], T], otherwise: T) -> T:
        """One step that fails must not end the watch; it is told once and recorded."""
        try:
            return action()
        except Exception as error:
            text = self._failures.new(error)
            if text:
                self._say(text)
                self._tally.event(self._clock() - self._began, "note", text)
            return otherwise


def _session(request: Request, child: int, user: str | None) -> Session:
    return Session(
        version=__version__,
        created=time.time(),
        mode="run",
        machine=this_machine(),
        command=redact_command(request.command),
        root_pids=(child,),
        conditions={**request.model, "patience_seconds": request.patience_seconds, "user": user},
    )
