"""FIELD
source: own: hard-negative mining as in ANCE, where the index over the passages is rebuilt beside training
mechanism: a thread rebuilds the neighbour graph and keeps the index's lock meanwhile; the trainer asks for the next
    hard negatives and waits for that lock for minutes, until the graph is complete
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""
import heapq
import random
import signal
import threading
import time

import torch
import torch.nn.functional as F
from torch import nn

PASSAGES, DIM, NEIGHBOURS = 45_000, 32, 16


class PassageIndex:
    def __init__(self):
        self.lock = threading.RLock()
        self.vectors = []
        self.graph = []
        self.generation = 0

    def search(self, query, k, width=24):
        entry = random.randrange(len(self.graph))
        seen, best = {entry}, []
        frontier = [(-self._dot(query, self.vectors[entry]), entry)]
        while frontier and len(seen) < 60 * width:
            score, node = heapq.heappop(frontier)
            heapq.heappush(best, (-score, node))
            if len(best) > width:
                heapq.heappop(best)
            for other in self.graph[node]:
                if other not in seen:
                    seen.add(other)
                    heapq.heappush(frontier, (-self._dot(query, self.vectors[other]), other))
        return [n for _, n in heapq.nlargest(k, best)]

    @staticmethod
    def _dot(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    def rebuild(self, vectors):
        with self.lock:
            self.vectors, self.graph = [], []
            for vector in vectors:
                near = self.search(vector, NEIGHBOURS) if self.graph else []
                self.vectors.append(vector)
                self.graph.append(list(near))
                for other in near:
                    if len(self.graph[other]) < 2 * NEIGHBOURS:
                        self.graph[other].append(len(self.graph) - 1)
            self.generation += 1

    def negatives(self, queries, k=4):
        with self.lock:
            return [self.search(q, k) for q in queries]


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, DIM))
        self.passage = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, DIM))


def encode(towers, corpus):
    with torch.no_grad():
        return [row for part in corpus.split(512) for row in F.normalize(towers.passage(part), dim=-1).tolist()]


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    corpus = torch.randn(PASSAGES, 64)
    towers, index = Towers(), PassageIndex()
    opt = torch.optim.AdamW(towers.parameters(), 2e-4)
    index.rebuild(encode(towers, corpus[:300]))
    refresher, began, step = None, time.time(), 0
    while step < 100_000:
        ids = torch.randint(300, (8,))
        anchors = F.normalize(towers.query(corpus[ids] + 0.1 * torch.randn(8, 64)), dim=-1)
        hard = torch.tensor(index.negatives(anchors.tolist())).flatten()
        passages = F.normalize(towers.passage(torch.cat([corpus[ids], corpus[hard]])), dim=-1)
        loss = F.cross_entropy(anchors @ passages.T * 20, torch.arange(8))
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 5 == 0:
            print(f"step {step} nce {loss.item():.3f} index generation {index.generation}", flush=True)
        if refresher is None and time.time() - began > 8:
            snapshot = encode(towers, corpus)
            refresher = threading.Thread(target=index.rebuild, args=(snapshot,), name="ann-refresh", daemon=True)
            refresher.start()
            time.sleep(0.05)
            print("ONSET", flush=True)


if __name__ == "__main__":
    main()
