"""The recorded cases of ``tests/cases``: where they are and how a test loads them."""

from functools import lru_cache
from pathlib import Path

from perfwatch.gauntlet import recorded
from perfwatch.recording.recording import Recording

RECORDINGS = Path(__file__).parent / "cases"


@lru_cache(maxsize=8)
def load_case(case: Path) -> Recording:
    """The recording of a case, which is named by its path below RECORDINGS without the suffix."""
    return recorded.load_case(case)


def session_of(case: Path, folder: Path) -> Path:
    """Unpack a case into a new folder: a session that the commands can read."""
    return recorded.unpack(case, folder)
