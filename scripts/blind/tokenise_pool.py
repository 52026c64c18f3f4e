"""FIELD
source: own (datasets.map style preprocessing on the main process of the node, as in many fine-tuning scripts)
mechanism: rank 0 tokenises the next corpus with two pool processes, rank 1 waits for the object broadcast
needs: cpu
ranks: 2
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: none
twin: none
"""
import collections
import multiprocessing as mp
import random
import time
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.distributed as dist
import torch.nn as nn

torch.set_num_threads(1)
MERGES = {(a, b): i for i, (a, b) in enumerate((a, b) for a in "etaoinshrdlu" for b in "etaoinshrdlucmfwyp")}


def encode_word(word):
    parts = list(word)
    while len(parts) > 1:
        ranked = [(MERGES.get((parts[i][-1], parts[i + 1][0]), 10**6), i) for i in range(len(parts) - 1)]
        rank, i = min(ranked)
        if rank == 10**6 or len(parts[i]) + len(parts[i + 1]) > 6:
            break
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


def tokenise_shard(job):
    seed, seconds = job
    rng, counts, started = random.Random(seed), collections.Counter(), time.time()
    while time.time() - started < seconds:
        line = ["".join(rng.choices("etaoinshrdlucmfwyp", k=rng.randint(2, 14))) for _ in range(400)]
        for word in line:
            counts.update(encode_word(word))
    return [hash(t) % 5000 for t, _ in counts.most_common(2000)]


def prepare(jobs):
    with ProcessPoolExecutor(2, mp_context=mp.get_context("spawn")) as pool:
        return [ids for part in pool.map(tokenise_shard, jobs) for ids in part]


def train(model, opt, ids, steps):
    for step in range(steps):
        x = ids[torch.randint(0, len(ids), (64, 16))]
        loss = nn.functional.cross_entropy(model(x[:, :-1]), x[:, -1])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if dist.get_rank() == 0:
        print(f"{steps} steps, loss {loss.item():.3f}", flush=True)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.EmbeddingBag(5000, 64), nn.Linear(64, 5000)))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for name, jobs, steps in [("warmup", [(0, 1.0)], 500), ("corpus", [(s, 19.0) for s in range(40)], 500)]:
        box = [None]
        if rank == 0:
            if len(jobs) > 1:
                print("ONSET", flush=True)
            box = [prepare(jobs)]
            print(name, len(box[0]), "ids", flush=True)
        dist.broadcast_object_list(box, src=0)
        train(model, opt, torch.tensor(box[0]), steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
