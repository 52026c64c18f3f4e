"""The loop around a whole node: find jobs, watch each in a process of its own, leave those that another watcher has."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfwatch.daemon.housekeeping import tidy
from perfwatch.daemon.scanner import Found, Scanner
from perfwatch.daemon.shares import Shares
from perfwatch.daemon.ward import Terms, Ward
from perfwatch.exporters.exporters import NodeMetrics
from perfwatch.exporters.heartbeat import Heartbeat
from perfwatch.exporters.notifier import Notifier
from perfwatch.exporters.on_verdict import Actor
from perfwatch.exporters.snapshot import NodeSnapshot, Snapshot
from perfwatch.processes.channel import Message
from perfwatch.processes.control import find_watcher
from perfwatch.text import duration
from perfwatch_probes.deadline import Caller
from perfwatch_probes.probe import Unavailable

SCAN_SECONDS = 5.0
TURN_SECONDS = 1.0
MOST_WATCHED = 32  # and of one user no more than there are places left beside: 16 where it is alone
MOST_ADOPTED = 2  # in one scan: the first look at a job is the most expensive one
SHORTEST_AGAIN_SECONDS, LONGEST_AGAIN_SECONDS = 10.0, 600.0  # after a watch that ended early
ASK_BUDGET_SECONDS = 1.0  # in one scan, for finding out whether a job is watched by another perfwatch
TIDY_SECONDS, TIDY_DEADLINE_SECONDS = 60.0, 30.0
SHOWN_SECONDS = 300.0  # the last word about a job that has ended stays in the metrics
LEAVE_SECONDS = 8.0  # what watches get to complete their recordings

Key = tuple[int, int]


def _run_of(pid: int) -> Path | None:
    """The control socket of the ``run`` that has started this process."""
    return find_watcher(pid, runs_alone=True)


@dataclass
class _Failure:
    pause: float
    due: float


class Node:
    """Everything that is watched here.

    Args:
        scanner: finds jobs.
        terms: how each is watched.
        budget_bytes: for all recordings together.
        child: where disks are looked at.
        log: takes events: a text, its kind, the pid of its job, further fields.
        metrics: serves or posts what the watches say, if wanted.
        notifier: posts it, if wanted.
        actor: runs the operator's command for it, if wanted.
        heartbeat: tells that the node is watched, if wanted.
        watched_by: the control socket of a watch that is not ours.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        scanner: Scanner,
        terms: Terms,
        budget_bytes: int,
        child: Caller,
        log: Callable[..., None],
        metrics: NodeMetrics | None = None,
        notifier: Notifier | None = None,
        actor: Actor | None = None,
        heartbeat: Heartbeat | None = None,
        watched_by: Callable[[int], Path | None] = _run_of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scanner, self._terms, self._budget, self._child, self._log = scanner, terms, budget_bytes, child, log
        self._metrics, self._notifier, self._actor = metrics, notifier, actor
        self._heartbeat, self._watched_by, self._clock = heartbeat, watched_by, clock
        self._blind = True  # until a scan has succeeded
        self.wards: dict[Key, Ward] = {}
        # Seen once: a job that ends at once, or one that a ``run`` is about to watch.
        self._candidates: set[Key] = set()
        self._failures: dict[Key, _Failure] = {}
        self._over: set[Key] = set()
        self._shown: dict[str, float] = {}
        self._said: set[str] = set()
        self._shares = Shares(clock)
        self._asked: dict[Key, float] = {}  # when it was last found out whether another perfwatch watches it
        self._scan_due = self._tidy_due = 0.0
        self._adopted = 0
        self._bytes = 0

    def turn(self, scan_seconds: float = SCAN_SECONDS) -> float:
        """Do what is due; the seconds until something is due again."""
        now = self._clock()
        for ward in list(self.wards.values()):
            self._hear(ward, now)
        if now >= self._scan_due:
            self._scan_due = now + scan_seconds
            self._scan(now)
        if now >= self._tidy_due:
            self._tidy_due = now + TIDY_SECONDS
            self._tidy()
        self._outlets(now)
        return min(TURN_SECONDS, scan_seconds)

    def leave(self) -> None:
        """Have every watch complete its recording, and end them."""
        for ward in self.wards.values():
            ward.leave()
        ends = self._clock() + LEAVE_SECONDS
        while self.wards and self._clock() < ends:
            for ward in list(self.wards.values()):
                self._hear(ward, self._clock())
            time.sleep(0.02)
        for ward in self.wards.values():
            ward.helper.close()
        for one in (self._metrics, self._notifier, self._actor, self._heartbeat):
            if one is not None:
                one.close()

    def _scan(self, now: float) -> None:
        self._blind = True
        try:
            found = self._scanner.scan()
            self._blind = False
        except Unavailable as why:
            self._once(f"the processes of this machine cannot be listed: {why.reason}")
            return
        there = {one.key for one in found}
        self._over &= there
        self._failures = {key: failure for key, failure in self._failures.items() if key in there}
        if self._scanner.hidden:
            self._once(f"{self._scanner.hidden} Python processes of other users cannot be looked into: run it as root")
        for uid in self._scanner.delayed:
            self._once(f"uid {uid} has more new processes than one scan has time for: its jobs are found later")
        self._asked = {key: at for key, at in self._asked.items() if key in there}
        self._adopt_some(found, now)
        self._candidates = there
        for ward in self.wards.values():
            if not ward.leaving and self._watched_by(ward.found.root.pid) is not None:
                self._of(ward, "handed over to the perfwatch run that watches it now", "handed_over")
                ward.leave()

    def _adopt_some(self, found: list[Found], now: float) -> None:
        """Adopt jobs that have no watch, a few at a time, the users in turn."""
        waiting: dict[int, list[Found]] = {}
        for one in found:
            if self._is_open(one, now):
                waiting.setdefault(one.root.uid or 0, []).append(one)
        for queue in waiting.values():
            queue.sort(key=lambda one: self._asked.get(one.key, 0.0))
        adopted = 0
        for one in self._shares.turns(waiting, ASK_BUDGET_SECONDS):
            if self._has_room(one):
                self._asked[one.key] = now
                adopted += self._is_unwatched(one) and self._adopt(one, now)
            if adopted == MOST_ADOPTED:
                return

    def _is_open(self, found: Found, now: float) -> bool:
        failure = self._failures.get(found.key)
        if found.key in self.wards or found.key in self._over or found.key not in self._candidates:
            return False
        return failure is None or now >= failure.due

    def _has_room(self, found: Found) -> bool:
        """True while more places are free than this job's user holds: no number of jobs of one user fills all of them."""
        held = sum(ward.found.root.uid == found.root.uid for ward in self.wards.values())
        if held < MOST_WATCHED - len(self.wards):
            return True
        self._once(f"uid {found.root.uid}: {held} jobs are watched; more are not, to leave room for other users")
        return False

    def _is_unwatched(self, found: Found) -> bool:
        above = self._scanner.ancestors(found.root.pid, *found.trainers)
        if any(ward.roots & above for ward in self.wards.values()):
            return False  # a part of a job that is watched already
        return self._watched_by(found.trainers[0]) is None

    def _adopt(self, found: Found, now: float) -> bool:
        try:
            self.wards[found.key] = Ward(found, self._terms, now)
        except OSError as error:
            self._once(f"a job cannot be watched, no process can be started: {error.strerror}")
            return False
        self._adopted += 1
        command = " ".join(found.root.command)
        self._log(f"adopted, {command[:120]}", "adopted", found.root.pid, uid=found.root.uid, command=command)
        return True

    def _hear(self, ward: Ward, now: float) -> None:
        for message in ward.hear(now):
            self._told(ward, message)
        if ward.helper.ended is None:
            if ward.stuck(now):
                self._of(ward, "its watch does not answer and is started again", "restarted")
                ward.helper.close()
            else:
                return
        for message in ward.hear(now):
            self._told(ward, message)
        del self.wards[ward.found.key]
        if ward.session:
            self._shown[Path(ward.session).name] = now + SHOWN_SECONDS
        if ward.found.key not in self._over and not ward.leaving:
            before = self._failures.get(ward.found.key)
            pause = SHORTEST_AGAIN_SECONDS if before is None else min(2 * before.pause, LONGEST_AGAIN_SECONDS)
            self._failures[ward.found.key] = _Failure(pause, now + pause)
            self._of(ward, f"its watch ended early; it is started again in {duration(pause)}", "restarted")
        ward.helper.close()

    def _told(self, ward: Ward, message: Message) -> None:
        if "say" in message:
            self._of(ward, message["say"])
        if "news" in message:
            self._of(ward, **message["news"])
        if message.get("session"):
            self._of(ward, f"recorded in {message['session']}", "recording")
        if "gone" in message:
            self._over.add(ward.found.key)
        if "ended" in message:
            ended = message["ended"]
            if ended["state"] == "gone":
                self._over.add(ward.found.key)
            text = f"no longer watched, {ended['state']} {ended['cause'] or ''}: {ended['summary']}"
            self._of(ward, text, "ended", state=ended["state"], cause=ended["cause"])
        if "snapshot" in message and self._metrics is not None:
            self._metrics.put(msgspec.convert(message["snapshot"], Snapshot))
        if "post" in message and self._notifier is not None:
            self._notifier.post(message["post"])
        if "act" in message and self._actor is not None:
            self._actor.act(message["act"], message["own"])

    def _tidy(self) -> None:
        living = [ward.session for ward in self.wards.values() if ward.session]
        try:
            home = str(self._terms.home)
            done = self._child.call(tidy, home, living, self._budget, deadline_seconds=TIDY_DEADLINE_SECONDS)
        except (Unavailable, OSError) as why:
            self._once(f"old sessions cannot be removed: {why}")
            return
        self._bytes = done.bytes_left
        for sentence in done.removed:
            self._log(sentence)
        for sentence in done.stuck:
            self._once(sentence)  # each round tries it again

    def _outlets(self, now: float) -> None:
        if self._heartbeat is not None and not self._blind and not any(ward.late(now) for ward in self.wards.values()):
            self._heartbeat.beat()
        for outlet in (self._metrics, self._notifier, self._actor, self._heartbeat):
            for sentence in outlet.news() if outlet is not None else ():
                self._log(sentence)
        if self._metrics is None:
            return
        self._metrics.put_node(NodeSnapshot(watched=len(self.wards), adopted=self._adopted, recorded_bytes=self._bytes))
        for session in [session for session, until in self._shown.items() if now > until]:
            del self._shown[session]
            self._metrics.drop(session)

    def _of(self, ward: Ward, text: str, event: str = "note", **fields: object) -> None:
        """Log what happens to a job."""
        self._log(text, event, ward.found.root.pid, uid=ward.found.root.uid, session=ward.session, **fields)

    def _once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._log(sentence)
