"""One short sequence at a time through a small decoder, replayed as a CUDA graph: always busy, yet most of the card is empty."""

import accelerator
import decoder
import stage
import surroundings
import torch

SIZES = {"loud": (256, 16), "quiet": (512, 64), "masked": (512, 128)}  # width, tokens

args = stage.arguments(__doc__)
card = accelerator.device()
surroundings.innocent_activity(args.strength)
width, length = SIZES[args.strength]
model, _ = decoder.build(card, width, 8, length)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=True, fused=True)
tokens = decoder.random_tokens(card, 1, length)
aside = torch.cuda.Stream()
with torch.cuda.stream(aside):
    for _ in range(3):
        decoder.train_step(model, optimizer, tokens)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = decoder.train_step(model, optimizer, tokens)
for step in range(10**9):
    if step == args.steps:
        stage.onset()
    tokens.copy_(decoder.random_tokens(card, 1, length))
    graph.replay()
    if step % 200 == 0:
        print(step, loss.item(), flush=True)
