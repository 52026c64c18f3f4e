"""A multiprocessing.Pool worker is killed in the middle of a task (as the OOM killer would); ``pool.map`` waits for
ever.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time

import stage
import torch


def tokenize(document: int) -> list[float]:
    if document == 77:
        stage.onset()
        os.kill(os.getpid(), signal.SIGKILL)
    return [float((document * k) % 31) for k in range(256)]


def spinner() -> None:
    for tick in iter(int, 1):
        sys.stderr.write("\r" + "|/-\\"[tick % 4])
        time.sleep(0.25)


if __name__ == "__main__":
    options = stage.arguments()
    torch.set_num_threads(1)
    pool = multiprocessing.Pool(3)
    if options.strength == "masked":
        threading.Thread(target=spinner, daemon=True).start()
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1))
    opt = torch.optim.AdamW(model.parameters())
    for epoch in range(10_000):
        first = 77 if epoch == options.steps else 100
        batch = torch.tensor(pool.map(tokenize, range(first, first + 32), chunksize=4))
        opt.zero_grad()
        model(batch).mean().backward()
        opt.step()
