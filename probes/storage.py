"""Block devices and network mounts: how much is asked of them, and whether they answer.

Requests in flight with nothing completed are a device or a server that does not answer; a page cache full of dirty
pages and a busy disk are a slow one. Formats: kernel, admin-guide/iostats.rst; nfs-utils' mountstats.
"""

import re
from collections.abc import Iterator

from perfwatch.probes.filesystem import Filesystem
from perfwatch.probes.probe import Unavailable
from perfwatch.probes.readings import Disk, MountActivity

SECTOR_BYTES = 512  # of /proc/diskstats, whatever the device's own are
_VIRTUAL = re.compile(r"(loop|ram|zram|fd|sr)\d+$")
_MOUNT = re.compile(r"device (\S+) mounted on (\S+) with fstype (\S+)")
_FIRST_COUNTER = {"tcp": 7, "rdma": 7, "udp": 4}  # index of "sends" in an xprt line; "receives" follows


class StorageProbe:
    """Reads /proc/diskstats and the network mounts of a process.

    Args:
        filesystem: where /proc and /sys are.
    """

    NAME = "storage"
    NEEDS = "nothing; the mounts of another user's process need root"
    COST = "0.2 ms"

    def __init__(self, filesystem: Filesystem | None = None) -> None:
        self._filesystem = filesystem or Filesystem()

    def look(self, pid: int | None = None) -> list[Disk | MountActivity]:
        """One reading per disk, and with ``pid`` one per NFS mount that it sees. Raises Unavailable without any."""
        filesystem = self._filesystem
        disks = list(parse_diskstats(filesystem.read_text(filesystem.proc / "diskstats"), self._whole_disks()))
        if pid is None:
            return [*disks]
        try:
            text = filesystem.read_text(filesystem.proc / str(pid) / "mountstats")
        except Unavailable:
            return [*disks]
        return [*disks, *parse_mountstats(text)]

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


def parse_mountstats(text: str) -> Iterator[MountActivity]:
    """NFS mounts. ``requests`` minus ``completed`` is what the server owes; mounts of one server share a transport."""
    for section in re.split(r"^(?=device )", text, flags=re.M):
        heading = _MOUNT.match(section)
        if heading is None or "statvers=" not in section:
            continue
        sends = receives = read_bytes = written_bytes = 0
        for line in section.splitlines():
            words = line.split()
            if words[:1] == ["xprt:"] and len(words) > 1:
                at = _FIRST_COUNTER.get(words[1], 7)
                sends += int(words[at])
                receives += int(words[at + 1])
            elif words[:1] == ["bytes:"]:
                read_bytes, written_bytes = int(words[5]), int(words[6])
        yield MountActivity(
            mount=heading[2],
            filesystem=heading[3],
            requests=sends,
            completed=receives,
            read_bytes=read_bytes,
            written_bytes=written_bytes,
        )
