"""Mounts by id, and the mapped file that a page fault waits for."""

import pytest

from perfwatch_probes.mounts import in_sight, parse_mountinfo, parse_remote_mapping

MOUNTS = """24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
91 24 0:52 / /mnt/my\\040data rw,relatime shared:50 master:3 - nfs4 filer:/export/my\\040data rw,vers=4.2
92 24 0:53 / /mnt/broken rw
"""
MAPS = """561682455000-561682456000 r--p 00000000 fe:00 26723                      /opt/python/bin/python3.11
7f0000000000-7f0000100000 r--s 00000000 00:34 77                           /mnt/my data/train.bin
7f0000200000-7f0000300000 r--s 00100000 00:34 77                           /mnt/my data/train.bin
7f0000400000-7f0000500000 rw-p 00000000 00:00 0
7ffd9a5f0000-7ffd9a611000 rw-p 00000000 00:00 0                            [stack]
"""


def test_mounts_by_id() -> None:
    """Mount point, file system and source, with spaces restored; a line cut short is left out."""
    mounts = parse_mountinfo(MOUNTS)

    assert set(mounts) == {"24", "91"}
    assert (mounts["91"].point, mounts["91"].filesystem) == ("/mnt/my data", "nfs4")
    assert (mounts["91"].source, mounts["91"].device) == ("filer:/export/my data", "0:52")


SYS = """24 31 0:22 / /sys rw shared:7 - sysfs sysfs rw
30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
31 1 254:0 / / rw shared:1 - ext4 /dev/vda rw
"""


@pytest.mark.parametrize(
    ("later", "seen"),
    [
        ("", ["24", "30", "31"]),  # the root may come last: it was mounted after what was moved into it
        ("40 30 0:40 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", ["24", "31", "40"]),
        ("40 24 0:40 / /sys rw - tmpfs tmpfs rw\n", ["31", "40"]),
        ("40 24 0:40 / /sys rw - tmpfs tmpfs rw\n41 40 0:26 / /sys/fs/cgroup rw - cgroup2 c rw\n", ["31", "40", "41"]),
        (
            "40 30 0:40 / /sys/fs/cgroup rw - tmpfs t rw\n41 40 0:26 / /sys/fs/cgroup rw - cgroup2 c rw\n",
            ["24", "31", "41"],
        ),
    ],
)
def test_a_mount_that_another_covers_is_out_of_sight(later: str, seen: list[str]) -> None:
    """At its own place or further up; what was mounted on top of that is in sight."""
    assert [line.split()[0] for line in in_sight(SYS + later)] == seen


def test_page_fault_waits_for_the_only_remote_file() -> None:
    """A file mapped from a network mount is named, and not the libraries of the local disk."""
    assert parse_remote_mapping(MAPS, parse_mountinfo(MOUNTS)) == "/mnt/my data/train.bin"


def test_two_remote_files_name_nobody() -> None:
    """With two candidates, none is accused; with none, none."""
    other = MAPS + "7f0000600000-7f0000700000 r--s 00000000 00:34 78                           /mnt/my data/other.bin\n"

    assert parse_remote_mapping(other, parse_mountinfo(MOUNTS)) is None
    assert parse_remote_mapping("", parse_mountinfo(MOUNTS)) is None
    assert parse_remote_mapping(MAPS, {}) is None
