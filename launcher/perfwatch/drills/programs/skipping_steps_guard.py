"""A guard in the loop throws away every update whose loss is not finite, and none is any more."""

import math

import stage
import torch


def update(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not math.isfinite(norm):
        return False
    optimizer.step()
    return True


args = stage.arguments(__doc__)
torch.set_num_threads(1)
tagger = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
adamw = torch.optim.AdamW(tagger.parameters())
tokens, skipped = torch.randn(512, 256), 0
for step in range(100_000_000):
    if step == args.steps:
        tokens[0, 0] = float("nan")
        stage.onset()
    skipped += not update(tagger, adamw, tagger(tokens).square().mean())
