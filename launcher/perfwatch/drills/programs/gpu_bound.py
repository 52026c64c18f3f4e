"""A small decoder in bf16 with a batch that fills the GPU: nothing to complain about. Healthy."""

import accelerator
import decoder
import stage
import surroundings

SIZES = {"loud": (2048, 16), "quiet": (1024, 32), "masked": (4096, 8)}  # width, batch

args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
width, batch = SIZES[args.strength]
model, optimizer = decoder.build(card, width)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    loss = decoder.train_step(model, optimizer, decoder.random_tokens(card, batch))
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
