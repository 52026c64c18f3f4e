"""Look-alike of a held GIL: one LAPACK call of about a minute; it has released the GIL, and a logger thread runs on."""

import threading
import time

import stage
import torch


def logger():
    while True:
        time.sleep(0.1)
        sum(range(1000))


def whiten(features):
    return torch.linalg.svd(features)


def main():
    steps = stage.arguments().steps
    torch.set_num_threads(1)
    threading.Thread(target=logger, daemon=True).start()
    probe = torch.nn.Linear(512, 512)
    sgd = torch.optim.SGD(probe.parameters(), lr=0.01)
    for n in range(10**6):
        sgd.zero_grad()
        probe(torch.randn(64, 512)).mean().backward()
        sgd.step()
        if n % (steps * 20) == steps:
            stage.onset()
            whiten(torch.randn(4500, 4500))


main()
