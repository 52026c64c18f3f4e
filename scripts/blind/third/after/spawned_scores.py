"""FIELD
source: https://github.com/python/cpython/issues/73983
mechanism: two spawned scorers put their tables into one queue; the trainer joins both before it reads it
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_child, blocked_pipe, deadlocked_locks
blame: score_all (joins)
twin: drained_scores
"""
import multiprocessing as mp
import signal

import torch


def score(queue, rows):
    signal.alarm(300)
    queue.put([(i, i * 0.5, "row" * 4) for i in range(rows)])


def score_all(rows):
    queue = mp.Queue()
    scorers = [mp.Process(target=score, args=(queue, rows)) for _ in range(2)]
    for one in scorers:
        one.start()
    for one in scorers:
        one.join()
    return [queue.get() for _ in scorers]


if __name__ == "__main__":
    mp.set_start_method("spawn")
    signal.alarm(300)
    torch.set_num_threads(1)
    net = torch.nn.Linear(300, 300)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(10**6):
        x = torch.randn(300, 300)
        loss = (net(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(step, loss.item(), flush=True)
        if step == 500:
            print("ONSET", flush=True)
            score_all(20_000)
