"""FIELD
source: https://github.com/jonatanjacobsson/ifcpipeline/pull/28
mechanism: each evaluation hands its report back through a multiprocessing queue; the parent joins the child before it reads the queue, and the first report over 64 KiB leaves both waiting
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_child, blocked_pipe
blame: run_isolated (the join), report_body (never reached)
twin: none
"""
import multiprocessing as mp
import signal
import time

import torch
from torch import nn

signal.alarm(300)
torch.set_num_threads(1)
context = mp.get_context("fork")


def report_body(results, rows):
    signal.alarm(300)
    results.put([{"id": i, "score": float(i) / 7, "note": "clash between beam and duct"} for i in range(rows)])


def run_isolated(rows):
    results = context.Queue()
    child = context.Process(target=report_body, args=(results, rows))
    child.start()
    child.join()
    return results.get()


def main():
    net = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for step in range(100000):
        x = torch.randn(512, 128)
        loss = (net(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 60 == 0:
            print("step", step, "loss", round(loss.item(), 4), "rows", len(run_isolated(40)), flush=True)
        if step == 420:
            print("ONSET", flush=True)
            run_isolated(20000)
        time.sleep(0.005)


if __name__ == "__main__":
    main()
