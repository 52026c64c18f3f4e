"""What the ranks' flight recorders wrote into the folder of a run that failed goes into its session: it is the user's."""

import os
import stat
from pathlib import Path

from perfwatch_probes.group_variables import DUMP_PREFIX

FOLDER = "flight_recorder"
MOST_DUMPS, MOST_DUMP_BYTES = 64, 2**22  # 256 MiB at the very most; a dump is 0.3 MiB


def keep_dumps(place: Path, session: Path) -> list[Path]:
    """Copy them, as they are: ``torchfrtrace`` reads them. One that cannot be copied is left out. Gives the copies."""
    kept = []
    for path in sorted(place.glob(f"{DUMP_PREFIX}*"))[:MOST_DUMPS]:
        target = session / FOLDER / path.name
        try:
            data = _dump(path)
            target.parent.mkdir(mode=0o700, exist_ok=True)
            with open(target, "xb", opener=_private) as copy:
                copy.write(data)
        except OSError:
            continue
        kept.append(target)
    return kept


def _dump(path: Path) -> bytes:
    """The file of that name, itself and whole. Raises OSError for a link, a pipe, a device and a file that is too large.

    The job may replace or extend the file at any time, so the open file is asked, and the read is bounded.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        data = file.read(MOST_DUMP_BYTES + 1)
    if len(data) > MOST_DUMP_BYTES:
        raise OSError(f"{path} has more than {MOST_DUMP_BYTES} bytes")
    return data


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
