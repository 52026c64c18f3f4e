"""Our own errors that must not end the watch: each is reported once, identified by its type and its line of code."""

import traceback

from perfwatch_probes.probe import Unavailable

MOST_TOLD = 64  # places that fail: behind so many there is one reason


class Failures:
    """What has been told: the kind of an error and the place in the code, for its words may name a pid or a time."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str, int | None]] = set()

    def new(self, error: Exception) -> str:
        """What to say of an error that is caught here; empty where that has been said."""
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = (type(error).__name__, last.filename, last.lineno)
        if place in self._told or len(self._told) >= MOST_TOLD:
            return ""
        self._told.add(place)
        return f"internal error: {type(error).__name__}: {error}"


def as_unavailable(error: Exception) -> Unavailable:
    """What a probe raised, as every probe should have said it."""
    return error if isinstance(error, Unavailable) else Unavailable(f"{type(error).__name__}: {error}")
