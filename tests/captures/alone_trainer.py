"""One process that trains until its stdin ends. With ``profiled`` it profiles itself and says how many events that gave.

With ``later`` it does, after some steps, what torch does when a program begins to use CUDA, as far as the agent has asked for it, and
says whether that started a thread and what its children find in their environment.
"""

import contextlib
import os
import subprocess
import sys
import threading

import torch

torch.set_num_threads(1)
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
ended = threading.Event()


def await_end() -> None:
    """Until whoever holds our stdin lets go of it."""
    sys.stdin.read()
    ended.set()


def begin_to_use_cuda() -> None:
    """What of the agent's is done then."""
    before = len(os.listdir("/proc/self/task"))
    for call, _ in torch.cuda._queued_calls:
        if call.__name__ == "_arm_profiler":
            call()
    started = len(os.listdir("/proc/self/task")) - before
    child = subprocess.run(["printenv", "KINETO_USE_DAEMON"], capture_output=True, text=True)
    print(f"{started} {child.stdout.strip() or 'unset'}", flush=True)


threading.Thread(target=await_end, daemon=True).start()
own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) if "profiled" in sys.argv else None
with own or contextlib.nullcontext():
    steps = 0
    while not ended.wait(0.002):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        steps += 1
        if steps == 10 and "later" in sys.argv:
            begin_to_use_cuda()
        if steps == 20:
            print("training", flush=True)
if own is not None:
    recorded: list[object] = own.events()  # type: ignore[no-untyped-call]
    print(len(recorded), flush=True)
