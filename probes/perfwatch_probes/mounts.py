"""Mounts of a process, and which mapped file a page fault may be waiting for. Source: /proc/PID/{mountinfo,maps}.

Only the kernel's lists are read: no path is touched.
"""

import re
from dataclasses import dataclass

# Types whose answers come from another machine or another process: a fault on them may wait for ever.
REMOTE = re.compile(
    r"nfs4?|cifs|smb3|ceph|lustre|beegfs|gpfs|9p|virtiofs|afs|wekafs|panfs|orangefs|fuse(\..*)?|fuseblk"
)


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo."""

    point: str
    filesystem: str
    source: str
    device: str  # major:minor, decimal


def parse_mountinfo(text: str) -> dict[str, Mount]:
    """Mounts by the id that fdinfo gives. Octal escapes (a space is \\040) are undone."""
    mounts = {}
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, names = left.split(), right.split()
        if separator and len(fields) >= 5 and len(names) >= 2:
            mounts[fields[0]] = Mount(_unescape(fields[4]), names[0], _unescape(names[1]), fields[2])
    return mounts


def in_sight(text: str) -> list[str]:
    """The lines of mountinfo whose mounts no later one covers, at their own place or further up."""
    lines = {fields[0]: (fields[1], fields[4], line) for line in text.splitlines() if len(fields := line.split()) >= 5}
    covering = {
        one: parent
        for one, (parent, point, _) in lines.items()
        if parent != one and parent in lines and lines[parent][1] == point
    }
    covered = set(covering.values())

    def hidden(one: str) -> bool:
        if one in covered:
            return True
        while one in covering:
            one = covering[one]
        parent = lines[one][0]
        return parent != one and parent in lines and hidden(parent)

    return [line for one, (_, _, line) in lines.items() if not hidden(one)]


def parse_remote_mapping(maps: str, mounts: dict[str, Mount]) -> str | None:
    """The one file that is mapped from a remote mount; None where there is none, or more than one.

    A page fault does not say its address to an outsider, so the file is named only where there is no other candidate.
    """
    remote = {mount.device for mount in mounts.values() if REMOTE.fullmatch(mount.filesystem)}
    files = set()
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/"):
            major, minor = (int(part, 16) for part in fields[3].split(":"))
            if f"{major}:{minor}" in remote:
                files.add(_unescape(fields[5]))
    return files.pop() if len(files) == 1 else None


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
