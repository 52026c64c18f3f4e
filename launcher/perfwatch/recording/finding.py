"""Which session the user means: a folder, an archive, a name below the default folders, or the newest of all.

Nothing here touches a path in the calling process, as in ``perfwatch.recording.session``.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path

import msgspec

from perfwatch.errors import SessionUnreadable
from perfwatch.processes.own_folders import own_folders
from perfwatch.recording.damage import DAMAGED
from perfwatch.recording.kept import mode_of, told_of
from perfwatch.recording.session import DEADLINE_SECONDS, LONGEST_SESSION_BYTES, SNAPSHOT, homes_of_sessions
from perfwatch.text import command_line
from perfwatch_probes.deadline import Caller
from perfwatch_probes.probe import Unavailable

NEWEST = 5  # that are offered where none of a name is found
SHOWN = 80  # characters of a command line
MOST_READ = 200  # of the newest: what each is about

Dated = tuple[float, str]  # when it was last described, and its folder


class Recent(msgspec.Struct, frozen=True):
    """What a recording is about."""

    folder: str = ""
    command: tuple[str, ...] = ()
    root_pids: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """By which it is asked for."""
        return os.path.basename(self.folder)


def find_session(argument: str | None, environ: Mapping[str, str], child: Caller) -> Path:
    """The session folder that the user means: the named one, the newest inside a named folder, or the newest of all.

    The newest that tells of a job is meant (``told_of``), where there is one.

    Raises:
        SessionUnreadable: nothing of the kind is there.
        PermissionError: it may not be looked at.
    """
    return find_sessions(argument, environ, child)[0]


def find_sessions(argument: str | None, environ: Mapping[str, str], child: Caller) -> list[Path]:
    """The session that the user means, and the one that would be meant if there were not that one, if any.

    Raises as ``find_session`` does.
    """
    homes = homes_of_sessions(environ, os.getuid())
    found: list[Dated] = []
    if argument:
        try:
            found = child.call(_sessions_in, argument, deadline_seconds=DEADLINE_SECONDS)
        except Unavailable as unavailable:
            raise SessionUnreadable(f"{argument} does not answer: {unavailable.reason}", unavailable.advice) from None
    if not found:
        known = _known(homes, child)
        found = [one for one in known if argument in (None, "", os.path.basename(one[1]))]
        if argument and not found:
            raise SessionUnreadable(f"{argument} is not a perfwatch session", _offered(_about(known, NEWEST, child)))
    if not found:
        raise SessionUnreadable(
            f"no session was found in {', '.join(homes)}",
            "record one first: perfwatch run -- python train.py, or perfwatch attach PID",
        )
    try:
        return [Path(one) for one in child.call(_meant, found, deadline_seconds=DEADLINE_SECONDS)]
    except Unavailable:
        return [Path(max(found)[1])]


def _known(homes: Iterable[str], child: Caller) -> list[Dated]:
    """What lies in the default folders, as far as they answer. Raises PermissionError where that is why nothing is found."""
    found: list[Dated] = []
    denied = None
    for home in homes:
        try:
            found += child.call(_own_sessions_in, home, deadline_seconds=DEADLINE_SECONDS)
        except Unavailable:
            continue
        except PermissionError as error:
            denied = error
    if denied is not None and not found:
        raise denied
    return found


def recent(environ: Mapping[str, str], child: Caller) -> list[Recent]:
    """What the newest recordings in the default folders are about, the newest first; none where they do not answer."""
    try:
        return _about(_known(homes_of_sessions(environ, os.getuid()), child), MOST_READ, child)
    except PermissionError:
        return []


def after_the_end(matches: Callable[[Recent], bool], environ: Mapping[str, str], child: Caller) -> str:
    """What to type for a job that runs no more, where it was recorded; empty where it was not."""
    found = next((one for one in recent(environ, child) if matches(one)), None)
    if found is None:
        return ""
    what = command_line(found.command)[:SHOWN]
    return f"perfwatch replay {found.name}    # the last recording of it: {what}\nperfwatch autopsy LOG    # why it ended, from its log"


def _about(known: list[Dated], most: int, child: Caller) -> list[Recent]:
    folders = [folder for _, folder in sorted(known, reverse=True)[:most]]
    try:
        return child.call(_read, folders, deadline_seconds=DEADLINE_SECONDS)
    except Unavailable:
        return [Recent(folder) for folder in folders]


def _read(folders: list[str]) -> list[Recent]:
    """Runs in the child."""
    found = []
    for folder in folders:
        try:
            with open(os.path.join(folder, "session.json"), "rb") as file:
                about = msgspec.json.decode(file.readline(LONGEST_SESSION_BYTES), type=Recent)
        except (OSError, *DAMAGED):
            about = Recent()
        found.append(msgspec.structs.replace(about, folder=folder))
    return found


def _offered(newest: list[Recent]) -> str:
    advice = "name a folder that holds a session.json"
    if not newest:
        return advice
    listed = (f"{one.name}    # {command_line(one.command)[:SHOWN]}" if one.command else one.name for one in newest)
    return "\n".join([f"{advice}, or a session; the newest are", *listed])


def _own_sessions_in(home: str) -> list[Dated]:
    """Runs in the child: those in a folder that was not typed, where it is ours; another user may have made it to be read."""
    if os.path.lexists(home):
        return [dated for folder in own_folders(Path(home)) for dated in _sessions_in(str(folder))]
    return _sessions_in(home)  # says why, where it may not be looked at


def _sessions_in(place: str) -> list[Dated]:
    """Runs in the child: the session at a place, or those right below it, with the time when each was last described."""
    if os.path.isfile(place):  # an archive; ``perfwatch.recording.archive`` finds out whether it is one
        return [(0.0, place)]
    try:
        os.stat(place)
    except PermissionError:
        raise  # a folder above it, maybe: it may well be there
    except OSError:
        return []
    found: list[Dated] = []
    names = sorted(os.listdir(place)) if os.path.isdir(place) else []
    for folder in (place, *(os.path.join(place, name) for name in names)):
        try:
            found.append((os.stat(os.path.join(folder, "session.json")).st_mtime, folder))
        except OSError:
            continue
    return found


def _meant(found: list[Dated]) -> list[str]:
    """Runs in the child: the newest two that tell of a job; the newest of all where none does."""
    folders = [folder for _, folder in sorted(found, reverse=True)]
    if len(folders) == 1:
        return folders
    telling = (folder for folder in folders[:MOST_READ] if told_of(folder))
    return list(islice(telling, 2)) or next(([one] for one in folders if mode_of(one) != SNAPSHOT), folders[:1])
