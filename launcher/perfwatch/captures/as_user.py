"""A capture of another user's job is made as that user, in a folder of theirs; only its bytes come into our session.

Everything that such a capture touches belongs to the job's user: an endpoint, a session of nsys, files of the job. So the whole of
``taking.take`` runs in a guest (``perfwatch_probes.guest``), in a folder that the guest makes. What it brings is read piece by piece
through the guest, by names of a fixed form and up to the limit of the request: the session's owner opens no path of theirs.
"""

import os
import re
import secrets
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from perfwatch.captures.capture import Capture, File, Outcome, Request, Scene
from perfwatch.captures.guard import preflight
from perfwatch.captures.taking import failed, take
from perfwatch.errors import CaptureFailed, CaptureRefused, PerfwatchError
from perfwatch.processes.place import private_home
from perfwatch_probes.deadline import KillableChild, tell
from perfwatch_probes.guest import Guests, Identity, is_ours
from perfwatch_probes.probe import Unavailable

STAGING = "/var/tmp"  # open to all and on a disk: the guest's own folder is made in it
PIECE_BYTES = 4 * 2**20
PIECE_SECONDS = 10.0
SETTLE_SECONDS = 2.0  # for the guest to remove its folder
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def take_as_needed(
    capture: Capture,
    request: Request,
    scene: Scene,
    folder: Path,
    home: Path,
    say: Callable[[str], None],
    deadline_seconds: float,
) -> Outcome:
    """Make a capture, as ourselves or as the job's user; the arguments are those of ``take``. Never raises."""
    guests = scene.guests.fresh()
    place = scene.place.fresh() if scene.place is not None else None
    scene = replace(scene, guests=guests, place=place)
    try:
        other = _other_user(capture, request, scene, guests)
        if other is None:
            return take(capture, request, scene, folder, home, say)
        return _as_user(capture, request, scene, folder, say, other, deadline_seconds)
    except PerfwatchError as error:
        return failed(request, error.message, error.advice, error.exit_code)
    except Unavailable as why:
        return failed(request, why.reason, why.advice, CaptureFailed.exit_code)
    except OSError as error:
        return failed(request, f"{folder}: {error.strerror or error}", "", CaptureFailed.exit_code)
    finally:
        guests.close()


def _other_user(capture: Capture, request: Request, scene: Scene, guests: Guests) -> Identity | None:
    """As whom the capture is to be made, where that is not ourselves. Raises CaptureRefused for ranks of several users."""
    if not capture.belongs_to_the_user(scene):
        return None
    found = {guests.identity(one.pid) for one in scene.wanted(request)}
    if len(found) > 1:
        raise CaptureRefused("the ranks belong to several users, and a capture is made as one", "name one: --rank 0")
    identity = next(iter(found), None)
    return None if identity is None or is_ours(identity) else identity


def _as_user(
    capture: Capture,
    request: Request,
    scene: Scene,
    folder: Path,
    say: Callable[[str], None],
    identity: Identity,
    deadline_seconds: float,
) -> Outcome:
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700)
    child = scene.guests.child(identity)
    staging = f"{STAGING}/perfwatch-{identity.uid}-{secrets.token_hex(8)}"
    try:
        preflight(capture, request, scene, folder)
        place = replace(scene.place, guests=None) if scene.place is not None else None
        described = replace(scene, guests=Guests(scene.proc), environment={}, place=place)
        outcome = child.call(
            taken, capture.NAME, request, described, staging, deadline_seconds=deadline_seconds, heard=say
        )
        return _brought(outcome, request, folder, child)
    finally:
        try:
            child.call(remove, staging, deadline_seconds=SETTLE_SECONDS)
        except (Unavailable, OSError, RuntimeError):
            pass  # it is the user's own, and names itself
        if not any(folder.iterdir()):
            folder.rmdir()


def taken(kind: str, request: Request, scene: Scene, staging: str) -> Outcome:
    """Make the capture in a folder of our own; runs in a guest."""
    from perfwatch.captures.catalogue import named  # the profilers' modules cost a watch 0.1 s and 10 MB

    capture = named(kind)
    assert capture is not None
    home = private_home() / "captures"
    home.mkdir(mode=0o700, exist_ok=True)
    os.mkdir(staging, 0o700)
    scene = replace(scene, environment=dict(os.environ))
    return take(capture, request, scene, Path(staging) / "files", home, tell)


def piece(path: str, offset: int) -> bytes:
    """The next bytes of a file; empty at its end. Runs in a guest."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, PIECE_BYTES, offset)
    finally:
        os.close(descriptor)


def remove(folder: str) -> None:
    """Remove a folder with all that is in it; runs in a guest."""
    shutil.rmtree(folder, ignore_errors=True)


def _brought(outcome: Outcome, request: Request, folder: Path, child: KillableChild) -> Outcome:
    """The outcome with its files in the session. Raises CaptureFailed where they are not what the outcome says."""
    left = request.most_bytes
    files: list[File] = []
    for file in outcome.files:
        name = os.path.basename(file.path)
        if not _NAME.fullmatch(name):
            raise CaptureFailed("the capture returned a file name that cannot be used")
        target = folder / name
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as copy:
            size = 0
            while data := child.call(piece, file.path, size, deadline_seconds=PIECE_SECONDS):
                size += len(data)
                left -= len(data)
                if left < 0:
                    target.unlink()
                    raise CaptureFailed(
                        f"the files of the capture are larger than {request.most_bytes // 2**20} MiB",
                        "ask for fewer steps or ranks, or --most-mib",
                    )
                copy.write(data)
        files.append(msgspec.structs.replace(file, path=str(target), size_bytes=size))
    return msgspec.structs.replace(outcome, files=tuple(files))
