"""Dumps of a run that failed are kept beside its recording; nothing else is."""

import os
from pathlib import Path

from perfwatch.run.dumps import MOST_DUMP_BYTES, keep_dumps


def test_the_dumps_of_the_ranks_are_kept_as_they_are(tmp_path: Path) -> None:
    """For torch's own analyzer; links, pipes and giants stay where they are."""
    place, session = tmp_path / "place", tmp_path / "session"
    place.mkdir()
    session.mkdir()
    (place / "fr_rank_0").write_bytes(b"dump")
    (place / "fr_rank_1").symlink_to("/etc/hostname")
    os.mkfifo(place / "fr_rank_2")
    with (place / "fr_rank_3").open("wb") as giant:
        giant.truncate(MOST_DUMP_BYTES + 1)
    (place / "steps-7").write_bytes(b"other")

    kept = keep_dumps(place, session)

    assert [path.relative_to(session).as_posix() for path in kept] == ["flight_recorder/fr_rank_0"]
    assert kept[0].read_bytes() == b"dump"
    assert keep_dumps(tmp_path / "nowhere", session) == []
