"""Keeps a process from being torn down while its profiler records: the agent in it waits at exit while a file is there.

Seen with torch 2.13 on the CPU: of processes that ended by themselves in the middle of a window, some crashed (SIGSEGV)
after their last line. The file says until when, so that nothing waits for a capture that is gone.
"""

import contextlib
import os

from perfwatch.captures.capture import Subject
from perfwatch_probes.agent_folder import AgentFolder

WRITE_SECONDS = 10.0  # after the window, for the trace


class Exits:
    """The files of one window.

    Args:
        place: the agent's folder; None where there is no agent, and nothing can be held.
        subjects: the processes that will record.
        until: seconds of CLOCK_MONOTONIC at which the window will have ended.
    """

    def __init__(self, place: AgentFolder | None, subjects: tuple[Subject, ...], until: float) -> None:
        self._files = {one.pid: place.path / f"window-{one.pid}" for one in subjects} if place is not None else {}
        for path in self._files.values():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{until + WRITE_SECONDS:.3f}")

    def release(self, pid: int) -> None:
        """The profiler of this process has come to rest."""
        if pid in self._files:
            with contextlib.suppress(FileNotFoundError):
                self._files[pid].unlink()

    def close(self) -> None:
        """All of them have, or nothing waits for them any more."""
        for pid in self._files:
            self.release(pid)
