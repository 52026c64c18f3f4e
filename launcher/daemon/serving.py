"""The process of ``perfwatch daemon``: makes the node from what the user asked for, and turns it until told to leave."""

import fcntl
import os
import pwd
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from perfwatch.daemon.node import MOST_WATCHED, Node
from perfwatch.daemon.scanner import Scanner
from perfwatch.daemon.ward import Terms
from perfwatch.errors import SessionUnwritable, UsageError
from perfwatch.linux import volunteer_for_the_oom_killer
from perfwatch.outlets.outlets import open_metrics, open_notifier
from perfwatch.outlets.wanted import Wanted
from perfwatch.probes.deadline import KillableChild
from perfwatch.probes.filesystem import Filesystem
from perfwatch.recording import BUDGET_BYTES
from perfwatch.session import choose_home
from perfwatch.watching.leaving import Leaving
from perfwatch.watching.oneshot import say

LOCK = ".daemon"


@dataclass(frozen=True)
class Wishes:
    """What the user asked for. ``uid``: only this user's jobs."""

    directory: Path | None = None
    budget_gib: float = 4.0
    patience_seconds: float = 60.0
    every_seconds: float = 5.0
    uid: int | None = None


def uid_of(user: str | None) -> int | None:
    """The number of a user, by name or number.

    Raises:
        UsageError: there is none of that name.
    """
    if user is None or user.isdecimal():
        return None if user is None else int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise UsageError(
            f"--user {user}: there is no such user on this machine", "give a name or a number, see: id NAME"
        ) from None


def serve(wishes: Wishes, outlets: Wanted, log: IO[str]) -> None:
    """Watch this machine until SIGTERM or Ctrl-C.

    Raises:
        SessionUnwritable: no local disk takes recordings.
        UsageError: another daemon records there.
    """
    volunteer_for_the_oom_killer()
    tell = partial(say, log)
    budget = round(wishes.budget_gib * 2**30)
    child = KillableChild()
    with Leaving() as leaving:
        home = choose_home(wishes.directory, os.environ, child)
        lock = _locked(home)
        # So many at once that all of them full are still within the budget.
        each = min(BUDGET_BYTES, budget // MOST_WATCHED)
        terms = Terms(home, each, wishes.patience_seconds, outlets.metrics is not None, outlets.url is not None)
        metrics, notifier = open_metrics(outlets, tell), open_notifier(outlets, tell)
        scanner = Scanner(Filesystem(), KillableChild(), time.monotonic, wishes.uid)
        node = Node(scanner, terms, budget, child, tell, metrics, notifier)
        tell(f"watching this machine; recordings go to {home}")
        try:
            while not leaving.wait(node.turn(wishes.every_seconds)):
                pass
        finally:
            node.leave()
            os.close(lock)
        tell("asked to leave: the recordings are complete, the jobs go on")


def _locked(home: Path) -> int:
    """Hold the folder for as long as we live."""
    try:
        descriptor = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SessionUnwritable(
            f"recordings have no place to go ({home}: {error.strerror})",
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
