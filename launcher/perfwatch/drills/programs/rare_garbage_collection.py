"""gc.collect() once in two hundred steps on a small heap: it costs nothing that anybody would notice. Healthy."""

import gc

import stage
import torch


def end_of_round():
    gc.collect()
    return torch.randn(1024, 256)


args = stage.arguments(__doc__)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 768), torch.nn.ReLU(), torch.nn.Linear(768, 256))
optimizer = torch.optim.AdamW(model.parameters())
batch = end_of_round()
for step in range(100_000_000):
    if step == args.steps:
        stage.onset()
    if step % 200 == 199:
        batch = end_of_round()
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(batch), batch).backward()
    optimizer.step()
