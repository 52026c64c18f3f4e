"""The little that every drill program shares: a tiny model, and the handshake that says "the fault begins now".

Imported by the programs by path (``import stage``), never by perfwatch. The one who started the program may read a line of
JSON for each call of ``onset`` from the FIFO named in PERFWATCH_DRILL_FIFO; without a reader nothing blocks.
"""

import argparse
import json
import os
import time


def arguments(description: str | None = None) -> argparse.Namespace:
    """The command line of every drill: ``--strength loud|quiet|masked`` and ``--steps`` (healthy steps before the fault)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--strength", choices=("loud", "quiet", "masked"), default="loud")
    parser.add_argument("--steps", type=int, default=20, help="healthy steps before the fault begins")
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
