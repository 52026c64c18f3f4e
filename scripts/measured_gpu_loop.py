"""The training loops on a GPU that measurements use. Say four times a second how many steps they have made, like measured_loop.

``launch_bound``: very many tiny kernels, so that Python sets the pace; ``compute_bound``: large matrix products.
"""

import json
import resource
import sys
import time

import torch

SHAPES = {"launch_bound": (16, 64, 40), "compute_bound": (16384, 4096, 8)}  # batch, width, layers
SAID_EVERY_SECONDS = 0.25


def main(kind: str) -> None:
    """Train until killed."""
    torch.manual_seed(0)
    batch, width, depth = SHAPES[kind]
    layers = [torch.nn.Linear(width, width, device="cuda", dtype=torch.bfloat16) for _ in range(depth)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, foreach=False)
    rows = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
    said, steps = time.monotonic(), 0
    while True:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        steps += 1
        if steps % 16 == 0:
            torch.cuda.synchronize()  # so that a step that is counted is a step that was made
        if steps % 16 == 0 and (now := time.monotonic()) - said >= SAID_EVERY_SECONDS:
            said = now
            usage = resource.getrusage(resource.RUSAGE_SELF)
            line = {"at": now, "steps": steps, "cpu_seconds": usage.ru_utime + usage.ru_stime}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
