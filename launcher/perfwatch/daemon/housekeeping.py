"""All recordings of the daemon together stay within a budget: the oldest calm ones go first, then the oldest of the rest.

Only sessions that a daemon has made are touched; the others have limits of their own (``perfwatch.recording.kept``).
Everything here looks at a disk and runs in a killable child.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from perfwatch.recording.kept import Kept, described, remove_session, size_of

MOST_SESSIONS = 1000
LEAST_FREE_BYTES = 256 * 2**20  # on a disk that others fill up: our old recordings are the first to make room


@dataclass(frozen=True)
class Tidied:
    """What a round has done. bytes_left: of all sessions. removed, stuck: what went, and what could not, in sentences."""

    bytes_left: int
    removed: tuple[str, ...]
    stuck: tuple[str, ...]


def tidy(
    home: str,
    living: Iterable[str],
    budget_bytes: int,
    most: int = MOST_SESSIONS,
    least_free_bytes: int = LEAST_FREE_BYTES,
    remove: Callable[[Path], None] = remove_session,
) -> Tidied:
    """Remove finished sessions until all together fit. One that cannot be removed stays, and others go in its stead.

    Args:
        home: the folder of sessions.
        living: paths of those that are being written: they count, and stay.
        budget_bytes: for everything.
        most: sessions to keep.
        least_free_bytes: what is to stay free on the disk.
        remove: removes a folder with all that is in it, or raises OSError.
    """
    busy = set(living)
    total, finished = 0, []
    for entry in os.scandir(home):
        if not entry.is_dir(follow_symlinks=False):
            continue
        if entry.path in busy:
            total += size_of(Path(entry.path))
        elif (kept := _finished(entry.path)) is not None:
            total += kept.size_bytes
            finished.append(kept)
    removed, stuck = [], []
    count = len(finished)
    disk = os.statvfs(home)
    allowed = min(budget_bytes, total + disk.f_bavail * disk.f_frsize - least_free_bytes)
    too_large = "the budget of all sessions is used" if allowed == budget_bytes else "the disk is nearly full"
    for one in sorted(finished, key=lambda one: (not one.calm, one.created)):
        if total <= allowed and count <= most:
            break
        why = too_large if total > allowed else f"more than {most} sessions are kept"
        try:
            remove(Path(one.folder))
        except OSError as error:
            stuck.append(f"{one.folder} cannot be removed: {error.strerror or error}")
            total += size_of(Path(one.folder)) - one.size_bytes  # a part of it may have gone
            continue
        total -= one.size_bytes
        count -= 1
        kind = "calm" if one.calm else "with an incident"
        removed.append(f"removed {one.name} ({kind}, {one.size_bytes / 2**20:.1f} MiB): {why}")
    return Tidied(total, tuple(removed), tuple(stuck))


def _finished(folder: str) -> Kept | None:
    """None for what is not a daemon's session."""
    kept = described(folder)
    return kept if kept is not None and kept.mode == "daemon" else None
