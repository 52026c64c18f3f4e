"""Disks and network mounts."""

from pathlib import Path

from perfwatch.probes.filesystem import Filesystem
from perfwatch.probes.readings import Disk, MountActivity
from perfwatch.probes.storage import StorageProbe, parse_diskstats, parse_mountstats

DISKSTATS = """\
   7       0 loop0 10 0 20 1 0 0 0 0 0 1 1
 259       0 nvme0n1 500 10 8000 300 40 5 1600 900 3 2500 1200 0 0 0 0 7 6
 259       1 nvme0n1p1 499 10 7000 300 40 5 1600 900 3 2500 1200 0 0 0 0 0 0
 259       2 nvme1n1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
   8      16 sdb 0 0 0 0 0 0 0 0 12 9000 108000 0 0 0 0
"""
MOUNTSTATS = """\
device rootfs mounted on / with fstype rootfs
device filer:/vol/data mounted on /data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.1,rsize=1048576,hard,proto=tcp,timeo=600
\tage:\t86400
\tbytes:\t100 200 0 0 5000 6000 2 3
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 0 0 2 0 24 1000 990 0 12345 0 16 20 30
\txprt:\ttcp 0 0 2 0 24 10 10 0 12345 0 16 20 30
\tper-op statistics
\t        READ: 900 901 1 150000 5000000 20 4000 4100 0
device filer:/old mounted on /old with fstype nfs statvers=1.1
\tbytes:\t1 2 0 0 3 4 0 0
\txprt:\tudp 700 1 50 49 0 60 0 2 0 0
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


def test_an_nfs_mount_shows_what_the_server_owes() -> None:
    """Requests minus completed is in flight, summed over the connections of the mount (nconnect), TCP or UDP."""
    data, old = parse_mountstats(MOUNTSTATS)

    assert data == MountActivity(
        mount="/data", filesystem="nfs4", requests=1010, completed=1000, read_bytes=5000, written_bytes=6000
    )
    assert (old.requests, old.completed) == (50, 49)


def test_the_probe_reads_the_mounts_of_the_process(tmp_path: Path) -> None:
    """A container has mounts of its own."""
    (tmp_path / "diskstats").write_text(DISKSTATS)
    (tmp_path / "41").mkdir()
    (tmp_path / "41/mountstats").write_text(MOUNTSTATS)

    found = StorageProbe(Filesystem(proc=tmp_path, sys=tmp_path)).look(41)

    assert [one.mount for one in found if isinstance(one, MountActivity)] == ["/data", "/old"]


def test_the_real_machine_can_be_read() -> None:
    """The formats of this kernel parse."""
    assert all(disk.read_bytes >= 0 for disk in StorageProbe().look() if isinstance(disk, Disk))
