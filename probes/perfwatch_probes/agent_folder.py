"""The folder where the agent inside a job writes, and ``perfwatch run`` leaves what captures need. It belongs to the job's user.

Where that is another user than ours, or the job is in a container with a root of its own, a guest reads it
(``perfwatch_probes.guest``): its owner may put links, pipes or a million files there.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfwatch_probes.deadline import Caller, Inline
from perfwatch_probes.guest import Guests, Identity, opened, state_of
from perfwatch_probes.guest import names as names_in
from perfwatch_probes.probe import Unavailable

MOST_NAMES = 16_384  # of one folder; a sweep of many trials leaves some thousands
READ_SECONDS = 2.0

Tail = tuple[str, int, bytes]  # name, when it was written (unix time in ns), the last bytes


@dataclass(frozen=True)
class AgentFolder:
    """One such folder.

    Args:
        path: in our own root, or in that of ``inside``.
        owner: as whom it is read; None where it is our own.
        guests: read it then; None in a process that has become the owner.
        inside: a process in a root of its own, where the folder is.
    """

    path: Path
    owner: Identity | None = None
    guests: Guests | None = field(default=None, compare=False)
    inside: int | None = None

    @property
    def uid(self) -> int:
        """Whose it is."""
        return os.getuid() if self.owner is None else self.owner.uid

    def names(self) -> list[str]:
        """What is in it, sorted. Raises OSError, or Unavailable where no guest can look."""
        return self._caller().call(names, str(self.path), deadline_seconds=READ_SECONDS)

    def tails(self, wanted: Iterable[str], most_bytes: int) -> dict[str, tuple[int, bytes]]:
        """Of each regular file of these, when it was written (unix time in ns) and the last so many bytes; of the others nothing."""
        paths = [str(self.path / name) for name in wanted]
        if not paths:
            return {}
        try:
            found = self._caller().call(tails, paths, most_bytes, deadline_seconds=READ_SECONDS)
        except Unavailable:
            return {}
        return {name: (written, end) for name, written, end in found}

    def holds(self, name: str) -> bool:
        """True if there is something of this name, which may be a path below the folder."""
        try:
            return self._caller().call(there, str(self.path / name), deadline_seconds=READ_SECONDS)
        except Unavailable:
            return False

    def fresh(self) -> "AgentFolder":
        """The same for a process that was forked."""
        return self if self.guests is None else replace(self, guests=self.guests.fresh())

    def _caller(self) -> Caller:
        if self.owner is None or self.guests is None:
            return Inline()
        return self.guests.child(self.owner) if self.inside is None else self.guests.inside(self.inside)


def names(folder: str) -> list[str]:
    """At most ``MOST_NAMES`` names in a folder, sorted. Raises OSError."""
    return sorted(name for name in names_in(folder, MOST_NAMES) if name.isascii())


def there(path: str) -> bool:
    """True if the path leads to something."""
    try:
        state_of(path)
    except OSError:
        return False
    return True


def tails(paths: list[str], most_bytes: int) -> list[Tail]:
    """The ends of these files; what is not a regular file, or cannot be read, is left out."""
    found: list[Tail] = []
    for path in paths:
        try:
            descriptor = opened(path, follow=False)
        except (OSError, ValueError):
            continue
        with os.fdopen(descriptor, "rb") as file:
            state = os.fstat(descriptor)
            file.seek(max(0, state.st_size - most_bytes))
            found.append((os.path.basename(path), state.st_mtime_ns, file.read(most_bytes)))
    return found
