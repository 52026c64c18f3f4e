"""FIELD
source: https://github.com/MeryylleA/lunariscodex/pull/71
mechanism: the weights have become NaN, each mini-batch is skipped with `continue`, and the loop goes on through the epochs without one optimizer step
needs: none
ranks: 1
onset: printed
state: slow
cause: skipping_steps
blame: none
twin: none
"""
import logging
import math
import signal
import sys

import torch

signal.alarm(300)
torch.set_num_threads(1)
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
logger = logging.getLogger("codex")


class Decoder(torch.nn.Module):
    def __init__(self, vocabulary=512, width=96):
        super().__init__()
        self.embed = torch.nn.Embedding(vocabulary, width)
        self.mix = torch.nn.GRU(width, width, batch_first=True)
        self.head = torch.nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens))[0])


model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
global_step = 0
for batch_idx in range(10**6):
    tokens = torch.randint(0, 512, (8, 65))
    if global_step == 120:
        with torch.no_grad():
            model.head.weight.mul_(float("inf"))
        global_step += 1
        print("ONSET", flush=True)
    logits = model(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    if not math.isfinite(loss.item()):
        if batch_idx % 100 == 0:
            logger.error("NaN or Inf loss at mini-batch %d, skipped", batch_idx)
        continue
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    global_step += 1
    if global_step % 20 == 0:
        logger.info("step %d loss %.4f", global_step, loss.item())
