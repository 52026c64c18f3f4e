"""How perfwatch is started again: by itself, or by the user as root."""

import os
import shutil
import sys
from collections.abc import Callable

# What -P does from Python 3.11 on: with -m and -c alone the working directory comes first on the path.
_BEGIN = "import sys; sys.path[:] = filter(None, sys.path); from perfwatch.__main__ import main; main()"
SYSTEM_FOLDERS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)  # of sudo's secure_path


def own_command() -> list[str]:
    """The words before those of the command line; no module is loaded from the working directory."""
    return [sys.executable, "-c", _BEGIN]


def as_root(command: str, where: Callable[[str], str | None] = shutil.which) -> str:
    """A command of ours as it is typed with sudo, which looks for programs in the system's folders alone.

    Args:
        command: as in ``perfwatch attach 4242``.
        where: the path of a program.
    """
    name, _, rest = command.partition(" ")
    path = where(name)
    if path is None or os.path.dirname(path) in SYSTEM_FOLDERS:
        return f"sudo {command}"
    return f"sudo {path} {rest}"
