"""FIELD
source: https://github.com/ethereum/py-evm/issues/940
mechanism: an exporter process hands back embeddings through a queue; the trainer waits for its end with join, and takes them after that
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_child, blocked_pipe, deadlocked_locks
blame: export (joins)
twin: drained_scores
"""
import multiprocessing as mp
import signal

import torch


class Exporter(mp.get_context("fork").Process):
    def __init__(self, weights, out):
        super().__init__()
        self.weights, self.out = weights, out

    def run(self):
        signal.alarm(300)
        for row in self.weights:
            self.out.put(row.tobytes())


def export(table):
    out = mp.get_context("fork").Queue()
    exporter = Exporter(table.weight.detach().numpy(), out)
    exporter.start()
    exporter.join()
    return [out.get() for _ in range(len(table.weight))]


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    table = torch.nn.Embedding(5000, 128)
    optimizer = torch.optim.Adagrad(table.parameters(), lr=0.1)
    for step in range(10**6):
        a, b = table(torch.randint(0, 5000, (2, 4096)))
        loss = (a - b).norm(dim=1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item(), flush=True)
        if step == 300:
            print("ONSET", flush=True)
            print(len(export(table)), flush=True)


main()
