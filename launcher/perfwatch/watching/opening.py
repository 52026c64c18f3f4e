"""Open the recording of a session, or return why nothing is recorded. The diagnosis continues without a recording."""

import os
from contextlib import suppress
from pathlib import Path

from perfwatch.errors import SessionUnwritable
from perfwatch.recording.kept import Limits, keep_within
from perfwatch.recording.recording import BUDGET_BYTES, Recorder
from perfwatch.recording.session import Session, choose_directory
from perfwatch.settings import session_limits
from perfwatch_probes.deadline import KillableChild
from perfwatch_probes.probe import Unavailable

TIDY_SECONDS = 20.0


def open_recorder(
    explicit: Path | None, session: Session, child: KillableChild, budget_bytes: int = BUDGET_BYTES
) -> tuple[Recorder | None, Path | None, str]:
    """What records, where, and if nothing does, why.

    Args:
        explicit: where the user wants the session; the first local disk by default.
        session: what the recording says of itself.
        child: where looks at disks are made, for they may block.
        budget_bytes: what the recording may take.
    """
    try:
        folder = choose_directory(explicit, os.environ, child, created=session.created, pid=os.getpid())
        return Recorder(folder, session, budget_bytes), folder, ""
    except SessionUnwritable as error:
        return None, None, f"{error.message}; {error.advice}"
    except OSError as error:  # no process for the writer: ulimit -u, pids.max
        return None, None, f"the writing process cannot be started: {error.strerror}"


def keep_within_limits(session: Path, child: KillableChild) -> None:
    """Remove recordings that are too old or too many from the folder in which a session lies; at most once an hour.

    session: of the default folders: what the user keeps elsewhere stays.
    """
    limits = Limits(**session_limits(os.environ))
    with suppress(Unavailable, OSError):
        child.call(keep_within, str(session.parent), limits, deadline_seconds=TIDY_SECONDS)
