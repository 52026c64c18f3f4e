"""An error as one line for stderr, with the command that fixes it."""

import errno

_FIXES = {
    errno.EMFILE: "raise the limit of open files: ulimit -n 65536",
    errno.EAGAIN: "raise the limit of processes: ulimit -u 65536",
    errno.ENOSPC: "free some space: df -h /dev/shm /tmp",
    errno.EDQUOT: "free some space: quota -s",
}


def reason(error: Exception) -> str:
    """What failed, and the command that fixes it where there is one."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
    said = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    fix = _FIXES.get(error.errno)
    return f"{said} ({fix})" if fix else said
