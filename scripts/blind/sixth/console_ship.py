"""FIELD
source: own (a job whose console goes to a log collector of limited rate)
mechanism: the console is a pipe to a shipper child that forwards some 40 KB/s; from the second phase on each step logs a table
    of all tensors, the pipe is always full and the trainer waits in write
needs: none
ranks: 1
onset: printed
state: slow
cause: slow_output
blame: main
twin: none
"""

import logging
import os
import signal
import sys
import time

import torch
from torch import nn

log = logging.getLogger("train")


def start_shipper(rate=40_000):
    """Returns a text file whose content a child forwards at that many bytes a second."""
    out, into = os.pipe()
    if os.fork() == 0:
        signal.alarm(300)
        os.close(into)
        with open(os.devnull, "wb") as collector:
            while chunk := os.read(out, 2048):
                collector.write(chunk)
                time.sleep(len(chunk) / rate)
        os._exit(0)
    os.close(out)
    return os.fdopen(into, "w", buffering=1)


class Mixer(nn.Module):
    def __init__(self, depth=6, tokens=32, width=64):
        super().__init__()
        self.tokens = nn.ModuleList(nn.Linear(tokens, tokens) for _ in range(depth))
        self.channels = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 20)

    def forward(self, x):
        for across, along in zip(self.tokens, self.channels, strict=True):
            x = x + across(x.mT).mT.relu()
            x = x + along(x).relu()
        return self.out(x.mean(1))


def table(model):
    for name, parameter in model.named_parameters():
        grad = parameter.grad.flatten()
        head = " ".join(f"{v:+.3e}" for v in grad[:64].tolist())
        yield f"{name:<24} mean {grad.mean():+.2e} max {grad.abs().max():.2e} {head}"


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    log.addHandler(logging.StreamHandler(start_shipper()))
    log.setLevel(logging.INFO)
    model = Mixer()
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5000)
    start = time.monotonic()
    for step in range(1_000_000):
        if log.level == logging.INFO and time.monotonic() - start > 15:
            log.setLevel(logging.DEBUG)
            print("phase 2: with the table of gradients", file=sys.stdout)
            print("ONSET", flush=True)
        x, y = torch.randn(64, 32, 64), torch.randint(20, (64,))
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        if log.isEnabledFor(logging.DEBUG):
            for row in table(model):
                log.debug(row)
        opt.step()
        schedule.step()
        if step % 20 == 0:
            log.info("step %d loss %.4f", step, loss.item())


if __name__ == "__main__":
    main()
