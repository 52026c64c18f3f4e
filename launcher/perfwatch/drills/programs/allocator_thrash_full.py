"""Batches of ever new sizes at the edge of the memory that this process may use: the allocator frees and asks all the time.

Large blocks may not be split, as the error message of torch advises against fragmentation.
"""

import os
import random

import accelerator
import stage
import surroundings
import torch

ALLOWED_GIB = {"loud": 2.6, "quiet": 2.8, "masked": 3.0}
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:32"

args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
torch.cuda.set_per_process_memory_fraction(
    ALLOWED_GIB[args.strength] * 2**30 / torch.cuda.get_device_properties(card).total_memory
)
network = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).to(card, torch.bfloat16)
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    rows = random.randrange(10_000, 100_000)
    loss = network(torch.randn(rows, 1024, device=card, dtype=torch.bfloat16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del loss
    if step % 50 == 0:
        print(step, torch.cuda.memory_stats()["num_alloc_retries"], flush=True)
