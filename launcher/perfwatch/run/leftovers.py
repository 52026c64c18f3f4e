"""What ended processes have left in the agent's folder, kept to a number of files: a sweep may start a process per trial.

The folder is memory that counts for the job, and every look reads what is in it. The newest stay, for a later attach.
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from perfwatch.captures.torch_files import pids_inside
from perfwatch.processes.place import Place

MOST_FILES = 128  # of ended processes: 0.5 MiB of pages of steps, which take 9 ms to read
EVERY_SECONDS = 30.0  # the watch has looked meanwhile: what is removed has been told
_LEFT = re.compile(r"(?:steps-(\d+)|crash-(\d+)\.txt|thread-(\d+)-\d+\.txt)")


class Leftovers:
    """Removes the oldest pages and tracebacks of processes that had ended at the look before as well.

    Args:
        place: of the job. Where launchers share one nothing is removed: in containers of their own, each has processes that
            the others do not see.
        clock: monotonic seconds.
        proc: root of /proc.
    """

    def __init__(self, place: Place, clock: Callable[[], float] = time.monotonic, proc: Path = Path("/proc")) -> None:
        self._place, self._clock, self._proc = place, clock, proc
        self._due = clock() + EVERY_SECONDS
        self._ended: set[str] = set()

    def tidy(self) -> None:
        """Look, where it is time, and remove what is too much."""
        if self._place.shared or self._clock() < self._due:
            return
        self._due = self._clock() + EVERY_SECONDS
        before, self._ended = self._ended, self._left_behind()
        known = sorted(before & self._ended, key=self._written)
        for name in known[: max(0, len(self._ended) - MOST_FILES)]:
            (self._place.folder / name).unlink(missing_ok=True)

    def _left_behind(self) -> set[str]:
        """Files whose process has ended. None where there are few: then no pid is looked up."""
        found = {name: _LEFT.fullmatch(name) for name in os.listdir(self._place.folder)}
        pids = {name: next(pid for pid in match.groups() if pid) for name, match in found.items() if match}
        if len(pids) <= MOST_FILES:
            return set()
        # A process in a namespace of its own has signed with the pid that it has there.
        listed = [int(name) for name in os.listdir(self._proc) if name.isdecimal()]
        living = {inside for pid in listed for inside in (pid, *pids_inside(pid, self._proc))}
        return {name for name, pid in pids.items() if int(pid) not in living}

    def _written(self, name: str) -> float:
        try:
            return (self._place.folder / name).lstat().st_mtime
        except FileNotFoundError:
            return 0.0
