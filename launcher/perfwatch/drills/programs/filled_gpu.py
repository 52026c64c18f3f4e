"""Look-alike of an underfilled GPU: the same decoder and the same graph, with a batch that fills the card. Healthy."""

import accelerator
import decoder
import stage
import torch

SIZES = {"loud": (2048, 16), "quiet": (1024, 48), "masked": (2048, 32)}  # width, sequences of 1024 tokens

args = stage.arguments(__doc__)
card = accelerator.device()
width, batch = SIZES[args.strength]
model, _ = decoder.build(card, width, 8)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=True, fused=True)
tokens = decoder.random_tokens(card, batch)
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
    tokens.copy_(decoder.random_tokens(card, batch))
    graph.replay()
    if step % 10 == 0:
        print(step, loss.item(), flush=True)
