"""The part of the agent that arms torch's flight recorder: read by ``sitecustomize.py`` when torch is first imported.

Like that file: standard library only, Python 3.8 to 3.14, no output. A rank that cannot make its pipe is aborted, for torch
makes it in a thread where nothing catches the error, minutes after the import. So the folder must be there for this very process, which
it is not in another container, on another host or for another user; it is kept from being removed while the process lives; and
the variables are set for this process alone, past ``os.environ``: what the program sets counts, and what it hands on is as
without us.
"""

import fcntl
import os

_PIPE = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "fr_pipe_")  # torch adds the rank to each of these, and .pipe to this one
_DUMP = ("TORCH_FR_DUMP_TEMP_FILE", "fr_rank_")
_OLD_DUMP = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"  # before torch 2.9; later ones say on stderr that they have met it
_ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"  # torch before 2.6 looks at the pipe only then


def arm(directory):
    """Let this process be asked through a pipe in that folder, and write there, where the program has set nothing else."""
    if not os.access(directory, os.W_OK | os.X_OK) or not _held(directory):
        return
    _set(_PIPE[0], os.path.join(directory, _PIPE[1]))
    if _OLD_DUMP not in os.environ:
        _set(_DUMP[0], os.path.join(directory, _DUMP[1]))
    _set(_ON_TIMEOUT, "1")


def disarm(directory):
    """At the start of a process: a program that is started with no environment of its own has inherited its parent's after all."""
    for name, file in (_PIPE, _DUMP):
        if os.environ.get(name) == os.path.join(directory, file):
            del os.environ[name]


def _held(directory):
    """Lock a file there, against removal of the folder, and leave it open: the lock ends with this process and its forks."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(os.path.join(directory, "used"), flags, 0o600)
        kept = fcntl.fcntl(
            descriptor, fcntl.F_DUPFD_CLOEXEC, 3
        )  # no standard stream, should the program have closed one
        os.close(descriptor)
    except OSError:  # no room, no right
        return False
    try:
        fcntl.flock(kept, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # the folder is about to be removed
        os.close(kept)
        return False
    return True


def _set(name, value):
    if name not in os.environ:
        os.putenv(name, value)
