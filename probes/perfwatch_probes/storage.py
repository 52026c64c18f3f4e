"""Block devices: how much was read and written. Format: kernel, admin-guide/iostats.rst."""

import re
from collections.abc import Iterator

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Disk

SECTOR_BYTES = 512  # of /proc/diskstats, whatever the device's own are
_VIRTUAL = re.compile(r"(loop|ram|zram|fd|sr)\d+$")


class StorageProbe:
    """Reads /proc/diskstats.

    Args:
        filesystem: where /proc and /sys are.
    """

    NAME = "storage"
    NEEDS = "nothing"
    COST = "0.2 ms"

    def __init__(self, filesystem: Filesystem | None = None) -> None:
        self._filesystem = filesystem or Filesystem()

    def look(self) -> list[Disk]:
        """One reading per disk. Raises Unavailable without any."""
        filesystem = self._filesystem
        return list(parse_diskstats(filesystem.read_text(filesystem.proc / "diskstats"), self._whole_disks()))

    def _whole_disks(self) -> frozenset[str] | None:
        try:
            return frozenset(self._filesystem.listdir(self._filesystem.sys / "block"))
        except Unavailable:
            return None


def parse_diskstats(text: str, whole_disks: frozenset[str] | None = None) -> Iterator[Disk]:
    """Disks that were ever used; partitions (not in ``whole_disks``) and virtual devices are left out."""
    for line in text.splitlines():
        words = line.split()
        if len(words) < 14 or _VIRTUAL.match(words[2]) or (whole_disks is not None and words[2] not in whole_disks):
            continue
        reads, _, sectors_read, _, writes, _, sectors_written, _, in_flight, busy_ms = map(int, words[3:13])
        if reads or writes or in_flight:
            yield Disk(
                device=words[2],
                reads_completed=reads,
                writes_completed=writes,
                read_bytes=sectors_read * SECTOR_BYTES,
                written_bytes=sectors_written * SECTOR_BYTES,
                busy_seconds=busy_ms / 1000,
                in_flight=in_flight,
            )
