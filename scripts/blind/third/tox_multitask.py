"""FIELD
source: https://github.com/deepchem/deepchem/issues/458
mechanism: the whole model with its optimizer is saved after every few short steps, and more time goes into saving than into training
needs: none
ranks: 1
onset: printed
state: slow
cause: slow_checkpoint
blame: checkpoint (saves), fit_generator (calls it)
twin: none
"""
import os
import signal
import tempfile

import torch

signal.alarm(300)
torch.set_num_threads(1)
folder = tempfile.TemporaryDirectory()


class MultitaskClassifier:
    def __init__(self, tasks=12, features=1024):
        self.net = torch.nn.Sequential(
            torch.nn.Linear(features, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.ReLU(),
            torch.nn.Linear(2048, tasks),
        )
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.step = 0

    def checkpoint(self):
        path = os.path.join(folder.name, f"model-{self.step % 2}.ckpt")
        torch.save({"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}, path)
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    def fit_generator(self, batches):
        for x, y in batches:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(self.net(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            if self.step % 2 == 0:
                self.checkpoint()
            if self.step == 10:
                print("ONSET", flush=True)
            if self.step % 10 == 0:
                print("step", self.step, "loss", loss.item(), flush=True)


def default_generator():
    while True:
        yield (torch.rand(16, 1024) < 0.05).float(), (torch.rand(16, 12) < 0.1).float()


MultitaskClassifier().fit_generator(default_generator())
