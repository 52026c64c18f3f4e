"""FIELD
source: https://github.com/python/cpython/issues/73983 and https://docs.python.org/3/library/multiprocessing.html (joining processes that use queues)
mechanism: at interpreter exit the parent joins the feeder thread of a multiprocessing.Queue whose reader has stopped reading; the feeder is blocked in write to the full pipe
needs: cpu
ranks: 1
onset: printed
state: hung
cause: hung_at_exit, blocked_pipe
blame: none
twin: none
"""
import multiprocessing as mp

import torch
import torch.nn as nn


def collect(q, done):
    total = 0.0
    while not done.is_set():
        tag, value = q.get()
        if tag == "loss":
            total += value
    print("sum of losses", total, flush=True)


def main():
    torch.set_num_threads(1)
    q, done = mp.Queue(), mp.Event()
    collector = mp.Process(target=collect, args=(q, done), daemon=True)
    collector.start()
    model = nn.Sequential(nn.Linear(100, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(2500):
        x = torch.randn(64, 100)
        loss = nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        q.put(("loss", loss.item()))
        if step % 500 == 0:
            print("step", step, "loss", loss.item(), flush=True)
    done.set()
    with torch.no_grad():
        x = torch.randn(4000, 100)
        q.put(("last", 0.0))
        for part in model(x).split(1000):
            q.put(("predictions", part.numpy()))
    print("training finished", loss.item(), flush=True)
    print("ONSET", flush=True)


if __name__ == "__main__":
    main()
