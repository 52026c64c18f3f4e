"""Lines of a session's files, within what a whole session may have: everything that is read counts, what is passed over included.

A session may come from anywhere. A file with a hole has any length and takes no room on a disk, and one line of a few
megabytes may hold a million objects.
"""

import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from perfwatch.errors import SessionUnreadable
from perfwatch.recording.compression import plain
from perfwatch_probes import bounds

LONGEST_LINE_BYTES = 4 * 2**20  # a stack of a thousand frames is 0.1 MB; more is not ours


class Room:
    """What is left of the bytes, lines, values and frames that a session may have.

    Args:
        path: the session, for the message.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bytes, self._lines, self._values = bounds.SESSION_BYTES, bounds.MOST_RECORDS, bounds.MOST_VALUES
        self._frames = bounds.MOST_NAMED_FRAMES

    def take(self, size: int) -> None:
        """Count bytes that are read, or will be. Raises SessionUnreadable where there are more than in any session."""
        self._bytes -= size
        if self._bytes < 0:
            self._refuse(f"{bounds.SESSION_BYTES >> 20} MiB")

    def take_line(self, line: bytes) -> None:
        """Count a line that will be parsed. Raises as ``take`` does."""
        self._lines -= 1
        self._values -= bounds.most_values(line)
        if self._lines < 0:
            self._refuse(f"{bounds.MOST_RECORDS} lines")
        if self._values < 0:
            self._refuse(f"{bounds.MOST_VALUES} values")

    def take_frames(self, count: int) -> None:
        """Count the frames of a stack that a line names by its number. Raises as ``take`` does."""
        self._frames -= count
        if self._frames < 0:
            self._refuse(f"{bounds.MOST_NAMED_FRAMES} frames")

    def _refuse(self, most: str) -> None:
        raise SessionUnreadable(
            f"{self._path} is damaged: it holds more than {most}, which no session has",
            "perfwatch bundle SESSION, on the machine where it was recorded, makes a copy to read elsewhere",
        )


def session_lines(path: Path, room: Room, longest: int = LONGEST_LINE_BYTES) -> Iterator[bytes]:
    """Lines of a regular file, compressed or not; an over-long one comes cut, and so as damaged.

    Behind the lines of a compressed file that is damaged comes an empty one, which is damaged too.

    Raises:
        OSError: a FIFO, a link, or a file that is not there.
        SessionUnreadable: there is no room left.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(22, "not a regular file", str(path))
        content = plain(file, room.take)
        try:
            while line := content.readline(longest):
                room.take(len(line))
                room.take_line(line)
                yield line
                while len(line) >= longest and not line.endswith(b"\n"):
                    line = content.readline(longest)
                    room.take(len(line))
        except zlib.error:
            yield b""
