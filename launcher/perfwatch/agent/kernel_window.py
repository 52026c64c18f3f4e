"""The part of the agent that opens windows for Nsight Compute; read by ``sitecustomize.py`` where ``run`` armed it, else never.

Like that file: standard library only, Python 3.8 to 3.14, no output, and no failure of its own reaches the program.
A window opens and closes between two steps, when a door (``kernels-PID``) has appeared in the agent's folder and when it goes.

- ``by_range`` (``run --arm ncu``): ncu is there since the job began, and measures between cudaProfilerStart and -Stop.
- ``by_library`` (``run --arm ncu-attach``): ncu's library is loaded before CUDA starts and sleeps until nvInjBeginProfiling;
  then ncu attaches, and leaves at nvInjEndProfiling. The door holds the number of steps, and its maker holds a lock on
  it: a thread that lives no longer than the window ends it when the door or its holder is gone, or after 150 s, so that the
  program is never kept for a process that died. ``kernels-open-PID`` has the library's answer, or why it could not be loaded.
"""

import ctypes
import fcntl
import os
import sys
import threading
import time

_LONGEST_SECONDS = 150.0
_LOOK_SECONDS = 0.1


class _Parameters(ctypes.Structure):
    """Of both calls (nvComputeInj.h)."""

    _fields_ = [("size", ctypes.c_size_t), ("private", ctypes.c_void_p)]


def by_range(directory):
    """Make the hook for a process below ncu: one ``stat`` a step (2 us)."""
    opened = False

    def hook(_optimizer, _args, _kwargs):
        nonlocal opened
        try:
            wanted = os.path.exists(os.path.join(directory, "kernels-%d" % os.getpid()))
            if wanted != opened:
                opened = wanted
                runtime = sys.modules["torch"].cuda.cudart()
                (runtime.cudaProfilerStart if wanted else runtime.cudaProfilerStop)()
        except Exception:  # no GPU, no such call: the window stays shut
            pass

    hook._torchdynamo_disable = True  # torch.compile must not look into it
    return hook


def by_library(directory, path):
    """Load ncu's library and make the hook for a process to which ncu attaches; None, and the reason written, without it."""
    try:
        library = ctypes.CDLL(path)
        begin, end = library.nvInjBeginProfiling, library.nvInjEndProfiling
    except (OSError, AttributeError) as error:
        _answer(directory, str(error))
        return None
    parameters = _Parameters(ctypes.sizeof(_Parameters), None)
    lock, left = threading.Lock(), 0

    def shut(door):
        """Once for each window, by the first caller."""
        nonlocal left
        with lock:
            mine, left = left, 0
        if mine:
            end(ctypes.byref(parameters))
            _remove(door)

    def guard(door):
        until = time.monotonic() + _LONGEST_SECONDS
        while _held(door) and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        shut(door)

    def hook(_optimizer, _args, _kwargs):
        nonlocal left
        try:
            door = os.path.join(directory, "kernels-%d" % os.getpid())
            with lock:
                opened, left = left, left - (left > 1)
            if opened == 1:
                shut(door)
            elif not opened and _held(door):
                with open(door) as file:
                    steps = int(file.read(8))
                code = begin(ctypes.byref(parameters))
                if not code:
                    left = steps
                    threading.Thread(target=guard, args=(door,), name="perfwatch-ncu", daemon=True).start()
                _answer(directory, str(code))
        except Exception:  # a door that holds nothing
            pass

    hook._torchdynamo_disable = True
    return hook


def _held(door):
    """True if the door is there and its maker lives: the lock goes with it."""
    try:
        with open(door) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _answer(directory, text):
    """Whole or not at all: a waiting process looks for it."""
    name = os.path.join(directory, "kernels-open-%d" % os.getpid())
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name + ".new", flags, 0o600)
    try:
        os.write(descriptor, text.encode("utf-8", "backslashreplace")[:500])
    finally:
        os.close(descriptor)
    os.rename(name + ".new", name)


def _remove(path):
    try:
        os.unlink(path)
    except OSError:
        pass
