"""One user may read recordings that stay the daemon's own: ``perfwatch daemon --readable-by``.

The user gets a POSIX access control list entry on each folder and file, and nothing else changes: no file is ever given
away, so there is nothing that root writes and a user could replace. Group permissions would not do, because the users of a
cluster often share one group. Source: acl(5); the layout of the attribute is in linux/posix_acl_xattr.h.
"""

import errno
import os
import stat
import struct
from contextlib import suppress

ATTRIBUTE = "system.posix_acl_access"
_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")  # tag, permissions, uid
_NO_ID = 2**32 - 1
_OWNER, _USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20  # in this order in the attribute
_READ, _WRITE, _EXECUTE = 4, 2, 1
_NEVER_WAIT = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def share(home: str, uid: int) -> None:
    """Let a user read a folder of ours and all that is below it, but for hidden files, locks among them.

    Raises:
        OSError: the file system has no access control lists, or the folder is not there.
    """
    for _, folders, names, place in os.fwalk(home, follow_symlinks=False):
        folders[:] = [name for name in folders if not name.startswith(".")]
        _grant(place, uid)
        for name in names:
            if not name.startswith("."):
                with suppress(FileNotFoundError):  # replaced or removed meanwhile
                    _share_file(name, place, uid)


def _share_file(name: str, place: int, uid: int) -> None:
    if not _ours(os.stat(name, dir_fd=place, follow_symlinks=False)):
        return
    descriptor = os.open(name, _NEVER_WAIT, dir_fd=place)
    try:
        _grant(descriptor, uid)
    finally:
        os.close(descriptor)


def _ours(state: os.stat_result) -> bool:
    """True for what this process made here: a second hard link may be a file from elsewhere."""
    return state.st_uid == os.geteuid() and (
        stat.S_ISDIR(state.st_mode) or (stat.S_ISREG(state.st_mode) and state.st_nlink == 1)
    )


def _grant(descriptor: int, uid: int) -> None:
    state = os.fstat(descriptor)
    if not _ours(state):
        return
    access = _READ | (_EXECUTE if stat.S_ISDIR(state.st_mode) else 0)
    entries = (
        (_OWNER, access | _WRITE, _NO_ID), (_USER, access, uid), (_GROUP, 0, _NO_ID), (_MASK, access, _NO_ID),
        (_OTHER, 0, _NO_ID),
    )  # fmt: skip
    wanted = _VERSION + b"".join(_ENTRY.pack(*entry) for entry in entries)
    if _attribute(descriptor) != wanted:
        os.setxattr(descriptor, ATTRIBUTE, wanted)


def _attribute(descriptor: int) -> bytes:
    try:
        return os.getxattr(descriptor, ATTRIBUTE)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return b""
        raise
