"""Look-alike of the attention fallback: as long sequences through the fused attention kernels. Healthy."""

import accelerator
import decoder
import stage

SIZES = {"loud": (4096, 8), "quiet": (8192, 4), "masked": (2048, 16)}  # tokens, sequences

args = stage.arguments(__doc__)
card = accelerator.device()
length, batch = SIZES[args.strength]
model, optimizer = decoder.build(card, 2048, 8, length)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    loss = decoder.train_step(model, optimizer, decoder.random_tokens(card, batch, length))
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
