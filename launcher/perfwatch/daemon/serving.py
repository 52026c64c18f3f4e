"""The process of ``perfwatch daemon``: makes the node from what the user asked for, and turns it until told to leave."""

import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from perfwatch.daemon.node import MOST_WATCHED, Node
from perfwatch.daemon.scanner import Scanner
from perfwatch.daemon.sharing import share
from perfwatch.daemon.ward import Terms
from perfwatch.errors import SessionUnwritable, UsageError
from perfwatch.exporters.exporters import open_actor, open_heartbeat, open_metrics, open_notifier
from perfwatch.exporters.wanted import Wanted
from perfwatch.hang_timeout import HANG_TIMEOUT_SECONDS
from perfwatch.jobs.slurm_job import SlurmJob
from perfwatch.processes.linux import volunteer_for_the_oom_killer
from perfwatch.processes.stop_signals import Leaving
from perfwatch.recording.recording import BUDGET_BYTES
from perfwatch.recording.session import choose_home
from perfwatch.text import clean, json_text, say
from perfwatch_probes.deadline import Caller, KillableChild
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable

LOCK = ".daemon"
SPOOL = ".notifications"  # that could not be posted yet
LOG_SCHEMA = "perfwatch.log/1"
SHARE_SECONDS, SHARE_DEADLINE_SECONDS = 2.0, 10.0


@dataclass(frozen=True)
class Wishes:
    """What the user asked for.

    Attributes:
        uid: only this user's jobs.
        slurm_job_id: only what belongs to this job of Slurm.
        reader_uid: this user may read the recordings.
        json_log: the log is JSON, one object per line.
    """

    directory: Path | None = None
    budget_gib: float = 4.0
    patience_seconds: float = HANG_TIMEOUT_SECONDS
    every_seconds: float = 5.0
    uid: int | None = None
    slurm_job_id: int | None = None
    reader_uid: int | None = None
    json_log: bool = False


def serve(wishes: Wishes, outlets: Wanted, log: IO[str]) -> None:
    """Watch this machine until SIGTERM or Ctrl-C.

    Raises:
        SessionUnwritable: no local disk takes recordings.
        UsageError: another daemon records there.
    """
    volunteer_for_the_oom_killer()
    tell = Log(log, wishes.json_log)
    budget = round(wishes.budget_gib * 2**30)
    child = KillableChild()
    with Leaving() as leaving:
        home = choose_home(wishes.directory, os.environ, child)
        lock = _locked(home)
        # So many at once that all of them full are still within the budget.
        each = min(BUDGET_BYTES, budget // MOST_WATCHED)
        terms = Terms(home, each, wishes.patience_seconds, outlets.wants_snapshots, outlets.url is not None,
                      outlets.command is not None, outlets.news)  # fmt: skip
        metrics, notifier, actor = (
            open_metrics(outlets, tell),
            open_notifier(outlets, tell, home / SPOOL),
            open_actor(outlets, tell),
        )
        slurm_job = None if wishes.slurm_job_id is None else SlurmJob(wishes.slurm_job_id, wishes.uid)
        scanner = Scanner(Filesystem(), KillableChild(), time.monotonic, wishes.uid, slurm_job)
        sharing = _Sharing(home, wishes.reader_uid, child, tell)
        node = Node(scanner, terms, budget, child, tell, metrics, notifier, actor, open_heartbeat(outlets, tell))
        what = "this machine" if slurm_job is None else f"Slurm job {slurm_job.job_id}"
        tell(f"watching {what}; recordings go to {home}")
        try:
            sharing.turn()
            while not leaving.wait(node.turn(wishes.every_seconds)):
                sharing.turn()
        finally:
            node.leave()
            sharing.turn(last=True)
            os.close(lock)
        tell("shutting down; recordings are complete, jobs are untouched")


class Log:
    """The log of a node: one line of text for each event, or one JSON object with fields to filter by.

    Args:
        stream: where the lines go.
        as_json: one JSON object per line.
        clock: seconds since the epoch.
    """

    def __init__(self, stream: IO[str], as_json: bool = False, clock: Callable[[], float] = time.time) -> None:
        self._stream, self._as_json, self._clock = stream, as_json, clock

    def __call__(
        self, text: str, event: str = "note", pid: int | None = None, line: str = "", **fields: object
    ) -> None:
        """Write one event. A stream that is gone is no error.

        Args:
            text: the event in words.
            event: its kind: note, adopted, recording, suspicion, verdict, retraction, handed_over, restarted or ended.
            pid: the process at the top of the job; None if the event is about no job.
            line: what the text log has in place of the text, where that has more.
            fields: what JSON has beside; empty ones are left out.
        """
        if not self._as_json:
            say(self._stream, (line or text) if pid is None else f"pid {pid}: {line or text}")
            return
        moment = datetime.fromtimestamp(self._clock(), timezone.utc).isoformat(timespec="milliseconds")
        always = {"schema": LOG_SCHEMA, "time": moment.replace("+00:00", "Z"), "event": event, "message": clean(text)}
        known = {name: value for name, value in {"pid": pid, **fields}.items() if value not in (None, "")}
        try:
            self._stream.write(json_text(always | known) + "\n")
            self._stream.flush()
        except OSError:
            pass


class _Sharing:
    """Keeps the recordings readable for one user while they grow, in the child that may wait for a disk."""

    def __init__(self, home: Path, uid: int | None, child: Caller, tell: Callable[[str], None]) -> None:
        self._home, self._uid, self._child, self._tell = home, uid, child, tell
        self._due, self._failure = 0.0, ""

    def turn(self, last: bool = False) -> None:
        """Do it if it is due, or for the last time."""
        if self._uid is None or (time.monotonic() < self._due and not last):
            return
        self._due = time.monotonic() + SHARE_SECONDS
        try:
            self._child.call(share, str(self._home), self._uid, deadline_seconds=SHARE_DEADLINE_SECONDS)
        except (Unavailable, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            failure = f"uid {self._uid} cannot be allowed to read the recordings in {self._home}: {why}"
            if failure != self._failure:
                self._failure = failure
                self._tell(f"{failure}; put them on a file system with access control lists: --directory DIR")


def _locked(home: Path) -> int:
    """Hold the folder for as long as we live."""
    try:
        descriptor = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SessionUnwritable(
            f"recordings cannot be written to {home}: {error.strerror}",
            "name a folder with some room: --directory DIR",
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(
            f"another perfwatch daemon records in {home}",
            "it watches this machine already; or give another --directory DIR",
        ) from None
    return descriptor
