"""What the look-alike programs share: a small training loop, the word that the wait begins, and a process outside of the job."""

import ctypes
import json
import os
import signal
import sys
import threading
import time

import torch

torch.set_num_threads(1)


def condition():
    """The word on the command line: works, sleeps, outside, native, gone or cycle."""
    return sys.argv[1]


def train(steps=20, width=256):
    """Make ``steps`` healthy steps; return the model and a function that makes one more."""
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch=None):
        batch = torch.randn(512, width) if batch is None else batch
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(steps):
        step()
        time.sleep(0.02)
    return model, step


def onset():
    """Say that the wait begins now, to whoever runs this under a gauntlet; never blocks, never fails."""
    if not (fifo := os.environ.get("PERFWATCH_DRILL_FIFO")):
        return
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    os.write(descriptor, (json.dumps({"onset": time.monotonic(), "pid": os.getpid()}) + "\n").encode())
    os.close(descriptor)


def outsider(serve):
    """Run ``serve()`` in a process that is no descendant of this one; it ends with the job at the latest.

    Call it before any thread is started: it forks.
    """
    life_read, life_write = os.pipe()  # its write end stays open in the job: end of file means that the job is gone
    os.set_inheritable(life_write, True)
    ready_read, ready_write = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG: not with its parent
            os.environ.pop("PERFWATCH_DRILL_FIFO", None)
            os.close(life_write)
            os.write(ready_write, b"!")
            os.close(ready_write)
            threading.Thread(target=lambda: (os.read(life_read, 1), os._exit(0)), daemon=True).start()
            serve()
            os._exit(0)
        os.close(ready_write)
        os.read(ready_read, 1)
        os._exit(0)
    os.waitpid(middle, 0)
    os.close(life_read)
    os.close(ready_read)
    os.close(ready_write)


def _end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if os.environ.get("PERFWATCH_DRILL_FIFO"):
    _end_with_parent()
    os.register_at_fork(after_in_child=_end_with_parent)
