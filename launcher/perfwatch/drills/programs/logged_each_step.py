"""Look-alike of a loop that synchronises: the loss is read in each step, but the GPU has a long step to do until then. Healthy."""

import accelerator
import decoder
import stage

BATCHES = {"loud": 16, "quiet": 8, "masked": 32}

args = stage.arguments(__doc__)
card = accelerator.device()
model, optimizer = decoder.build(card)
losses = []
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    loss = decoder.train_step(model, optimizer, decoder.random_tokens(card, BATCHES[args.strength]))
    losses.append(loss.item())
    if step % 10 == 0:
        print(step, sum(losses[-10:]) / len(losses[-10:]), flush=True)
