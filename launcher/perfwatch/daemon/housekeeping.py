"""All recordings of the daemon together stay within a budget: the oldest calm ones go first, then the oldest of the rest.

Only sessions that a daemon has made are touched; those that somebody started by hand stay until somebody removes them.
Everything here looks at a disk and runs in a killable child.
"""

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfwatch.errors import SessionUnreadable
from perfwatch.recording.damage import DAMAGED
from perfwatch.recording.recording import load_session

MOST_SESSIONS = 1000
LEAST_FREE_BYTES = 256 * 2**20  # on a disk that others fill up: our old recordings are the first to make room
LARGEST_EVENTS_BYTES = 32 * 2**20
REMARKABLE = ("hung", "slow", "gone")
HARMLESS_ENDS = ("finished",)


class _Verdict(msgspec.Struct, frozen=True):
    state: str = ""
    cause: str | None = None


class _Event(msgspec.Struct, frozen=True):
    verdict: _Verdict | None = None


@dataclass(frozen=True)
class Kept:
    """A finished session of the daemon's. calm: nothing but healthy and busy was ever told, and it ended well."""

    folder: Path
    created: float
    size_bytes: int
    calm: bool


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
    remove: Callable[[Path], None] = shutil.rmtree,
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
        size = size_of(Path(entry.path))
        if entry.path in busy:
            total += size
        elif (kept := _finished(Path(entry.path), size)) is not None:
            total += size
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
            remove(one.folder)
        except OSError as error:
            stuck.append(f"{one.folder} cannot be removed: {error.strerror or error}")
            total += size_of(one.folder) - one.size_bytes  # a part of it may have gone
            continue
        total -= one.size_bytes
        count -= 1
        kind = "calm" if one.calm else "with an incident"
        removed.append(f"removed {one.folder.name} ({kind}, {one.size_bytes / 2**20:.1f} MiB): {why}")
    return Tidied(total, tuple(removed), tuple(stuck))


def _finished(folder: Path, size: int) -> Kept | None:
    """None for what is not a daemon's session."""
    try:
        session = load_session(folder)
    except (SessionUnreadable, PermissionError):
        return None
    return Kept(folder, session.created, size, _calm(folder / "events.jsonl")) if session.mode == "daemon" else None


def _calm(events: Path) -> bool:
    try:
        with events.open("rb") as file:
            lines = file.read(LARGEST_EVENTS_BYTES).splitlines()
    except OSError:
        return True  # nothing was ever told
    for line in lines:
        try:
            told = msgspec.json.decode(line, type=_Event).verdict
        except DAMAGED:
            continue
        if told is not None and told.state in REMARKABLE and told.cause not in HARMLESS_ENDS:
            return False
    return True


def size_of(folder: Path) -> int:
    """What it takes on the disk, captures included."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:
                continue  # the writer replaced it
    return total
