"""A process between ``perfwatch run`` and ncu: it passes signals on to the job, not to the shell script that is named ncu.

``ncu`` is a script that starts the real one, which starts the job: a SIGTERM for the command of ``run`` would end the
script and leave the job behind. This process passes signals on to the first process below that is not ncu's, and ends
with ncu's exit code, which is the job's. Ctrl-C needs no forwarding: the terminal sends it to all of them.

Run by path, standard library only: ``python -I under_ncu.py NCU...``.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
MOST_LEVELS = 8  # script, ncu, and shells or wrappers of a site around them


def main(command: list[str]) -> int:
    """Run ncu to its end; returns its exit code, or minus the signal that ended it."""
    child = subprocess.Popen(command, preexec_fn=_as_expected)

    def pass_on(number: int, _frame: object) -> None:
        for pid in job_below(child.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    while True:
        try:
            return child.wait()
        except InterruptedError:
            continue


def job_below(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """The first processes below this one that are neither a shell nor ncu; the process itself while there are none."""
    level = [pid]
    for _ in range(MOST_LEVELS):
        below = [child for parent in level for child in _children(parent, proc)]
        job = [child for child in below if _name(child, proc) not in _OF_NCU]
        if job:
            return job
        if not below:
            break
        level = below
    return [pid]


_OF_NCU = frozenset({"sh", "bash", "dash", "ncu", "nv-nsight-cu-cl"})


def _children(pid: int, proc: Path) -> list[int]:
    try:
        return [int(word) for word in (proc / str(pid) / "task" / str(pid) / "children").read_text().split()]
    except OSError:
        return []


def _name(pid: int, proc: Path) -> str:
    try:
        return (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _as_expected() -> None:
    """Between fork and exec: python ignores a broken pipe, a program expects to die of one."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
