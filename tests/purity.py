"""Pure tests start no process, do not sleep and connect to nothing; live tests may.

Python reports forks, new programs and connections to audit hooks, and sleeps from 3.13 on. One hook for the whole session refuses them
while a pure test is set up and run. The refusal is kept, so that a test fails even if the code that it calls swallows the exception.
A thread that was already running when the test began is left alone.
"""

import _posixsubprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PROCESS_EVENTS = frozenset(
    ("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen")
)
CONNECTION_EVENTS = frozenset(
    ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendmsg", "socket.sendto")
)


class NotPure(Exception):
    """A pure test does what only a live test may do."""


class Purity:
    """Refuses processes, sleeps and connections while a pure test runs."""

    def __init__(self) -> None:
        self._is_enforced = False
        self._refused: list[str] = []
        self._earlier_threads: frozenset[int] = frozenset()
        sys.addaudithook(self._audit)
        self._wrap_what_is_not_audited()

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Refuse what is not pure, and raise ``NotPure`` at the end if a refusal was swallowed."""
        self._earlier_threads = frozenset(sys._current_frames()) - {threading.get_ident()}
        self._refused = []
        self._is_enforced = True
        try:
            yield
        finally:
            self._is_enforced = False
        if self._refused:
            raise NotPure(self._refused[0])

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._is_enforced:
            return
        if event in PROCESS_EVENTS:
            self._refuse(f"starts a process ({event})")
        elif event in CONNECTION_EVENTS and arguments[1:] != (None,):  # over a socket pair there is no address
            self._refuse(f"connects to something ({event})")
        elif event == "time.sleep":
            self._check_sleep(arguments[0])

    def _check_sleep(self, seconds: float) -> None:
        if self._is_enforced and seconds > 0:
            self._refuse(f"sleeps for {seconds:g} s")

    def _refuse(self, what: str) -> None:
        if threading.get_ident() in self._earlier_threads:
            return
        sentence = f"this pure test {what}: mark it live (@pytest.mark.live, or pytestmark for the whole module)"
        self._refused.append(sentence)
        raise NotPure(sentence)

    def _wrap_what_is_not_audited(self) -> None:
        """``multiprocessing`` starts its helpers without an audit event, and Python before 3.13 reports no sleep."""
        fork_exec, sleep = _posixsubprocess.fork_exec, time.sleep

        def audited_fork_exec(*arguments: Any) -> int:
            if self._is_enforced:
                self._refuse("starts a process (fork_exec)")
            return fork_exec(*arguments)

        def audited_sleep(seconds: Any) -> None:
            self._check_sleep(seconds)
            sleep(seconds)

        _posixsubprocess.fork_exec = audited_fork_exec
        if sys.version_info < (3, 13):
            time.sleep = audited_sleep


PURITY = Purity()  # an audit hook cannot be removed: one for the session
