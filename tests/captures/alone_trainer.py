"""One process that trains until its stdin ends. With ``profiled`` it profiles itself and says how many events that gave."""

import contextlib
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


threading.Thread(target=await_end, daemon=True).start()
own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) if "profiled" in sys.argv else None
with own or contextlib.nullcontext():
    steps = 0
    while not ended.wait(0.002):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        steps += 1
        if steps == 20:
            print("training", flush=True)
if own is not None:
    recorded: list[object] = own.events()  # type: ignore[no-untyped-call]
    print(len(recorded), flush=True)
