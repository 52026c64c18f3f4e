"""FIELD
source: own
mechanism: the guard for a loss that is not finite leaves each time; the accuracy is taken under inference_mode further down in the loop
needs: none
ranks: 1
onset: printed
state: slow
cause: skipping_steps
blame: none
twin: scored_loop
"""
import math
import signal

import torch
from torch import nn

signal.alarm(300)
torch.set_num_threads(1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 128)
        self.rnn = nn.LSTM(128, 128, batch_first=True)
        self.head = nn.Linear(128, 20)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


def train(model, optimizer):
    good = 0
    while True:
        tokens, tags = torch.randint(0, 1000, (16, 40)), torch.randint(0, 20, (16, 40))
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())
        if not math.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.inference_mode():
            right = (logits.argmax(-1) == tags).float().mean()
        good += 1
        if good % 20 == 0:
            print(good, float(right), flush=True)
        if good == 100:
            model.head.bias.data.fill_(float("inf"))
            print("ONSET", flush=True)


model = Tagger()
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
