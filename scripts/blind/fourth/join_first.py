"""FIELD
source: the guide of multiprocessing ("joining processes that use queues") and the reports that quote it
mechanism: every few rounds a child process evaluates and puts its predictions into a queue; the parent joins the child before it gets them; as soon as they no longer fit into the pipe, the child cannot end and the parent does not read
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_child, blocked_pipe, stuck_worker
blame: evaluate_in_child (join_first.py), predict (join_first.py), _feed (queues.py)
twin: none
"""

import multiprocessing as mp
import signal

import numpy as np
import torch

signal.alarm(300)
torch.set_num_threads(1)


def predict(weights, size, results):
    signal.alarm(300)
    torch.set_num_threads(1)
    x = np.random.default_rng(0).standard_normal((size, 128)).astype("float32")
    results.put(x @ weights)


def evaluate_in_child(net, size):
    context = mp.get_context("fork")
    results = context.Queue()
    child = context.Process(target=predict, args=(net.weight.detach().numpy().T, size, results))
    child.start()
    child.join()
    return results.get()


if __name__ == "__main__":
    net = torch.nn.Linear(128, 16)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for round_number in range(10**6):
        for _ in range(400):
            x = torch.randn(256, 128)
            loss = (net(x) - x[:, :16]).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        size = 512 if round_number < 20 else 50_000
        if size > 512:
            print("ONSET", flush=True)
        scores = evaluate_in_child(net, size)
        print("round", round_number, "eval", float(np.square(scores).mean()), flush=True)
