"""What looks for other hosts have recorded here stays within bounds: a ``perfwatch fleet`` every few minutes fills no disk.

These sessions were not asked for by name. Those that a user made on purpose, and the daemon's, are left alone.
"""

import os
from collections.abc import Callable
from pathlib import Path

from perfwatch.errors import SessionUnreadable
from perfwatch.fleet.merge.snapshot import Snapshot
from perfwatch.recording.kept import remove_session, size_of
from perfwatch.recording.recording import load_session
from perfwatch.recording.session import SNAPSHOT
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.probe import Unavailable

MOST_SESSIONS = 32  # so that the looks of one incident, at several jobs, are there the next morning
BUDGET_BYTES = 256 * 2**20  # as much as a session of ``run`` may take
YOUNG_SECONDS = 900.0  # a process may still write it: the longest look takes ten minutes
DEADLINE_SECONDS = 5.0  # the answer has been given, and what is left now the next look removes


def tidy(made: Snapshot) -> None:
    """Clear the folders into which a look has recorded."""
    child = KillableChild()
    try:
        for home in {os.path.dirname(view.folder) for view in made.jobs if view.folder}:
            child.call(clear, home, made.made, deadline_seconds=DEADLINE_SECONDS)
    except (Unavailable, OSError):
        pass  # a sick disk, or a folder that is gone
    finally:
        child.close()


def clear(home: str, now: float, remove: Callable[[str], None] = remove_session) -> list[str]:
    """Remove the oldest of such sessions, as far as they can be; runs in a killable child, and gives the names of those removed.

    Args:
        home: the folder of sessions.
        now: unix time.
        remove: removes a folder with all that is in it, or raises OSError.
    """
    found = []
    for entry in os.scandir(home):
        if entry.is_dir(follow_symlinks=False):
            try:
                session = load_session(Path(entry.path))
            except (SessionUnreadable, PermissionError):
                continue
            if session.mode == SNAPSHOT:
                found.append((session.created, entry.path))
    removed, total = [], 0
    for number, (created, path) in enumerate(sorted(found, reverse=True)):
        total += size_of(Path(path))
        if (number >= MOST_SESSIONS or total > BUDGET_BYTES) and now - created > YOUNG_SECONDS:
            try:
                remove(path)
            except OSError:
                continue  # another look clears too, or it is not ours to remove
            removed.append(os.path.basename(path))
    return removed
