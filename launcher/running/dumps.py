"""What the ranks' flight recorders wrote into the folder of a run that failed goes into its session: it is the user's."""

import os
import shutil
import stat
from pathlib import Path

from perfwatch.probes.group_variables import DUMP_PREFIX

FOLDER = "flight_recorder"
MOST_DUMPS, MOST_DUMP_BYTES = 64, 2**22  # 256 MiB at the very most; a dump is 0.3 MiB


def keep_dumps(place: Path, session: Path) -> list[Path]:
    """Copy them, as they are: ``torchfrtrace`` reads them. One that cannot be copied is left out. Gives the copies."""
    kept = []
    for path in sorted(place.glob(f"{DUMP_PREFIX}*"))[:MOST_DUMPS]:
        target = session / FOLDER / path.name
        try:
            state = os.lstat(path)
            if not stat.S_ISREG(state.st_mode) or state.st_size > MOST_DUMP_BYTES:
                continue
            target.parent.mkdir(mode=0o700, exist_ok=True)
            shutil.copyfile(path, target)
        except OSError:
            continue
        kept.append(target)
    return kept
