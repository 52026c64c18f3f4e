"""``perfwatch``, and ``python -m perfwatch``."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from perfwatch.processes.priority import KEEP_PRIORITY, give_way


def main() -> None:
    """Do what the command line of this process says; does not return."""
    try:
        own_libraries_first(sys.path, os.environ)
        if not KEEP_PRIORITY.intersection(sys.argv[1:2]):
            give_way(os.environ)
        _main()
    except KeyboardInterrupt:  # before ``perfwatch.cli`` could take it
        from perfwatch.errors import INTERRUPTED

        sys.exit(INTERRUPTED)


def own_libraries_first(path: list[str], environment: Mapping[str, str]) -> None:
    """Search the folders of PYTHONPATH last: they are for the job, and may hold our libraries in a version that we cannot use.

    Args:
        path: ``sys.path``, which is changed.
        environment: where PYTHONPATH is looked up.
    """
    named = set(filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))
    with suppress(OSError):  # the working directory is gone
        named |= {os.path.abspath(folder) for folder in named}
    path.sort(key=named.__contains__)


def _main() -> None:
    from perfwatch.processes import linux  # imports take most of a short command's CPU, so they come after ``give_way``

    # What ``run`` starts has its streams as we got them; any other program of ours finds each of them open.
    linux.occupy_standard_descriptors(inherited=sys.argv[1:2] != ["run"])
    sys.stdout = sys.stdout or open(os.devnull, "w")  # closed from the start: python has none then
    sys.stderr = sys.stderr or open(os.devnull, "w")
    from perfwatch.cli import main as command_line

    command_line()


if __name__ == "__main__":
    main()
