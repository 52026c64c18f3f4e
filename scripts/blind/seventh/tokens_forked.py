"""FIELD
source: awslabs/graphrag-toolkit#418 (a forked pool worker inherits a lock that a thread of the parent holds at the fork)
mechanism: a thread writes the token cache to disk under its lock from time to time; each round forks a pool that
    tokenises; once the pool is forked while the writer holds the lock, and the first cache lookup in the child waits
    for ever for a lock whose owner does not exist there; the parent waits for the result of the map
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks, stuck_worker, blocked_child
blame: worker
twin: none
"""
import collections
import json
import multiprocessing
import os
import random
import signal
import tempfile
import threading
import time

import torch
from torch import nn

WORDS = ["".join(random.Random(i).choices("abcdefghij", k=5)) for i in range(4000)]


class TokenCache:
    def __init__(self, path):
        self.path, self.table, self.lock = path, {}, threading.Lock()

    def lookup(self, word):
        with self.lock:
            if word not in self.table:
                self.table[word] = len(self.table) + 1
            return self.table[word]

    def dump(self):
        with self.lock:
            with open(self.path + ".part", "w") as out:
                for word, number in self.table.items():
                    out.write(json.dumps([word, number]) + "\n")
                out.flush()
                os.fsync(out.fileno())
            os.replace(self.path + ".part", self.path)


CACHE = TokenCache(os.path.join(tempfile.mkdtemp(prefix="tok_"), "cache.jsonl"))


def start_child():
    signal.alarm(300)
    torch.set_num_threads(1)


def encode(line):
    return [CACHE.lookup(word) for word in line.split()]


def writer(due, started):
    while True:
        due.wait()
        due.clear()
        for _ in range(40):  # every snapshot is verified and written again if torn
            started.set()
            CACHE.dump()


class BagClassifier(nn.Module):
    def __init__(self, size=5000, width=64):
        super().__init__()
        self.bag = nn.EmbeddingBag(size, width, mode="mean")
        self.net = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, tokens):
        return self.net(self.bag(tokens))


def corpus(round_number, size=256):
    rng = random.Random(round_number)
    return [" ".join(rng.choices(WORDS, k=24)) for _ in range(size)]


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    model = BagClassifier()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    due, started = threading.Event(), threading.Event()
    threading.Thread(target=writer, args=(due, started), name="cache-writer", daemon=True).start()
    context, recent = multiprocessing.get_context("fork"), collections.deque(maxlen=50)
    began, number = time.monotonic(), 0
    while True:
        number += 1
        for word in WORDS[:200]:
            CACHE.lookup(word)
        if time.monotonic() - began > 16:
            due.set()
            started.wait()
            while not CACHE.lock.locked():
                pass
            print("ONSET", flush=True)
        with context.Pool(1, initializer=start_child) as pool:
            lines = pool.map(encode, corpus(number), chunksize=64)
        tokens = torch.tensor(lines).clamp(max=4999)
        labels = (tokens.float().mean(1) > tokens.float().mean()).long()
        for batch in torch.randperm(len(tokens)).split(32):
            for _ in range(4):
                loss = nn.functional.cross_entropy(model(tokens[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                recent.append(loss.item())
                time.sleep(0.01)
        print(f"round {number} loss {sum(recent) / len(recent):.4f}", flush=True)


if __name__ == "__main__":
    main()
