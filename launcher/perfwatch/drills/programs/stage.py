"""What every drill program shares: its command line, the word that "the fault begins now", and a clean end.

Imported by the programs by path (``import stage``), never by perfwatch. Whoever started the program may read a line of
JSON for each call of ``onset`` from the FIFO named in PERFWATCH_DRILL_FIFO; without a reader nothing blocks. Where that
variable is set, the program and every process that it forks die with their parent, so no drill outlives a gauntlet.
The kernel looks at the *thread* that started the program: start drills from a thread that stays.
"""

import argparse
import ctypes
import json
import os
import signal
import threading
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def arguments(description: str | None = None) -> argparse.Namespace:
    """Read the command line of every drill: ``--strength``, ``--steps`` and, of several ranks, ``--backend`` and ``--ranks``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--strength", choices=("loud", "quiet", "masked"), default="loud")
    parser.add_argument("--steps", type=int, default=20, help="healthy steps before the fault begins")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="nccl: one GPU for each rank")
    parser.add_argument("--ranks", type=int, default=2, help="of a program that starts them itself")
    return parser.parse_args()


def onset(**facts: object) -> None:
    """Say that the fault begins now (monotonic clock, own pid, plus ``facts``); never blocks, never fails."""
    fifo = os.environ.get("PERFWATCH_DRILL_FIFO")
    if not fifo:
        return
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return  # nobody listens
    line = json.dumps({"onset": time.monotonic(), "pid": os.getpid(), **facts}) + "\n"
    try:
        os.write(descriptor, line.encode())
    except OSError:
        pass  # the listener went away between open and write
    finally:
        os.close(descriptor)


def outsider(serve: Callable[[], object], linger_seconds: float = 0.0) -> None:
    """Run ``serve`` in a process outside of the job's tree (a server, another job).

    It ends when ``serve`` returns, or ``linger_seconds`` after this process and its children have ended.

    Call it before any thread is started: it forks.
    """
    life_read, life_write = os.pipe()  # the write end stays open in the job: end of file means that the job is gone
    ready_read, ready_write = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
            os.close(life_write)
            os.write(ready_write, b"!")  # only now may the parent in the middle end
            os.close(ready_write)
            threading.Thread(target=_end_after, args=(life_read, linger_seconds), daemon=True).start()
            serve()
            os._exit(0)
        os.close(ready_write)
        os.read(ready_read, 1)
        os._exit(0)
    os.waitpid(middle, 0)
    for descriptor in (life_read, ready_read, ready_write):
        os.close(descriptor)


def _end_after(life: int, linger_seconds: float) -> None:
    os.read(life, 1)
    time.sleep(linger_seconds)
    os._exit(0)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if os.environ.get("PERFWATCH_DRILL_FIFO"):
    _die_with_parent()
    os.register_at_fork(after_in_child=_die_with_parent)
