"""Training has ended; an atexit handler flushes to an uploader whose acknowledgement never comes."""

import atexit
import threading

import stage
import torch


class Uploader:
    def __init__(self):
        self.pending, self.acknowledged = [], threading.Event()
        atexit.register(self.flush)

    def add(self, item):
        self.pending.append(item)

    def flush(self):
        stage.onset()
        while self.pending:
            self.acknowledged.wait()
            self.pending.clear()


def finetune(steps):
    uploader = Uploader()
    lora = torch.nn.Sequential(torch.nn.Linear(1024, 8, bias=False), torch.nn.Linear(8, 1024, bias=False))
    adam = torch.optim.AdamW(lora.parameters())
    for n in range(steps):
        adam.zero_grad()
        lora(torch.randn(128, 1024)).square().mean().backward()
        adam.step()
        uploader.add(n)


torch.set_num_threads(1)
finetune(stage.arguments().steps)
