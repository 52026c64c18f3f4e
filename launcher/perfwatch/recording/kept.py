"""The recordings that are kept: what each is about and takes, and which of them are removed to keep within limits.

Everything here looks at a disk and runs in a killable child. A session that is being written is held by its writer, and stays. So does
a folder of another user, and one that holds files that perfwatch does not write: a training may have saved its checkpoints there.
"""

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from perfwatch.errors import SessionUnreadable
from perfwatch.processes.own_folders import is_ours, own_folders
from perfwatch.recording.damage import DAMAGED
from perfwatch.recording.recording import load_session
from perfwatch.recording.segments import is_written
from perfwatch.recording.session import AUTOPSY, LONGEST_SESSION_BYTES, SNAPSHOT

LARGEST_EVENTS_BYTES = 32 * 2**20
REMARKABLE = ("hung", "slow", "gone")
HARMLESS_ENDS = ("finished",)
EXPLAINS_THE_END = ("hung", "slow")
CHECKED = ".checked"  # its time says when the limits were last looked after
CHECK_SECONDS = 3600.0
GOING = ".removed-"  # how the name of a session begins that is being removed
YOUNG_SECONDS = 3600.0  # what was recorded just now is not removed to make room
# At the top of a session: by the recorder (``segments``, ``unnamed``), captures, ``run.dumps`` and ``autopsy.watch``.
_WRITTEN = re.compile(
    r"session\.json|events\.jsonl|(?:readings|stacks)(?:-\d+)?\.jsonl|\.perfwatch\.new|captures|flight_recorder|left"
)


class _Verdict(msgspec.Struct, frozen=True):
    state: str = ""
    cause: str | None = None


class _Mode(msgspec.Struct, frozen=True):
    """Of a session only how it was made."""

    mode: str = ""


class _Event(msgspec.Struct, frozen=True):
    kind: str = ""
    verdict: _Verdict | None = None
    facts: dict[str, Any] = {}


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A session on disk.

    Attributes:
        folder: where it lies.
        created: unix time.
        mode: how it was made.
        command: of the job.
        state: of the last verdict that was told; of one that explains how the job ended, where it ended.
        cause: of the same verdict.
        calm: True if nothing but healthy and busy was ever told, and the job ended well.
        size_bytes: on the disk, captures included.
        written: True while it is being written.
        foreign: what lies in it that perfwatch does not write; such a session is not removed.
    """

    folder: str
    created: float
    mode: str
    command: tuple[str, ...]
    state: str | None
    cause: str | None
    calm: bool
    size_bytes: int
    written: bool
    foreign: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder."""
        return os.path.basename(self.folder)


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """What a round has done. removed: sessions that went; stuck: those that could not, with the reason."""

    removed: tuple[Kept, ...] = ()
    stuck: tuple[tuple[str, str], ...] = ()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What recordings may be. days: how old a calm one gets; gib: what all take together. 0 is no limit."""

    days: float = 30.0
    gib: float = 10.0


def described(folder: str) -> Kept | None:
    """What a folder holds; None where it is no session that can be read."""
    try:
        session, foreign = load_session(Path(folder)), foreign_in(folder)
    except (SessionUnreadable, OSError):
        return None
    told, calm = _told(Path(folder) / "events.jsonl")
    return Kept(
        folder=folder,
        created=session.created,
        mode=session.mode,
        command=session.command,
        state=told.state if told is not None else None,
        cause=told.cause if told is not None else None,
        calm=calm,
        size_bytes=size_of(Path(folder)),
        written=is_written(folder),
        foreign=foreign,
    )


def mode_of(folder: str) -> str:
    """How a session was made; empty where that cannot be read."""
    try:
        with open(os.path.join(folder, "session.json"), "rb") as file:
            return msgspec.json.decode(file.readline(LONGEST_SESSION_BYTES), type=_Mode).mode
    except (OSError, *DAMAGED):
        return ""  # what opens it says what is wrong with it


def told_of(folder: str) -> bool:
    """True if a session has a verdict on a job of this machine, or is being made.

    That of another host's look is only asked for by its name. Files that a job left behind tell of it only where they say
    how it ended.
    """
    mode = mode_of(folder)
    if mode == SNAPSHOT:
        return False
    told, _ = _told(Path(folder) / "events.jsonl")
    if mode == AUTOPSY:
        return told is not None and told.state != "inconclusive"
    return told is not None or is_written(folder)


def sessions_in(homes: Iterable[str]) -> list[Kept]:
    """Every session of ours in these folders, newest first."""
    found = (described(path) for home in homes for path in _folders(home))
    return sorted((one for one in found if one is not None), key=lambda one: one.created, reverse=True)


def _folders(home: str) -> Iterator[str]:
    for own in own_folders(Path(home)):
        with suppress(OSError), os.scandir(own) as entries:
            yield from (
                entry.path for entry in entries if is_ours(Path(entry.path)) and not entry.name.startswith(GOING)
            )


def foreign_in(folder: str | Path) -> tuple[str, ...]:
    """What lies at the top of a session that perfwatch does not write. Raises OSError."""
    return tuple(sorted(name for name in os.listdir(folder) if not _WRITTEN.fullmatch(name)))


def _refuse_what_is_not_ours(folder: str | Path) -> None:
    """Raise PermissionError for a folder that is no session of ours alone, or that another user could exchange for another one."""
    home = os.stat(os.path.dirname(folder))
    if home.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not home.st_mode & stat.S_ISVTX:
        raise PermissionError(
            1, f"other users can write {os.path.dirname(folder)}: chmod go-w {os.path.dirname(folder)}"
        )
    if not is_ours(Path(folder)):
        raise PermissionError(1, "it belongs to another user")
    if foreign := foreign_in(folder):
        raise PermissionError(1, f"it holds {foreign[0]}, which perfwatch did not write")


def remove_session(folder: str | Path) -> None:
    """Remove a session: out of sight in one step, so that what is cut short leaves no half of one. Raises OSError."""
    _refuse_what_is_not_ours(folder)
    home, name = os.path.split(folder)
    gone = os.path.join(home, f"{GOING}{name}")
    os.rename(folder, gone)
    shutil.rmtree(gone)


def _clear(home: str) -> None:
    """Remove what an earlier removal has left."""
    with suppress(OSError), os.scandir(home) as entries:
        for entry in entries:
            if entry.name.startswith(GOING):
                with suppress(OSError):
                    _refuse_what_is_not_ours(entry.path)
                    shutil.rmtree(entry.path)


def remove_all(chosen: Iterable[Kept], dry_run: bool = False) -> Removed:
    """Remove sessions, but for those that are being written. dry_run: say what would be removed, and remove nothing."""
    act = _refuse_what_is_not_ours if dry_run else remove_session
    removed, stuck = [], []
    for one in chosen:
        if is_written(one.folder):
            stuck.append((one.folder, "it is being written"))
            continue
        try:
            act(one.folder)
        except OSError as error:
            stuck.append((one.folder, error.strerror or str(error)))
        else:
            removed.append(one)
    return Removed(removed=tuple(removed), stuck=tuple(stuck))


def beyond(sessions: Iterable[Kept], limits: Limits, now: float) -> list[Kept]:
    """Which sessions are beyond the limits: old calm ones, then the oldest until the rest fits, calm ones first.

    Those of a daemon count and stay: it keeps a budget of its own.
    """
    every = list(sessions)
    ours = [
        one
        for one in every
        if one.mode != "daemon" and not (one.written or one.foreign) and now - one.created > YOUNG_SECONDS
    ]
    old = [one for one in ours if limits.days and one.calm and now - one.created > limits.days * 86400]
    total = sum(one.size_bytes for one in every) - sum(one.size_bytes for one in old)
    going = list(old)
    for one in sorted(ours, key=lambda one: (not one.calm, one.created)):
        if not limits.gib or total <= limits.gib * 2**30:
            break
        if one not in old:
            going.append(one)
            total -= one.size_bytes
    return going


def keep_within(home: str, limits: Limits, now: Callable[[], float] = time.time) -> Removed:
    """Remove what is beyond the limits in one folder of sessions; at most once an hour."""
    stamp = os.path.join(home, CHECKED)
    with suppress(OSError):
        if now() - os.lstat(stamp).st_mtime < CHECK_SECONDS:
            return Removed()
    with suppress(OSError):
        os.close(os.open(stamp, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        os.utime(stamp, follow_symlinks=False)
    _clear(home)
    return remove_all(beyond(sessions_in([home]), limits, now()))


def _told(events: Path) -> tuple[_Verdict | None, bool]:
    """The verdict that a session is about, and True if it is calm."""
    try:
        with open(os.open(events, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            lines = file.read(LARGEST_EVENTS_BYTES).splitlines()
    except OSError:
        return None, True  # nothing was ever told
    shown, calm = None, True
    for line in lines:
        try:
            event = msgspec.json.decode(line, type=_Event)
        except DAMAGED:
            continue
        told = event.verdict
        if event.kind == "outcome" and (told is None or told.state == "inconclusive"):
            told = _end(event.facts) or told  # too short to be judged, and reaped
        if event.kind == "retraction":
            shown = None
        if told is None:
            continue
        calm = calm and not (told.state in REMARKABLE and told.cause not in HARMLESS_ENDS)
        if event.kind in ("verdict", "outcome") and not (
            told.state == "gone" and shown is not None and shown.state in EXPLAINS_THE_END
        ):
            shown = told
    return shown, calm


def _end(facts: dict[str, Any]) -> _Verdict | None:
    """How a run ended, by what it was reaped with."""
    code = facts.get("exit_code")
    if not isinstance(code, int):
        return None
    return _Verdict("gone", "finished" if code == 0 else f"exit code {code}")


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


def as_json(sessions: Iterable[Kept]) -> dict[str, Any]:
    """For a program."""
    return {"schema": "perfwatch.sessions/1", "sessions": [msgspec.to_builtins(one) for one in sessions]}
