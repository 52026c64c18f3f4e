"""A decoder trained in plain fp32, with TF32 off (torch's default): the tensor cores have nothing to do."""

import accelerator
import decoder
import stage
import surroundings

SIZES = {"loud": (2048, 8), "quiet": (1024, 8), "masked": (2048, 2)}  # width, batch

args = stage.arguments(__doc__)
card = accelerator.device(products="highest")
surroundings.innocent_activity(args.strength)
width, batch = SIZES[args.strength]
model, optimizer = decoder.build(card, width)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    loss = decoder.train_step(model, optimizer, decoder.random_tokens(card, batch), dtype=None)
    if step % 5 == 0:
        print(step, loss.item(), flush=True)
