"""Somebody else's process computes on the same GPU."""

import time

import accelerator
import decoder
import stage
import surroundings
import torch

NEIGHBOUR = {"loud": (8192, 0.0), "quiet": (4096, 0.01), "masked": (8192, 0.03)}  # its matrices, and how long it rests


def render(side, pause):
    card = accelerator.device()
    a = torch.randn(side, side, device=card, dtype=torch.bfloat16)
    while True:
        for _ in range(8):
            a = (a @ a).clamp(-1, 1)
        torch.cuda.synchronize()
        time.sleep(pause)


args = stage.arguments(__doc__)
stage.outsider(lambda: render(*NEIGHBOUR[args.strength]))
card = accelerator.device()
surroundings.innocent_activity(args.strength)
model, optimizer = decoder.build(card)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    loss = decoder.train_step(model, optimizer, decoder.random_tokens(card, 8))
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
