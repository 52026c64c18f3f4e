"""A file system that answers late or never: the other side of /dev/fuse, spoken by hand. Used by several drills.

It is mounted in a mount namespace of the calling process, so the rest of the machine never sees it and nothing has to
be unmounted: it disappears with the last process of the drill. Needs root and /dev/fuse. Layouts and numbers:
linux/fuse.h, protocol 7.31.
"""

import contextlib
import ctypes
import errno
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import stage

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000
LOOKUP, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, OPENDIR, INTERRUPT = 1, 3, 14, 15, 18, 25, 26, 27, 36
UNANSWERED = (2, 42)  # FORGET and BATCH_FORGET expect no answer
ROOT_NODE = 1
DIRECTORY, FILE = 0o40755, 0o100644
LIBC = ctypes.CDLL(None, use_errno=True)

Delay = Callable[[str, int], float | None]


def mount(folder: str, file_bytes: int, delay: Delay) -> None:
    """Mount at ``folder`` (below /mnt): every name in it is a file of ``file_bytes`` bytes.

    A read of file ``name`` at ``offset`` is answered after ``delay(name, offset)`` seconds, or never if that is None.
    """
    _call(LIBC.unshare, CLONE_NEWNS)
    _call(LIBC.mount, b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    _call(LIBC.mount, b"tmpfs", b"/mnt", b"tmpfs", 0, b"size=1m")
    Path(folder).mkdir(parents=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,max_read=131072"
    _call(LIBC.mount, b"s3fs", folder.encode(), b"fuse.s3fs", 0, options.encode())
    stage.outsider(lambda: _serve(device, file_bytes, delay))
    os.close(device)


def _serve(device: int, file_bytes: int, delay: Delay) -> None:
    names = ["", "/"]  # by node number
    while True:
        try:
            request = os.read(device, 1 << 20)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT):
                continue
            sys.exit()  # unmounted
        _, opcode, unique, node = struct.unpack_from("=IIQQ", request)
        if opcode == READ:
            offset, size = struct.unpack_from("=8xQI", request, 40)
            seconds = delay(names[node], offset)
            if seconds is not None:
                time.sleep(seconds)
                _answer(device, unique, b"x" * max(0, min(size, file_bytes - offset)))
        elif opcode == INIT:
            _answer(device, unique, struct.pack("=4I2H4I8x20x", 7, 31, 65536, 0, 12, 10, 65536, 1, 0, 0))
        elif opcode == LOOKUP:
            names.append(request[40:].rstrip(b"\0").decode())
            entry = struct.pack("=4Q2I", len(names) - 1, 0, 60, 60, 0, 0)
            _answer(device, unique, entry + _attributes(len(names) - 1, file_bytes))
        elif opcode == GETATTR:
            _answer(device, unique, struct.pack("=Q2I", 60, 0, 0) + _attributes(node, file_bytes))
        elif opcode in (OPEN, OPENDIR):
            _answer(device, unique, struct.pack("=Q2I", 0, 0, 0))
        elif opcode == INTERRUPT:  # a signal came: without this not even SIGKILL would end the reader
            _answer(device, struct.unpack_from("=Q", request, 40)[0], error=errno.EINTR)
        elif opcode in (RELEASE, FLUSH):
            _answer(device, unique)
        elif opcode not in UNANSWERED:
            _answer(device, unique, error=errno.ENOSYS)


def _attributes(node: int, file_bytes: int) -> bytes:
    mode, size = (DIRECTORY, 0) if node == ROOT_NODE else (FILE, file_bytes)
    return struct.pack("=6Q10I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _answer(device: int, unique: int, body: bytes = b"", error: int = 0) -> None:
    with contextlib.suppress(FileNotFoundError):  # the request was answered meanwhile
        os.write(device, struct.pack("=IiQ", 16 + len(body), -error, unique) + body)


def _call(function, *values) -> None:
    if function(*values) != 0:
        raise OSError(ctypes.get_errno(), f"{function.__name__} failed: this drill needs root and /dev/fuse")
