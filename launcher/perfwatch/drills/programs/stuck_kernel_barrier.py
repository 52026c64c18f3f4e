"""A hand-written Triton kernel in which the blocks wait for each other; now it waits for one block more than there are."""

import accelerator
import stage
import surroundings
import torch
import triton
import triton.language as tl

BLOCKS = {"loud": 132, "quiet": 8, "masked": 66}


@triton.jit
def normalise(x, out, arrived, total, expected, size, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    values = tl.load(x + at, mask=at < size, other=0.0)
    tl.atomic_add(total, tl.sum(values * values))
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < expected:
        pass
    tl.store(out + at, values / tl.sqrt(tl.atomic_add(total, 0.0)), mask=at < size)


args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
blocks = min(BLOCKS[args.strength], torch.cuda.get_device_properties(card).multi_processor_count)
weights = torch.randn(blocks * 1024, device=card, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=1e-3)
direction = torch.empty_like(weights)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    arrived, total = torch.zeros(1, dtype=torch.int32, device=card), torch.zeros(1, device=card)
    expected = blocks + (step >= args.steps)
    normalise[(blocks,)](weights, direction, arrived, total, expected, weights.numel(), block=1024)
    loss = (weights * direction).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
