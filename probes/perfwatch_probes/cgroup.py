"""Limits and events of a process' control group: CPU quota, memory limit, OOM kills, the freezer, pressure.

How to read it: /proc/PID/cgroup names a path per hierarchy, /proc/self/mountinfo says where each is mounted (version 2
alone, version 1 alone, or both). A limit may sit on any ancestor (systemd slice, Kubernetes pod, SLURM job), so each
limit is the tightest on the way up, and its counters come from the level that has it.
Sources: cgroup-v2.rst, cgroups(7).
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from perfwatch_probes.filesystem import Filesystem
from perfwatch_probes.mounts import in_sight
from perfwatch_probes.pressure import RESOURCES, parse_pressure
from perfwatch_probes.probe import Unavailable
from perfwatch_probes.readings import Cgroup, Pressure

MOUNT_ADVICE = "sudo mount -t cgroup2 none /sys/fs/cgroup (in a container: run it with --cgroupns=private)"
_V1_UNLIMITED_BYTES = 2**62  # version 1 says "no limit" with a page-aligned 2**63


@dataclass(frozen=True)
class Level:
    """A control group of one controller: ``folder`` is where its files are, ``top`` the mount point above it."""

    version: int
    folder: Path
    top: Path

    def upward(self) -> Iterator[Path]:
        """The group itself, then its ancestors up to the mount point."""
        folder = self.folder
        while True:
            yield folder
            if folder == self.top or self.top not in folder.parents:
                return
            folder = folder.parent


class CgroupProbe:
    """Reads the control groups of one process.

    Args:
        filesystem: where /proc and /sys are.
        affinity: sched_getaffinity(2).
    """

    NAME = "cgroup"
    NEEDS = "a mounted cgroup file system (version 1, 2 or hybrid); pressure needs Linux 4.20 with PSI"
    COST = "about 20 small reads per process; 0.4 ms"

    def __init__(
        self, filesystem: Filesystem | None = None, affinity: Callable[[int], set[int]] = os.sched_getaffinity
    ) -> None:
        self._filesystem, self._affinity = filesystem or Filesystem(), affinity

    def look(self, pid: int) -> list[Cgroup]:
        """One reading. Raises Unavailable when the process or the cgroup file systems are not there."""
        filesystem = self._filesystem
        memberships = filesystem.read_text(filesystem.proc / str(pid) / "cgroup")
        levels = find_levels(memberships, filesystem.read_text(filesystem.proc / "self/mountinfo"), filesystem.sys)
        if not levels:
            raise Unavailable(
                "no cgroup file system is in sight here: CPU quota, memory limit and freezer cannot be seen",
                MOUNT_ADVICE,
            )
        return [
            Cgroup(
                path=_own_path(memberships),
                version=next(iter(levels.values())).version,
                cpus_allowed=self._cpus_allowed(pid),
                **self._cpu(levels.get("cpu")),  # type: ignore[arg-type]
                **self._memory(levels.get("memory")),  # type: ignore[arg-type]
                frozen=self._frozen(levels.get("freezer")),
                pressure=self._pressure(levels.get("pressure")),
            )
        ]

    def _cpus_allowed(self, pid: int) -> int | None:
        try:
            return len(self._affinity(pid))
        except OSError:
            return None

    def _cpu(self, level: Level | None) -> dict[str, float | int | None]:
        best: dict[str, float | int | None] = {}
        for folder in level.upward() if level else ():
            quota = parse_quota(*(self._text(folder, name) for name in _QUOTA_FILES[level.version]))  # type: ignore[union-attr]
            if best and (quota is None or quota >= (best["quota_cpus"] or float("inf"))):
                continue
            counters = parse_pairs(self._text(folder, "cpu.stat") or "")
            throttled_us = counters.get("throttled_usec", counters.get("throttled_time", 0) // 1000)
            if "nr_periods" in counters:  # the root group of version 2 has none
                best = {
                    "quota_cpus": quota,
                    "periods": counters["nr_periods"],
                    "throttled_periods": counters["nr_throttled"],
                    "throttled_seconds": throttled_us / 1e6,
                }
        return best

    def _memory(self, level: Level | None) -> dict[str, float | int | None]:
        tightest: tuple[float, Path] | None = None
        for folder in level.upward() if level else ():
            usage, limit = (self._number(folder, name) for name in _MEMORY_FILES[level.version])  # type: ignore[union-attr]
            if usage is None:
                continue
            room = limit - usage if limit is not None and limit < _V1_UNLIMITED_BYTES else float("inf")
            if tightest is None or room < tightest[0]:
                tightest = (room, folder)
        if level is None or tightest is None:
            return {}
        room, folder = tightest
        usage, limit = (self._number(folder, name) for name in _MEMORY_FILES[level.version])
        events = parse_pairs(self._text(folder, "memory.events") or "")
        limited = room != float(
            "inf"
        )  # memory.stat costs the kernel more than the others: it is read where it can matter
        counted = parse_pairs(self._text(folder, "memory.stat") or "") if limited else {}
        kills = parse_pairs(self._text(level.folder, _KILLS_FILE[level.version]) or "").get("oom_kill")
        return {
            "memory_bytes": usage,
            "memory_limit_bytes": limit if limited else None,
            "memory_high_events": events.get("high"),
            "memory_max_events": events.get("max") if level.version == 2 else self._number(folder, "memory.failcnt"),
            "refaulted_pages": refaulted(counted, _REFAULTS[level.version]),
            "oom_kills": kills,  # of this group: those of an ancestor count its siblings too
        }

    def _frozen(self, level: Level | None) -> bool | None:
        if level is None:
            return None
        if level.folder == level.top:
            return False  # the root group has no such file, because it cannot be frozen
        if level.version == 1:
            state = self._text(level.folder, "freezer.state")
            return None if state is None else state.strip() != "THAWED"
        frozen = parse_pairs(self._text(level.folder, "cgroup.events") or "").get("frozen")
        return None if frozen is None else frozen == 1

    def _pressure(self, level: Level | None) -> dict[str, Pressure]:
        found = {}
        for resource in RESOURCES if level else ():
            try:
                found[resource] = parse_pressure(self._text(level.folder, f"{resource}.pressure") or "")  # type: ignore[union-attr]
            except ValueError:
                continue
        return found

    def _text(self, folder: Path, name: str) -> str | None:
        try:
            return self._filesystem.read_text(folder / name)
        except Unavailable:
            return None

    def _number(self, folder: Path, name: str) -> int | None:
        text = (self._text(folder, name) or "").strip()
        return int(text) if text.isdigit() else None


_QUOTA_FILES = {1: ("cpu.cfs_quota_us", "cpu.cfs_period_us"), 2: ("cpu.max",)}
_MEMORY_FILES = {
    1: ("memory.usage_in_bytes", "memory.limit_in_bytes"),
    2: ("memory.current", "memory.max"),
}
# Of the group and all below it. Linux 5.9 counts memory of files and other memory apart.
_REFAULTS = {1: "total_workingset_refault", 2: "workingset_refault"}
_KILLS_FILE = {1: "memory.oom_control", 2: "memory.events"}


def find_levels(memberships: str, mountinfo: str, sys: Path = Path("/sys")) -> dict[str, Level]:
    """Where the files of the controllers cpu, memory, freezer (and pressure) of a process are.

    Args:
        memberships: text of /proc/PID/cgroup.
        mountinfo: text of our own /proc/self/mountinfo, for it is we who read.
        sys: stands for /sys in the mount points.
    """
    mounts: dict[str, tuple[int, str, Path]] = {}
    for line in in_sight(mountinfo):
        fields, _, after = line.partition(" - ")
        kind, _, options = after.partition(" ")
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, mount_point = fields.split()[3:5]
        place = sys / mount_point[5:] if mount_point.startswith("/sys/") else Path(mount_point)
        names = options.split()[-1].split(",") if kind == "cgroup" else [""]
        for name in names:
            mounts.setdefault(name, (1 if kind == "cgroup" else 2, root, place))
    levels: dict[str, Level] = {}
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            if name in mounts:
                version, root, place = mounts[name]
                level = Level(version, _below(place, root, path), place)
                wanted = ("pressure", "freezer", "cpu", "memory") if name == "" else (name,)
                for controller in wanted:
                    if name or controller not in levels or levels[controller].version == 2:
                        levels[controller] = level
    # Where both versions are mounted, a controller that version 1 has is not in version 2.
    return {name: levels[name] for name in ("cpu", "memory", "freezer", "pressure") if name in levels}


def _below(place: Path, root: str, path: str) -> Path:
    """The folder of ``path`` under a mount that shows only what is below ``root`` of the hierarchy."""
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    parts = [part for part in path.split("/") if part not in ("", "..", ".")]
    folder = place.joinpath(*parts)
    return folder if folder.is_dir() else place  # a container's view: the path is the host's, the mount is its own


def parse_quota(first: str | None, second: str | None = None) -> float | None:
    """CPUs that a quota allows: ``cpu.max`` of version 2, or quota and period of version 1; None without one."""
    words = f"{first or ''} {second or ''}".split()
    if len(words) < 2 or words[0] in ("max", "-1") or not int(words[1]):
        return None
    return int(words[0]) / int(words[1])


def parse_pairs(text: str) -> dict[str, int]:
    """``name number`` lines, as in cpu.stat and memory.events."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def refaulted(counted: dict[str, int], name: str) -> int | None:
    """Pages that came back, by memory.stat; None where the kernel does not say."""
    known = [counted[name + kind] for kind in ("", "_anon", "_file") if name + kind in counted]
    return sum(known) if known else None


def _own_path(memberships: str) -> str:
    """The most telling path: the longest of the hierarchies'."""
    return max((line.split(":", 2)[2] for line in memberships.splitlines()), key=len, default="/")
