"""A report on disk: for its owner alone, and whole or not at all."""

import os
from pathlib import Path

from perfwatch.errors import PerfwatchError
from perfwatch.session import PRIVATE_FILE


def save(target: Path, made: str | bytes) -> None:
    """Write a file in one step; an older one of the name is replaced.

    Raises:
        PerfwatchError: the place does not take it.
    """
    unfinished = target.with_name(f".{target.name[-100:]}.{os.getpid()}")
    data = made if isinstance(made, bytes) else made.encode("utf-8", "replace")
    try:
        with open(unfinished, "xb", opener=lambda path, flags: os.open(path, flags, PRIVATE_FILE)) as file:
            file.write(data)
        unfinished.replace(target)
    except OSError as error:
        raise PerfwatchError(
            f"{target} could not be written: {error.strerror}", "give another place: -o FILE"
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)
