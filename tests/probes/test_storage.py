"""Disks."""

from perfwatch_probes.readings import Disk
from perfwatch_probes.storage import StorageProbe, parse_diskstats

DISKSTATS = """\
   7       0 loop0 10 0 20 1 0 0 0 0 0 1 1
 259       0 nvme0n1 500 10 8000 300 40 5 1600 900 3 2500 1200 0 0 0 0 7 6
 259       1 nvme0n1p1 499 10 7000 300 40 5 1600 900 3 2500 1200 0 0 0 0 0 0
 259       2 nvme1n1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
   8      16 sdb 0 0 0 0 0 0 0 0 12 9000 108000 0 0 0 0
"""


def test_whole_used_disks_are_read_in_bytes_and_seconds() -> None:
    """Sectors are 512 bytes; partitions, loop devices and disks that were never used are left out."""
    nvme, stuck = parse_diskstats(DISKSTATS, frozenset({"nvme0n1", "nvme1n1", "sdb", "loop0"}))

    assert nvme == Disk(
        device="nvme0n1",
        reads_completed=500,
        writes_completed=40,
        read_bytes=8000 * 512,
        written_bytes=1600 * 512,
        busy_seconds=2.5,
        in_flight=3,
    )
    assert (stuck.device, stuck.in_flight, stuck.reads_completed) == ("sdb", 12, 0)


def test_the_real_machine_can_be_read() -> None:
    """The formats of this kernel parse."""
    found = StorageProbe().look()

    assert found
    assert all(disk.read_bytes >= 0 for disk in found if isinstance(disk, Disk))
