"""How perfwatch is started again: by itself, or by the user as root."""

import os
import re
import shutil
import sys
from collections.abc import Callable

# What -P does from Python 3.11 on: with -m and -c alone the working directory comes first on the path.
_BEGIN = "import sys; sys.path[:] = filter(None, sys.path); from perfwatch.__main__ import main; main()"
_AS_ROOT = re.compile(r"\bsudo (?:perfwatch|\$\(command -v perfwatch\))(?![\w.-])")  # the second: in older recordings
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


def as_typed_here(text: str, where: Callable[[str], str | None] = shutil.which) -> str:
    """A text with each ``sudo perfwatch`` as it is typed on this machine: sudo looks for programs in the system's folders alone.

    Args:
        text: an advice, or several.
        where: the path of a program.
    """
    path = where("perfwatch")
    program = "perfwatch" if path is None or os.path.dirname(path) in SYSTEM_FOLDERS else path
    return _AS_ROOT.sub(lambda _: f"sudo {program}", text)
