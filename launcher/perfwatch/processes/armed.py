"""What ``run`` prepared for later captures, stored in the job's place, where every watcher can read it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from perfwatch_probes.agent_folder import AgentFolder
from perfwatch_probes.probe import Unavailable

PREFIX = "armed-"
LONGEST_BYTES = 64 * 1024
MOST_KINDS = 16


def write_armed(place: Path, kind: str, facts: Mapping[str, str]) -> None:
    """Say that this job was started with a profiler at hand.

    Args:
        place: the job's place (``perfwatch.processes.place``), private and in memory.
        kind: a capture's name.
        facts: what the capture needs to reach it: a socket, a session's name. No secrets.

    Raises OSError when the place takes no file.
    """
    fresh = place / f".{PREFIX}{kind}-{os.getpid()}"
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(dict(facts), file)
    fresh.rename(place / f"{PREFIX}{kind}")


def read_armed(place: AgentFolder | None) -> dict[str, dict[str, str]]:
    """By kind, what was prepared; what cannot be read counts as not prepared. Of another user's job it is that user's word."""
    found: dict[str, dict[str, str]] = {}
    try:
        names = [name for name in place.names() if name.startswith(PREFIX)] if place is not None else []
    except (OSError, Unavailable):
        return found
    files = place.tails(names[:MOST_KINDS], LONGEST_BYTES) if place is not None else {}
    for name, (_, content) in files.items():
        try:
            facts = json.loads(content)
        except (ValueError, RecursionError):
            continue
        if isinstance(facts, dict):
            found[name.removeprefix(PREFIX)] = {str(key): str(value) for key, value in facts.items()}
    return found
