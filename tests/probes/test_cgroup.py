"""Control groups: version 1, version 2 and both at once, with limits on any level."""

import os
from pathlib import Path

import pytest

from perfwatch_probes.cgroup import CgroupProbe, find_levels, parse_quota
from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Cgroup, Pressure

V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "37 31 0:34 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"
)
PRESSURE = "some avg10=1.00 avg60=0.50 avg300=0.10 total=4000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n"


def machine(tmp_path: Path, memberships: str, mountinfo: str, files: dict[str, str]) -> Filesystem:
    """A machine whose process 41 is in these groups; ``files`` are under /sys/fs/cgroup."""
    texts = {"proc/41/cgroup": memberships, "proc/self/mountinfo": mountinfo}
    texts |= {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Filesystem(tmp_path / "proc", tmp_path / "sys")


def look(filesystem: Filesystem) -> Cgroup:
    """The one reading."""
    [reading] = CgroupProbe(filesystem, lambda _: {0, 1, 5}).look(41)
    return reading


def test_version_2_with_the_limit_on_an_ancestor(tmp_path: Path) -> None:
    """The tightest quota and memory limit on the way up count, with the counters of their level; kills are our own."""
    filesystem = machine(
        tmp_path,
        "0::/slurm/job7/step0\n",
        V2_MOUNT,
        {
            "slurm/job7/cpu.max": "150000 100000\n",
            "slurm/job7/cpu.stat": "usage_usec 9\nnr_periods 200\nnr_throttled 150\nthrottled_usec 2500000\n",
            "slurm/job7/memory.current": "900\n",
            "slurm/job7/memory.max": "1000\n",
            "slurm/job7/memory.events": "low 0\nhigh 3\nmax 8\noom 1\noom_kill 2\n",
            "slurm/job7/memory.stat": "file 800\nworkingset_refault_anon 2\nworkingset_refault_file 40\n",
            "slurm/job7/step0/cpu.max": "max 100000\n",
            "slurm/job7/step0/cpu.stat": "usage_usec 9\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
            "slurm/job7/step0/memory.current": "700\n",
            "slurm/job7/step0/memory.max": "max\n",
            "slurm/job7/step0/memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\n",
            "slurm/job7/step0/cgroup.events": "populated 1\nfrozen 1\n",
            "slurm/job7/step0/memory.pressure": PRESSURE,
        },
    )

    assert look(filesystem) == Cgroup(
        path="/slurm/job7/step0",
        version=2,
        cpus_allowed=3,
        quota_cpus=1.5,
        periods=200,
        throttled_periods=150,
        throttled_seconds=2.5,
        memory_bytes=900,
        memory_limit_bytes=1000,
        memory_high_events=3,
        memory_max_events=8,
        refaulted_pages=42,
        oom_kills=1,
        frozen=True,
        pressure={"memory": Pressure(some_microseconds=4000, full_microseconds=1000)},
    )


def test_version_1_has_its_own_units_and_names(tmp_path: Path) -> None:
    """Quota and period are two files, throttled time is in nanoseconds, "no limit" is a huge number."""
    filesystem = machine(
        tmp_path,
        "9:freezer:/job\n4:memory:/job\n1:cpu,cpuacct:/job\n",
        V1_MOUNTS,
        {
            "cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            "cpu,cpuacct/job/cpu.stat": "nr_periods 10\nnr_throttled 9\nthrottled_time 3000000000\n",
            "memory/job/memory.usage_in_bytes": "700\n",
            "memory/job/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/job/memory.failcnt": "5\n",
            "memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
            "freezer/job/freezer.state": "THAWED\n",
        },
    )

    assert look(filesystem) == Cgroup(
        path="/job",
        version=1,
        cpus_allowed=3,
        quota_cpus=0.5,
        periods=10,
        throttled_periods=9,
        throttled_seconds=3.0,
        memory_bytes=700,
        memory_max_events=5,
        oom_kills=4,
        frozen=False,
    )


def test_in_a_hybrid_a_controller_of_version_1_is_read_there() -> None:
    """systemd's hybrid mounts version 2 without controllers: it has pressure only."""
    mountinfo = V1_MOUNTS + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"

    levels = find_levels("4:memory:/\n1:cpu,cpuacct:/\n0::/\n", mountinfo)

    assert {name: level.version for name, level in levels.items()} == {
        "cpu": 1,
        "memory": 1,
        "freezer": 2,
        "pressure": 2,
    }


def test_a_container_sees_its_own_part_of_the_hierarchy(tmp_path: Path) -> None:
    """The mount starts at the container's group; the path in /proc is the host's."""
    mount = V2_MOUNT.replace("0:26 / /sys", "0:26 /docker/abc /sys")
    filesystem = machine(tmp_path, "0::/docker/abc/train\n", mount, {"train/memory.current": "7\n"})

    assert look(filesystem).memory_bytes == 7


def test_a_path_that_is_not_mounted_here_falls_back_to_the_mount(tmp_path: Path) -> None:
    """A container with a private group namespace: /.. leads out, and the mount is all there is."""
    filesystem = machine(tmp_path, "0::/../../other\n", V2_MOUNT, {"memory.current": "8\n"})

    assert look(filesystem).memory_bytes == 8


def test_what_is_not_mounted_is_not_known(tmp_path: Path) -> None:
    """None, never zero."""
    filesystem = machine(tmp_path, "4:memory:/job\n", V1_MOUNTS, {"memory/job/memory.usage_in_bytes": "1\n"})

    reading = look(filesystem)

    assert (reading.quota_cpus, reading.throttled_seconds, reading.oom_kills, reading.frozen) == (None,) * 4


@pytest.mark.parametrize(
    "mounts",
    ["22 27 0:21 / /proc rw - proc proc rw\n", V2_MOUNT + "31 30 0:40 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"],
    ids=["not mounted", "covered"],
)
def test_without_any_hierarchy_the_probe_is_unavailable(tmp_path: Path, mounts: str) -> None:
    """It says how to make the groups visible."""
    filesystem = machine(tmp_path, "0::/\n", mounts, {})

    with pytest.raises(Unavailable) as caught:
        CgroupProbe(filesystem).look(41)
    assert "/sys/fs/cgroup" in caught.value.advice


@pytest.mark.parametrize(
    ("texts", "cpus"),
    [(("max 100000\n",), None), (("200000 100000\n",), 2.0), (("-1\n", "100000\n"), None), ((None, None), None)],
)
def test_a_quota_is_cpus_or_nothing(texts: tuple[str | None, ...], cpus: float | None) -> None:
    """Version 2 writes ``max``, version 1 writes -1."""
    assert parse_quota(*texts) == cpus


def test_our_own_groups_can_be_read() -> None:
    """The real files of this machine parse."""
    [reading] = CgroupProbe().look(os.getpid())

    assert reading.cpus_allowed == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("limit", "stat", "pages"),
    [
        ("1000", "workingset_refault_file 1\ntotal_workingset_refault_anon 2\ntotal_workingset_refault_file 40\n", 42),
        ("1000", "total_workingset_refault 7\n", 7),  # before Linux 5.9
        ("1000", "total_cache 9\n", None),
        ("9223372036854771712", "total_workingset_refault 7\n", None),
    ],
)
def test_pages_that_came_back_are_those_of_the_group_and_all_below_it(
    tmp_path: Path, limit: str, stat: str, pages: int | None
) -> None:
    """A kernel that does not count them says nothing, not zero; nor is a group asked that has no limit."""
    files = {
        "memory/job/memory.usage_in_bytes": "700\n",
        "memory/job/memory.limit_in_bytes": f"{limit}\n",
        "memory/job/memory.stat": stat,
    }

    assert look(machine(tmp_path, "4:memory:/job\n", V1_MOUNTS, files)).refaulted_pages == pages
