"""As many compute threads as cores, and a dozen Python threads that only sleep. Healthy."""

import os
import threading

import stage
import torch

args = stage.arguments(__doc__)
torch.set_num_threads(len(os.sched_getaffinity(0)))
done = threading.Event()
for number in range(12):
    threading.Thread(target=done.wait, name=f"uploader-{number}", daemon=True).start()
stack = torch.nn.Sequential(torch.nn.Linear(256, 1536), torch.nn.ReLU(), torch.nn.Linear(1536, 256))
optimizer = torch.optim.Adam(stack.parameters())
batch = torch.randn(512, 256)
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    optimizer.zero_grad()
    torch.nn.functional.smooth_l1_loss(stack(batch), batch).backward()
    optimizer.step()
