"""The command with which perfwatch starts itself. It loads no module from the working directory."""

import sys

# What -P does from Python 3.11 on: with -m and -c alone the working directory comes first on the path.
_BEGIN = "import sys; sys.path[:] = filter(None, sys.path); from perfwatch.__main__ import main; main()"


def own_command() -> list[str]:
    """The words before those of the command line."""
    return [sys.executable, "-c", _BEGIN]
