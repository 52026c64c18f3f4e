"""FIELD
source: pytorch/pytorch#42444 (torch.randperm stuck in a forked process when it ran in the parent before), also #89693
mechanism: the parent has used the OpenMP pool; the evaluation process that it forks each few epochs calls torch.randperm, which waits for pool threads that do not exist in the child; the trainer waits for its result
needs: none
ranks: 1
onset: printed
state: hung
cause: blocked_child, stuck_worker, unknown, deadlocked_locks
blame: draw_holdout ()
twin: none
"""

import multiprocessing as mp
import signal
import time

import torch
from torch import nn

ROWS = 60_000


def make_table(seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, 20, generator=gen)
    y = (x[:, :5].sum(1) > 0).long()
    return x, y


class Evaluator:
    """Scores a snapshot of the model in a process of its own, so that training code stays simple."""

    def __init__(self, table):
        self.table = table
        self.context = mp.get_context("fork")

    def draw_holdout(self, share):
        order = torch.randperm(ROWS)
        return order[: int(ROWS * share)]

    def _main(self, model, results):
        signal.alarm(300)
        x, y = self.table
        with torch.no_grad():
            picked = self.draw_holdout(0.2)
            hits = [(model(x[i]).argmax(1) == y[i]).float().mean().item() for i in picked.split(500)]
        results.put(sum(hits) / len(hits))

    def score(self, model):
        results = self.context.Queue()
        child = self.context.Process(target=self._main, args=(model, results), daemon=True, name="evaluator")
        child.start()
        value = results.get()
        child.join()
        return value


def epoch_of(model, opt, table, order, limit=150):
    x, y = table
    for index in order.split(128)[:limit]:
        loss = nn.functional.cross_entropy(model(x[index]), y[index])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        time.sleep(0.005)
    return loss.item()


def main():
    signal.alarm(300)
    torch.set_num_threads(2)  # what the node gives us
    torch.manual_seed(3)
    begin = time.monotonic()
    table = make_table(11)
    model = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 2))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    evaluator = Evaluator(table)
    epoch = 0
    while True:
        loss = epoch_of(model, opt, table, torch.randperm(ROWS))
        print(f"[{time.monotonic() - begin:6.1f}s] epoch {epoch} train loss {loss:.4f}", flush=True)
        epoch += 1
        if time.monotonic() - begin > 9:
            print("ONSET", flush=True)
            print(f"epoch {epoch} holdout accuracy {evaluator.score(model):.3f}", flush=True)


if __name__ == "__main__":
    main()
