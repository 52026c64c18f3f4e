"""The steps page of a process, and the hook that writes it: one ``struct.pack_into`` after each optimizer step.

Loaded by ``agent/on_path/sitecustomize.py``: standard library only, Python 3.8 to 3.14. The page is mapped shared; its layout is in the
docstring of ``probes/perfwatch_probes/steps.py``.
"""

import os
import sys

_MAGIC, _PAGE_BYTES, _HEADER_BYTES, _SLOT_BYTES = b"PWSTEPS2", 4096, 64, 24
_SLOTS = (_PAGE_BYTES - _HEADER_BYTES) // _SLOT_BYTES
_MODES_NS = 1_000_000_000  # from question to question
_OF_ANOTHER, _MOST_MET = 1 << 63, 4096


def _start_ticks():
    """Field 22 of our own stat; the name in parentheses may hold spaces."""
    with open("/proc/self/stat", "rb") as file:
        return int(file.read().rsplit(b")", 1)[1].split()[19])


def _new_page(directory):
    """Create and map ``steps-PID``; the space is allocated first, for a full tmpfs would answer a write with SIGBUS."""
    import mmap
    import resource
    import struct
    import time

    if 0 <= resource.getrlimit(resource.RLIMIT_FSIZE)[0] < _PAGE_BYTES:  # a signal would tell of it
        raise OSError
    path = os.path.join(directory, "steps-%d" % os.getpid())
    try:
        os.unlink(path)  # of a dead process that had this pid
    except FileNotFoundError:
        pass
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _PAGE_BYTES)
        page = mmap.mmap(descriptor, _PAGE_BYTES)
    finally:
        os.close(descriptor)
    struct.pack_into("<IIQQ", page, 8, os.getpid(), _SLOTS, _start_ticks(), time.monotonic_ns())
    page[0:8] = _MAGIC
    return page


def counter(directory, load):
    """Make the hook that torch calls after each optimizer step. ``load``: brings another of these parts by its name."""
    from itertools import count
    from struct import Struct
    from threading import get_ident, get_native_id
    from time import monotonic_ns

    write = Struct("<QQQ").pack_into
    try:
        keep_modes = load("modes").keeper(sys.modules.get("torch._C"))
    except Exception:  # the file is not there: steps are counted all the same
        keep_modes = id
    numbers = count(1)  # next() is atomic: two threads that step never share a number
    # 25 ns less than to reckon them each time.
    places = tuple(range(_HEADER_BYTES, _HEADER_BYTES + _SLOT_BYTES * _SLOTS, _SLOT_BYTES))
    page, thread, tid, lead, due, met = None, -1, -1, 0, 0, set()

    def hook(optimizer, _args, _kwargs):
        nonlocal page, thread, tid, due
        number, now = next(numbers), monotonic_ns()
        slot = number % _SLOTS
        # gettid is a system call (180 ns of 430), get_ident is not; an ident can be reused, so look again once a round.
        if thread != get_ident() or not slot:
            thread, tid = get_ident(), get_native_id()
        whose = tid
        if id(optimizer) != lead:
            whose = follow(id(optimizer))
        elif met:
            met.clear()
        if page is None:  # the first step of this process
            page = begun()
        # No ``try``: what a handler of signals raises here is the program's.
        write(page, places[slot], now, whose, number)
        if now >= due:
            due = now + _MODES_NS
            keep_modes(page)

    def begun():
        try:
            return _new_page(directory)
        except Exception:
            return bytearray(_PAGE_BYTES)  # no room or no right: count without publishing, and do not try again

    def follow(identity):
        """Of several optimizers the one that steps most often leads; no reference is kept: it would keep one alive."""
        nonlocal lead
        if identity in met or not lead or len(met) >= _MOST_MET:
            lead = identity
            met.clear()
            return tid
        met.add(identity)
        return tid | _OF_ANOTHER

    def forget():
        """In a forked child: the page and its numbers are the parent's."""
        nonlocal page, numbers, thread, due
        page, numbers, thread, due = None, count(1), -1, 0

    os.register_at_fork(after_in_child=forget)
    hook._torchdynamo_disable = True  # torch.compile must not look into it
    return hook
