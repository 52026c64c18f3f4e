"""A DataLoader worker is stopped (SIGSTOP); the trainer waits for its batch, and nothing tells it why."""

import os
import signal
import threading
import time

import stage
import torch
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, halt_at):
        self.halt_at = halt_at

    def __len__(self):
        return 5_000_000

    def __getitem__(self, i):
        if i == self.halt_at * 64:
            stage.onset()
            os.kill(os.getpid(), signal.SIGSTOP)
        return torch.sin(torch.arange(100) * float(i % 50))


def train_forever(strength, halt_at):
    loader = DataLoader(Waves(halt_at), 64, num_workers=1 if strength == "loud" else 3)
    rnn = torch.nn.RNN(1, 64, batch_first=True)
    nadam = torch.optim.NAdam(rnn.parameters())
    for wave in loader:
        nadam.zero_grad()
        rnn(wave[:, :, None])[0].std().backward()
        nadam.step()


def drumbeat():
    while True:
        time.sleep(0.5)
        print("boom", flush=True)


flags = stage.arguments()
torch.set_num_threads(1)
if flags.strength == "masked":
    threading.Thread(target=drumbeat, daemon=True).start()
train_forever(flags.strength, flags.steps)
