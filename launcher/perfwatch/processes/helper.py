"""A helper process at the other end of a channel: it may block, fail or be killed without delaying the watcher."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from perfwatch.processes import linux
from perfwatch.processes.channel import Channel, Message
from perfwatch_probes.sessions import start_session

REAP_TRIES = 20  # of a millisecond each


class Helper:
    """One forked process that is sent messages. Fork it before the process starts threads.

    Args:
        name: what ``ps`` shows.
        serve: what it does until its end of the channel closes.
        keep: let it live on after us until it is done by itself; otherwise the kernel ends it with us.

    Raises:
        OSError: no process can be started (ulimit -u, pids.max).
    """

    def __init__(self, name: str, serve: Callable[[Channel], None], keep: bool = False) -> None:
        self._status: int | None = None
        self._channel, theirs = Channel.pair()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become(name, parent, theirs, serve, keep)
        theirs.close()

    def send(self, message: Message) -> None:
        """Never waits; a message for which there is no room is dropped."""
        self._channel.send(message)

    def fileno(self) -> int:
        """For poll()."""
        return self._channel.fileno()

    def hear(self) -> list[Message]:
        """What it has said since."""
        return [] if self._channel.closed else self._channel.receive()

    @property
    def ended(self) -> int | None:
        """Its wait status once it has ended; None while it lives."""
        if self._status is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._status = status if pid else None
        return self._status

    def ask_to_leave(self) -> None:
        """SIGTERM, for one that listens to it."""
        if self.ended is None:
            os.kill(self.pid, signal.SIGTERM)

    def close(self, kill: bool = True) -> None:
        """Hang up: it ends when it is done, or (``kill``) now. It is not waited for."""
        self._channel.close()
        if kill and self.ended is None:
            os.kill(self.pid, signal.SIGKILL)
        for _ in range(REAP_TRIES if kill else 1):
            if self.ended is not None:
                break
            time.sleep(0.001)


class HelperClient:
    """The near end of a helper that does something for the user and says sentences about it.

    Args:
        name, serve: as of a ``Helper``.
        finishes: what was handed over is still done after ``close``, without us; otherwise it ends then.

    Raises:
        OSError: no process can be started.
    """

    def __init__(self, name: str, serve: Callable[[Channel], None], finishes: bool = False) -> None:
        self._helper, self._finishes = Helper(name, serve, keep=finishes), finishes

    def fileno(self) -> int:
        """For poll(): readable when there is news."""
        return self._helper.fileno()

    def news(self) -> list[str]:
        """Sentences for the user since the last call."""
        messages = self._helper.hear()
        for message in messages:
            self._heard(message)
        return [message["say"] for message in messages if "say" in message]

    def close(self) -> None:
        """Nothing more comes."""
        self._helper.close(kill=not self._finishes)

    def _heard(self, message: Message) -> None:
        """What else it has said."""


def _become(name: str, parent: int, channel: Channel, serve: Callable[[Channel], None], keep: bool) -> NoReturn:
    status = 1
    try:
        start_session()
        if not keep:
            linux.die_with_parent(parent)
        linux.set_name(name)
        linux.volunteer_for_the_oom_killer()
        linux.detach_from_streams(0, 1, 2)
        linux.close_all_but(channel.fileno())
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT}:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        serve(channel)
        status = 0
    except Exception as error:
        channel.send({"say": f"{name} failed: {type(error).__name__}: {error}"})
    finally:
        os._exit(status)
