"""How regularly a log was written, from its last lines: what is alike in them once the numbers are left out.

Of the text nothing is kept but how many lines the file has that are like its last ones.
"""

import os
import re
from collections import Counter

from perfwatch_probes import guest

TAIL_BYTES = 16384
LAST_LINES = 3  # an epoch's summary may follow the lines of its steps
MOST_WORDS = 24  # of a line, beyond which it is no line of a log
_NUMBER = re.compile(rb"[-+]?\d[\d.,:]*(?:[eE][-+]?\d+)?")
_WORD = re.compile(rb"[A-Za-z]+")
_END = re.compile(rb"[\r\n]+")  # a progress bar writes its next state over the last one

Shape = tuple[bytes, ...]


def alike_lines(path: str, identity: tuple[int, int]) -> int | None:
    """About how many lines of a file are like its last ones, numbers apart; None where these have no numbers, or it is no text.

    Runs in a guest. The file's time of last access stays as it is where the guest owns it.

    Args:
        path: as the process sees it.
        identity: device and inode of the file that the process has open.

    Raises OSError; ValueError where another file has that path by now.
    """
    try:
        descriptor = guest.opened(path, flags=os.O_RDONLY | os.O_NOATIME)
    except PermissionError:  # O_NOATIME is for the owner
        descriptor = guest.opened(path)
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != identity:
            raise ValueError("another file has that path")
        end = os.pread(descriptor, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
    finally:
        os.close(descriptor)
    count = count_alike(end)
    return None if count is None or not end else round(count * status.st_size / len(end))


def count_alike(end: bytes) -> int | None:
    """How many of these lines are like one of the last three, whichever makes the most."""
    if b"\0" in end:
        return None
    shapes = [shape_of(line) for line in _END.split(end) if line.strip()]
    alike = Counter(shape for shape in shapes if shape is not None)
    return max((alike[shape] for shape in shapes[-LAST_LINES:] if shape is not None), default=None)


def shape_of(line: bytes) -> Shape | None:
    """The words of a line without its numbers; None for one that has no numbers, or too many words."""
    words, numbers = _NUMBER.subn(b" ", line)
    found = tuple(_WORD.findall(words))
    return found if numbers and len(found) <= MOST_WORDS else None
