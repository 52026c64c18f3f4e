"""FIELD
source: own
mechanism: one large checkpoint is written once, compressed with LZMA chunk by chunk, which takes two minutes and a half; then training goes on
needs: none
ranks: 1
onset: printed
state: busy
cause: checkpointing, computing_on_host
blame: none
twin: tox_multitask
"""
import io
import lzma
import os
import signal
import tempfile
import time

import torch

signal.alarm(300)
torch.set_num_threads(1)


class LanguageModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(30_000, 256)
        self.rnn = torch.nn.GRU(256, 256, batch_first=True)
        self.output = torch.nn.Linear(256, 512)

    def forward(self, tokens):
        return self.output(self.rnn(self.embedding(tokens))[0])


def save_checkpoint(model, optimizer, path, seconds):
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    raw = buffer.getbuffer()
    end = time.monotonic() + seconds
    with lzma.open(path, "wb", preset=6) as file:
        for at in range(0, len(raw), 1 << 20):
            file.write(raw[at : at + (1 << 20)])
            if time.monotonic() > end:
                break


def main():
    model = LanguageModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    folder = tempfile.TemporaryDirectory()
    for step in range(10**6):
        tokens = torch.randint(0, 512, (8, 33))
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step == 120:
            print("ONSET", flush=True)
            save_checkpoint(model, optimizer, os.path.join(folder.name, "step120.pt.xz"), 150)


main()
