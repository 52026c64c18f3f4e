"""The same small decoder in bf16, but with a single short sequence in each step: the GPU is hardly used."""

import accelerator
import decoder
import stage
import surroundings

LENGTHS = {"loud": 64, "quiet": 256, "masked": 128}

args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
model, optimizer = decoder.build(card, 1024)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    loss = decoder.train_step(model, optimizer, decoder.random_tokens(card, 1, LENGTHS[args.strength]))
    if step % 100 == 0:
        print(step, loss.item(), flush=True)
