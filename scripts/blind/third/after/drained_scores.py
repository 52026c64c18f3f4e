"""FIELD
source: own
mechanism: the same join, but a thread of the trainer empties the queue meanwhile; the scorer computes for two minutes and a half
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work
blame: none
twin: spawned_scores
"""
import multiprocessing as mp
import signal
import threading
import time

import torch


def score(queue):
    signal.alarm(300)
    end = time.monotonic() + 150
    while time.monotonic() < end:
        queue.put([(i, i * i % 97) for i in range(60_000)][::5])
    queue.put(None)


def drain(queue, rows):
    while (part := queue.get()) is not None:
        rows.append(len(part))


def score_all():
    queue, rows = mp.Queue(), []
    scorer = mp.Process(target=score, args=(queue,))
    scorer.start()
    reader = threading.Thread(target=drain, args=(queue, rows))
    reader.start()
    scorer.join()
    reader.join()
    return sum(rows)


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
        if step == 500:
            print("ONSET", flush=True)
            print(score_all(), flush=True)
