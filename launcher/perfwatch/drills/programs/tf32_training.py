"""Look-alike of the wrong precision: the same decoder in fp32, but TF32 is on, and the tensor cores work. Healthy."""

import accelerator
import decoder
import stage

SIZES = {"loud": (2048, 8), "quiet": (2048, 16), "masked": (3072, 8)}  # width, batch

args = stage.arguments(__doc__)
card = accelerator.device(products="high")
width, batch = SIZES[args.strength]
model, optimizer = decoder.build(card, width)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    loss = decoder.train_step(model, optimizer, decoder.random_tokens(card, batch), dtype=None)
    if step % 5 == 0:
        print(step, loss.item(), flush=True)
