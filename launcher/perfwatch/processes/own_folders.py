"""Our user's own folder inside a folder that every user can write to: /dev/shm, /tmp, /var/tmp.

There, a name belongs to the user that takes it first. If another user has taken our name, our folder gets a random suffix. So no user
can keep another from having a folder, and a folder that another user made is never trusted.
"""

import os
import stat
import tempfile
from itertools import islice
from pathlib import Path

MOST_LISTED = 2**14  # names that are looked through for one with a random end: 10 ms


def is_ours(folder: Path) -> bool:
    """True if this is a folder, no link, of our own user."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def own_folders(folder: Path) -> list[Path]:
    """Our folders of this name, with and without a random end, as far as there are any."""
    if is_ours(folder):
        return [folder]
    if not os.path.lexists(folder):
        return []
    try:
        with os.scandir(folder.parent) as entries:
            names = sorted(
                entry.name for entry in islice(entries, MOST_LISTED) if entry.name.startswith(f"{folder.name}.")
            )
    except OSError:
        return []
    return [path for path in (folder.with_name(name) for name in names) if is_ours(path)]


def make_own_folder(folder: Path) -> Path:
    """Our folder of this name, made if need be, with a random end where another user has taken the name.

    Raises:
        OSError: there is no room, or it may not be made there.
    """
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        ours = own_folders(folder)
        return ours[0] if ours else Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    return folder
