"""Compressed files of a session. A segment that is complete is gzip (RFC 1952), under the name that it had as lines.

``zgrep`` and ``zcat -f`` read a session whether its segments are compressed or not, and so does ``plain``. A compressed segment
replaces its lines in one step, so a reader never finds a segment twice, or half of one.
"""

import io
import os
import zlib
from collections.abc import Callable, Iterable
from typing import IO

GZIP = b"\x1f\x8b"  # how gzip begins, and no line of JSON
LEVEL = 1  # 6 ms of CPU a MiB for a tenth of the size; level 6 takes 23 ms for a twelfth
_WINDOW = 16 + zlib.MAX_WBITS  # of zlib's functions: with the header and checksum of gzip
_PACKED_BYTES = 16 * 2**10  # read at once; a bomb makes a thousand times as much of it
_PLAIN_BYTES = 256 * 2**10


def compress(lines: Iterable[bytes], descriptor: int) -> int:
    """Write lines to a new file, the same bytes for the same lines; returns their size before."""
    packer = zlib.compressobj(LEVEL, wbits=_WINDOW)
    size = 0
    with os.fdopen(descriptor, "wb", closefd=False) as output:
        for line in lines:
            size += len(line)
            output.write(packer.compress(line))
        output.write(packer.flush())
    return size


def is_compressed(file: IO[bytes]) -> bool:
    """True if a file that is read from its beginning is compressed. Nothing of it counts as read."""
    beginning = file.read(len(GZIP))
    file.seek(0)
    return beginning == GZIP


def plain(file: io.BufferedReader, take: Callable[[int], None] = lambda size: None) -> io.BufferedReader:
    """The lines of a file, compressed or not. Reading them raises zlib.error where it is damaged or cut short.

    Args:
        file: at its beginning.
        take: called with the size of each part of a compressed file that is read; raises where there is no more room.
    """
    return io.BufferedReader(_Expanded(file, take), _PLAIN_BYTES) if is_compressed(file) else file


def plain_size(file: io.BufferedReader) -> int:
    """The size of the lines of a file of our own, by the last field of gzip. Nothing of it counts as read."""
    size = os.fstat(file.fileno()).st_size
    if is_compressed(file):
        file.seek(max(0, size - 4))
        size = int.from_bytes(file.read(4), "little")
    file.seek(0)
    return size


class _Expanded(io.RawIOBase):
    """The content of one gzip member. Unlike in ``gzip``, no Python code runs for each byte or member of a hostile file."""

    def __init__(self, file: io.BufferedReader, take: Callable[[int], None]) -> None:
        self._file, self._take = file, take
        self._unpacker = zlib.decompressobj(wbits=_WINDOW)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # BufferedReader calls it with nothing else
        """Fill a part of the buffer; 0 at the end."""
        while not self._unpacker.eof:
            packed = self._unpacker.unconsumed_tail
            if not packed:
                packed = self._file.read(_PACKED_BYTES)
                self._take(len(packed))
            data = self._unpacker.decompress(packed, len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
            if not packed:
                raise zlib.error("it is cut short")
        if self._unpacker.unused_data or self._file.read(1):
            raise zlib.error("something follows its end")
        return 0
