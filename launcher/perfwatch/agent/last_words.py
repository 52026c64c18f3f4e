"""The part of the agent that keeps what a process says last: read by ``sitecustomize.py`` when torch is first imported.

Like that file: standard library only, Python 3.8 to 3.14, no output. An error that ends the program is heard in three places:

- ``sys.excepthook`` and ``threading.excepthook``, as they are when torch is first imported;
- at exit, where the program has set another hook since: the interpreter keeps the error in ``sys.last_value``;
- ``traceback.print_exc`` in a child of ``multiprocessing``, which prints its error by itself.

No other function of Python is replaced. An error that a program handles before it calls ``sys.exit`` or ``os._exit`` is not kept: our code
would run in a watchdog that ends a process because nothing else in it can run.

A crash leaves ``crash-PID.txt``, a thread that ends with an error ``thread-PID-TID.txt``: the traceback as Python prints it.
"""

import atexit
import errno
import functools
import os
import resource
import sys
import threading

# In the hook the import of these two would make Python forget that Ctrl-C ended the program.
import tokenize  # noqa: F401  of traceback
import traceback

_CRASH_BYTES, _MOST_THREAD_ERRORS, _MOST_INTERRUPTIONS = 16 * 1024, 16, 3
_FILES = 8  # beyond its limit, for a program that has all its files open


class _Heard:
    """Takes the place of a module's function: ``hear`` runs when that is about to be called, and then it is called itself.

    No frame of ours is below it, so what it raises reads as without us. It is pickled by its place, as the function was.
    """

    def __init__(self, module, name, hear):
        functools.update_wrapper(self, getattr(module, name))
        self.__module__, self._name, self._hear = module.__name__, name, hear
        setattr(module, name, self)

    @property
    def __call__(self):
        self._hear()
        return self.__wrapped__

    def __reduce__(self):
        return self._name


def keep(directory):
    """Hear of the errors that end this process, or a thread of it."""
    told, kept = [None], []

    def crash():
        error = getattr(sys, "last_value", None)
        if error is not None and id(error) != told[0]:
            told[0] = id(error)
            _keep(directory, _crash(), error)

    def thread_error():
        error = sys.exc_info()[1]
        if error is not None and len(kept) < _MOST_THREAD_ERRORS and not isinstance(error, SystemExit):
            kept.append("thread-%d-%d.txt" % (os.getpid(), threading.get_native_id()))
            _keep(directory, kept[-1], error)

    is_default = sys.excepthook is sys.__excepthook__
    hook = _Heard(sys, "excepthook", crash)
    if is_default:  # a library may ask for that, and set a hook of its own or not
        sys.__excepthook__ = hook
    _Heard(threading, "excepthook", thread_error)
    # Before threads are waited for, which may never end.
    getattr(threading, "_register_atexit", atexit.register)(crash)


def keep_in_children(directory):
    """Hear of the errors that end children of multiprocessing, once torch has imported that."""
    util, process = sys.modules.get("multiprocessing.util"), sys.modules.get("multiprocessing.process")
    if util is None or process is None:
        return
    ends = process.BaseProcess._bootstrap.__code__

    def error():
        if sys._getframe(2).f_code is ends:
            _keep(directory, _crash(), sys.exc_info()[1])

    def begin(_):
        if not isinstance(traceback.print_exc, _Heard):
            _Heard(traceback, "print_exc", error)

    util.register_after_fork(begin, begin)
    if process.parent_process() is not None:  # torch was imported late in such a child
        begin(begin)


def _keep(directory, name, error):
    before = ""
    for _ in range(_MOST_INTERRUPTIONS):
        try:
            return _write(directory, name, before + _text(error))
        except BaseException as raised:
            if getattr(raised, "errno", None) == errno.EMFILE:
                return _with_more_files(directory, name, error)
            # By a handler of signals: torch's tells there that a data worker has ended.
            before = "".join(traceback.format_exception_only(type(raised), raised))


def _text(error):
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def _crash():
    return "crash-%d.txt" % os.getpid()


def _with_more_files(directory, name, error):
    """Write it under a higher limit on open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        most = before[0] + _FILES
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, max(before[1], most)))
        _write(directory, name, _text(error))
    except (OSError, ValueError):  # no right, or a disk that is full
        pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _write(directory, name, text):
    if 0 <= resource.getrlimit(resource.RLIMIT_FSIZE)[0] < _CRASH_BYTES:  # a signal would tell of it
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(os.path.join(directory, name), flags, 0o600)
    try:
        os.write(descriptor, text.encode("utf-8", "backslashreplace")[-_CRASH_BYTES:])
    finally:
        os.close(descriptor)
