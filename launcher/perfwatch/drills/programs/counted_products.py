"""Look-alike of a memory-bound run: matrix products large enough to be bound by arithmetic; the loop counts its own FLOPs.

It prints, once a second, the TFLOP/s of the products alone (2 x rows x inner x columns each). Healthy.
"""

import time

import accelerator
import stage
import torch

SIDES = {"loud": 8192, "quiet": 4096, "masked": 12288}

args = stage.arguments(__doc__)
card = accelerator.device()
side = SIDES[args.strength]
weight = torch.nn.Parameter(torch.randn(side, side, device=card, dtype=torch.bfloat16) / side**0.5)
optimizer = torch.optim.SGD([weight], lr=0.0)
inputs = torch.randn(side, side, device=card, dtype=torch.bfloat16)
done, began = 0, time.monotonic()
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    hidden = inputs
    for _ in range(4):
        hidden = hidden @ weight
    optimizer.zero_grad()
    hidden.backward(inputs)
    optimizer.step()
    done += 4 + 7  # forward; backward by input and by weight, except the first layer's input
    if step % 4 == 0:
        torch.cuda.synchronize()
    if (seconds := time.monotonic() - began) > 1.0:
        torch.cuda.synchronize()
        seconds = time.monotonic() - began
        print(f"{time.monotonic():.3f} {done * 2 * side**3 / seconds / 1e12:.1f} TFLOP/s", flush=True)
        done, began = 0, time.monotonic()
