"""Attention falls back to its plain form, which writes out every pair of positions: the fast kernels were turned off."""

import accelerator
import decoder
import stage
import surroundings
from torch.nn.attention import SDPBackend, sdpa_kernel

SIZES = {"loud": (4096, 2), "quiet": (2048, 4), "masked": (8192, 1)}  # tokens, sequences

args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
length, batch = SIZES[args.strength]
model, optimizer = decoder.build(card, 1024, 8, length)
with sdpa_kernel(SDPBackend.MATH):
    for step in range(10**9):
        if step == args.steps:
            stage.onset()
        loss = decoder.train_step(model, optimizer, decoder.random_tokens(card, batch, length))
        if step % 10 == 0:
            print(step, loss.item(), flush=True)
