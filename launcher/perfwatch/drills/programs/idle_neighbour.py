"""Look-alike of a shared GPU: somebody's notebook holds memory there, and does nothing. Healthy."""

import time

import accelerator
import decoder
import stage
import torch

HELD_GIB = {"loud": 4, "quiet": 1, "masked": 16}


def hold(gib):
    kept = torch.zeros(gib << 28, device=accelerator.device())
    torch.cuda.synchronize()
    while kept.numel():
        time.sleep(1.0)


args = stage.arguments(__doc__)
stage.outsider(lambda: hold(HELD_GIB[args.strength]))
card = accelerator.device()
model, optimizer = decoder.build(card)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    loss = decoder.train_step(model, optimizer, decoder.random_tokens(card, 16))
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
