"""A decoder in bf16 whose training loop asks the GPU for numbers all the time: norms of each gradient, kept tokens, the loss."""

import accelerator
import decoder
import stage
import surroundings

WIDTHS = {"loud": 256, "quiet": 512, "masked": 768}

args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
model, optimizer = decoder.build(card, WIDTHS[args.strength], 8, 256)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    tokens = decoder.random_tokens(card, 4, 256)
    kept = tokens[tokens[:, 0] >= 0]
    loss = decoder.train_step(model, optimizer, kept)
    norms = [parameter.grad.norm().item() for parameter in model.parameters()]
    if step % 100 == 0:
        print(step, loss.item(), max(norms), flush=True)
