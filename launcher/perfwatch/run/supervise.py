"""The launcher process of ``perfwatch run``: starts the child, passes signals on, and ends as the child ended.

It holds nothing of the data path (stdin, stdout and stderr are the child's own), looks at no disk and judges nothing:
that is the watcher's business, a process of its own that may hang or die. Whatever happens to either, the job goes on.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from perfwatch.processes import linux
from perfwatch.processes.channel import Channel, Message
from perfwatch.processes.place import Place, enter
from perfwatch.processes.trouble import reason
from perfwatch.run.arming import Start, equipped
from perfwatch.run.child import LACKING, become, changed_children, end_as, last_words, refusal, start, wait_plainly
from perfwatch.run.forwarding import catchers, decide
from perfwatch.run.printer import Printer, write_if_room
from perfwatch.run.request import Request
from perfwatch.run.sentry import Sentry

NOT_FOUND = 127  # as every shell has it
NOT_EXECUTABLE = 126
SUMMARY_SECONDS = 0.15  # what we wait for the watcher's last words after the child's end
WORDS_SECONDS = 1.0  # the longest wait at the end for a line that says what we do without: it must not be lost
LINE_SECONDS = 0.03  # what a line of our own in their place may take
SNAPSHOT_SECONDS = 0.25  # what a SIGTERM waits for a last look at the living job; a scheduler's grace is 10 s and more
STOP_SECONDS = 10.0  # between a Ctrl-Z and the child's stop: it may tidy its screen first
LAST_WORDS_SECONDS = 10  # what the watcher may take to complete the recording after our own end
FINISH_SIGNAL = linux.REALTIME_MINIMUM + 11  # launcher to watcher: do not die with me
ENDING_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})  # what they end is no fault of the job's
STOP_SIGNALS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})


def run(request: Request, environment: Mapping[str, str]) -> NoReturn:
    """Start the command, watch it, and end this process as the child ended."""
    inherited = linux.inherited_descriptors()
    environment = linux.without_coerced_locale(environment)
    try:
        signals = linux.SignalFile()
    except OSError as error:
        _become(request, environment, linux.signal_mask(), reason(error))
    place, trouble = _enter(environment)
    job = Start(request.command, environment) if place is None else equipped(request, environment, place)
    sentry = Sentry()  # before the child: from its first moment on we know which signals it has got by itself
    try:
        child = start(job.command, job.environment, signals)
    except OSError as error:
        sentry.dismiss()
        if job.keeper is not None:
            job.keeper.dismiss()
        if place is not None:
            place.leave()
        if error.errno in LACKING:
            _become(request, environment, signals.original_mask, reason(error))
        _not_started(job.command, error)
    printer = Printer()
    supervisor = None
    try:
        for descriptor in inherited:
            os.close(descriptor)
        # A process that reads the child's output or feeds its input must see an end when the child closes them, not when we do.
        linux.detach_from_streams(0, 1)
        linux.set_name("perfwatch")
        supervisor = Supervisor(request, child, signals, sentry, place, printer)
        trouble = trouble or supervisor.trouble
        words = (f"perfwatch: this run is not watched: {trouble}; the job is not affected",) if trouble else job.words
        for line in words if not request.quiet else ():
            printer.say(line)
        status = supervisor.wait()
        if words:
            printer.finish(WORDS_SECONDS)
    except Exception as error:  # a bug of ours, or a descriptor too few: the job is what counts
        if not request.quiet:
            printer.say(f"perfwatch: the launcher failed: {reason(error)}; the job continues without monitoring")
        reaped = supervisor.status if supervisor is not None else None
        status = wait_plainly(child) if reaped is None else reaped
        with contextlib.suppress(Exception):
            printer.finish(WORDS_SECONDS)
            _abandon(supervisor, place)
    end_as(status)


def _become(request: Request, environment: Mapping[str, str], mask: Iterable[int], why: str) -> NoReturn:
    """Run the command in our stead: what a watch needs is lacking, and the job may need less."""
    if not request.quiet:
        write_if_room(f"perfwatch: this run is not watched: {why}; the job is not affected\n".encode(errors="replace"))
    try:
        become(request.command, environment, mask)
    except OSError as error:
        _not_started(request.command, error)


def _not_started(command: Sequence[str], error: OSError) -> NoReturn:
    print("\n  ".join(refusal(command, error)), file=sys.stderr, flush=True)
    os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE)


def _abandon(supervisor: "Supervisor | None", place: Place | None) -> None:
    """After the end of a child that nothing watched to its end."""
    if supervisor is not None:
        supervisor.dismiss_watcher()
    if place is not None:
        _leave(place)


def _leave(place: Place) -> None:
    """At our very end: without our descriptors there is room to list the place, however low the limit."""
    linux.close_all_but()
    place.disown_root()
    place.leave()


class Supervisor:
    """Waits for signals, for the watcher's words and for the child's end; never polls.

    ``trouble`` says why there is no watcher, where the watcher could not be started: all else is done without it. ``status``: the
    child's wait status, once it was reaped.
    """

    def __init__(
        self,
        request: Request,
        child: int,
        signals: linux.SignalFile,
        sentry: Sentry,
        place: Place | None,
        printer: Printer,
    ) -> None:
        self._request = request
        self._child = child
        self._began = time.monotonic()
        self._signals = signals
        self._place = place
        self._printer = printer
        self._sentry = sentry
        self._leads_session = linux.leads_session()
        self._channel: Channel | None = None
        self._watcher = 0
        self.trouble = ""
        if place is not None:
            try:
                self._channel, self._watcher = self._start_watcher(place)
            except OSError as error:  # a full /dev/shm, no process or descriptor left
                self.trouble = reason(error)
        self.status: int | None = None
        self._held_until: float | None = None  # a SIGTERM that waits for the snapshot
        self._stop_asked_at = float("-inf")
        self._ready = self._done = self._failed = False
        self._told = (
            False  # how the run ended was printed here: a summary of the watcher that comes later is in the recording
        )

    def wait(self) -> int:
        """Serve until the child has ended; returns its wait status."""
        while self.status is None:
            timeout = None if self._held_until is None else max(0.0, self._held_until - time.monotonic())
            self._serve(timeout)
            if self._held_until is not None and time.monotonic() >= self._held_until:
                self._release()
        with contextlib.suppress(Exception):  # the summary may be lost, the child's end must not
            self._finish(time.monotonic() + SUMMARY_SECONDS)
        return self.status

    def dismiss_watcher(self) -> None:
        """End the watcher and reap it."""
        if self._watcher:
            _send(self._watcher, signal.SIGKILL)
            os.waitpid(self._watcher, 0)
            self._watcher = 0

    def _serve(self, timeout_seconds: float | None) -> None:
        poll = select.poll()
        poll.register(self._signals, select.POLLIN)
        if self._channel is not None:
            poll.register(self._channel, select.POLLIN)
        poll.poll(None if timeout_seconds is None else timeout_seconds * 1000 + 1)
        arrivals = self._signals.arrivals()
        for arrival in arrivals:
            if arrival.number != signal.SIGCHLD and arrival.sender != os.getpid():
                self._signal(arrival)
        if any(arrival.number == signal.SIGCHLD for arrival in arrivals):
            self._reap()
        self._listen()

    def _signal(self, arrival: linux.Arrival) -> None:
        group_wide = self._sentry.felt(arrival)
        if arrival.number in STOP_SIGNALS and (arrival.from_kernel or group_wide):
            self._stop_asked_at = time.monotonic()
        decision = decide(
            arrival,
            self._child,
            lambda: group_wide,
            lambda number: catchers(self._child, number),
            self._request.trigger_signals,
            self._leads_session,
        )
        if decision.trigger is not None:
            self._tell({"trigger": decision.trigger, "signal": arrival.number})
        elif arrival.number in ENDING_SIGNALS and self._channel is not None:
            self._tell({"terminating": True, "signal": arrival.number, "sender": arrival.said})
            if arrival.number == signal.SIGTERM and decision.forward_to and self._held_until is None:
                self._held_until = time.monotonic() + SNAPSHOT_SECONDS
                return
        for pid in decision.forward_to:
            _send(pid, arrival.number)

    def _release(self) -> None:
        self._held_until = None
        _send(self._child, signal.SIGTERM)

    def _reap(self) -> None:
        """Collect the processes that have ended: the child, our own, and as PID 1 every orphan of the job."""
        lost = []
        for pid, status in changed_children():
            if pid != self._child:
                if not (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
                    lost.append((pid, status))
            elif os.WIFSTOPPED(status):
                self._stopped()
            elif os.WIFCONTINUED(status):
                self._tell({"suspended": False})
            else:
                self.status = status
        for pid, status in lost:  # what it means depends on whether the job goes on
            self._lost(pid, status)

    def _stopped(self) -> None:
        """After a Ctrl-Z the shell must see the whole job stopped. Any other stop is for the watcher to report."""
        if time.monotonic() - self._stop_asked_at < STOP_SECONDS:
            self._tell({"suspended": True})
            os.kill(os.getpid(), signal.SIGSTOP)
            self._stop_asked_at = float("-inf")

    def _lost(self, pid: int, status: int) -> None:
        self._printer.ended(pid)
        if pid == self._watcher:
            self._watcher = 0
            self._listen()  # its last word may be on the way
            if not self._request.quiet and not self._done and not self._failed and self.status is None:
                how = (
                    f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"
                )
                self._printer.say(f"perfwatch: the watcher ended early ({how}); the job continues without monitoring")

    def _listen(self) -> None:
        if self._channel is None:
            return
        for message in self._channel.receive():
            if "say" in message and not (self._request.quiet or self._told):
                self._printer.say(str(message["say"]))
            if message.get("snapshot") and self._held_until is not None:
                self._release()
            self._ready = self._ready or "ready" in message
            self._done = self._done or "done" in message
            self._failed = self._failed or "failed" in message
        if self._channel.closed:
            self._channel.close()
            self._channel = None

    def _finish(self, ends: float) -> None:
        """Let the watcher say how it went, but not for long."""
        if self._watcher:
            _send(self._watcher, FINISH_SIGNAL)
        status, elapsed = self.status or 0, time.monotonic() - self._began
        killed = os.WIFSIGNALED(status)
        code, number = (None, os.WTERMSIG(status)) if killed else (os.WEXITSTATUS(status), None)
        self._tell({"ended": {"exit_code": code, "signal": number, "elapsed_seconds": elapsed}})
        while (remaining := ends - time.monotonic()) > 0 and (
            (self._channel is not None and not self._done) or self._printer.busy
        ):
            self._serve(remaining)
        if self._channel is not None and not self._done and not self._request.quiet:
            self._printer.say(f"perfwatch: {last_words(status, elapsed)}")
            self._told = True
            while self._printer.busy and (remaining := ends + LINE_SECONDS - time.monotonic()) > 0:
                self._serve(remaining)
        if self._place is None or (self._ready and not self._done and self._watcher):
            return  # the watcher is still reading there, completes the recording and leaves by itself
        if self._watcher and not self._ready:
            _send(self._watcher, signal.SIGKILL)
        _leave(self._place)

    def _tell(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def _start_watcher(self, place: Place) -> tuple[Channel, int]:
        try:
            place.register(self._child)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(place.folder)) from None
        ours, theirs = Channel.pair()
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_watcher(launcher, theirs, place, self._request, self._child)
        theirs.close()
        return ours, pid


def _become_watcher(launcher: int, channel: Channel, place: Place, request: Request, child: int) -> NoReturn:
    status = 1
    try:
        linux.die_with_parent(launcher)
        linux.set_name("perfwatch-watch")
        linux.volunteer_for_the_oom_killer()
        os.umask(0o077)  # all that the watcher and its helpers make is the user's alone
        linux.close_all_but(
            channel.fileno()
        )  # first: however low the limit is, there is a descriptor for /dev/null then
        linux.detach_from_streams(0, 1, 2)
        place.disown_root()
        signal.signal(FINISH_SIGNAL, lambda *_: _outlive(place))
        kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT, FINISH_SIGNAL}
        for number in signal.valid_signals() - kept:
            signal.signal(number, signal.SIG_IGN)  # what the terminal and the scheduler send is for the job
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        channel.send({"ready": True})
        from perfwatch.run.takeover import watch  # the launcher itself stays small

        watch(channel, place, request, child)
        status = 0
    except Exception as error:
        said = f"perfwatch: the watcher failed: {reason(error)}; the job continues without monitoring"
        channel.send({"say": said, "failed": True})
    finally:
        with contextlib.suppress(Exception):  # where the launcher is still there, it leaves after us
            _leave(place)
        os._exit(status)


def _outlive(place: Place) -> None:
    """The child has ended and the launcher ends now: complete the recording without it, in bounded time."""
    signal.signal(signal.SIGALRM, lambda *_: _give_up(place))
    signal.alarm(LAST_WORDS_SECONDS)
    linux.outlive_parent()


def _give_up(place: Place) -> NoReturn:
    """The recording is not complete in time: leave no place behind, or die at the next alarm."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(1)
    with contextlib.suppress(Exception):
        _leave(place)
    os._exit(1)


def _enter(environment: Mapping[str, str]) -> tuple[Place | None, str]:
    try:
        return enter(environment), ""
    except Exception as error:
        return None, reason(error)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended; its status is on the way
    except PermissionError:
        pass  # it has changed its user: the sender would have been refused too
