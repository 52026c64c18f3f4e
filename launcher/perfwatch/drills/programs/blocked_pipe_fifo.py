"""A worker opens a named pipe that a decompressor should feed; the decompressor was never started, so ``open`` never
returns.
"""

import os
import tempfile
import threading
import time

import stage
import torch
from torch.utils.data import DataLoader, Dataset


class Decompressed(Dataset):
    def __init__(self, fifo, from_step, only_odd):
        self.fifo, self.from_step, self.only_odd = fifo, from_step, only_odd

    def __len__(self):
        return 10**6

    def __getitem__(self, n):
        if n < self.from_step or (self.only_odd and n % 2 == 0):
            return torch.randn(8, 128)
        stage.onset()
        with open(self.fifo, "rb") as plain:
            return torch.frombuffer(bytearray(plain.read(4096)), dtype=torch.float32).view(8, 128)


def say_hello():
    while True:
        print("hello", flush=True)
        time.sleep(0.5)


def work(options, fifo):
    torch.set_num_threads(1)
    if options.strength == "masked":
        threading.Thread(target=say_hello, daemon=True).start()
    head = torch.nn.MultiheadAttention(128, 2)
    opt = torch.optim.SGD(head.parameters(), lr=0.1)
    for x in DataLoader(Decompressed(fifo, options.steps, options.strength == "quiet"), num_workers=2):
        opt.zero_grad()
        head(x[0], x[0], x[0])[0].mean().backward()
        opt.step()


with tempfile.TemporaryDirectory() as folder:
    os.mkfifo(f"{folder}/train.jsonl")
    work(stage.arguments(), f"{folder}/train.jsonl")
