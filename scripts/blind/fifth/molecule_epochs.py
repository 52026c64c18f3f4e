"""FIELD
source: python/cpython#115634 (ProcessPoolExecutor hangs with max_tasks_per_child: workers that reach the limit are not replaced)
mechanism: descriptors are computed in a process pool whose workers retire after 200 tasks against a leak of the chemistry library; in the third epoch all workers have retired, Python 3.11 starts no new ones, and the trainer waits for futures that nobody computes
needs: none
ranks: 1
onset: printed
state: hung
cause: dead_worker, unknown
blame: none
twin: none
"""
import json
import logging
import multiprocessing as mp
import os
import random
import signal
import tempfile
from concurrent.futures import ProcessPoolExecutor

import numpy as np

log = logging.getLogger("descriptors")
WORKERS, RETIRE_AFTER, PER_EPOCH = 2, 200, 160


def quiet_worker():
    signal.alarm(300)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def descriptors(smiles):
    """A hashed fingerprint of the paths of a molecule, with a power iteration on its adjacency."""
    size, bits = len(smiles), np.zeros(256, dtype=np.float32)
    adjacency = np.eye(size, k=1) + np.eye(size, k=-1)
    vector = np.ones(size)
    for radius in range(1, 60):
        vector = adjacency @ vector
        vector /= np.linalg.norm(vector) + 1e-9
        for at in range(size - radius % 7):
            bits[hash((smiles[at : at + radius % 7 + 1], radius)) % 256] += abs(vector[at])
    return bits / (bits.max() + 1e-6), float(vector @ adjacency @ vector)


def random_smiles(rng):
    return "".join(rng.choice(["C", "N", "O", "c1ccccc1", "(=O)", "F", "S"]) for _ in range(rng.randint(12, 40)))


class Regressor:
    def __init__(self):
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        self.net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.SiLU(), torch.nn.Linear(512, 256), torch.nn.SiLU(), torch.nn.Linear(256, 1))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def fit_batch(self, rows, passes=12):
        torch = self.torch
        x, y = torch.from_numpy(np.stack([r[0] for r in rows])), torch.tensor([r[1] for r in rows])
        for _ in range(passes):
            loss = torch.nn.functional.huber_loss(self.net(x).squeeze(1), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


def run():
    rng = random.Random(5)
    model, computed, batch = Regressor(), 0, []
    path = os.path.join(tempfile.mkdtemp(prefix="mol_"), "metrics.jsonl")
    with open(path, "w") as metrics, ProcessPoolExecutor(WORKERS, mp.get_context("spawn"), quiet_worker, max_tasks_per_child=RETIRE_AFTER) as pool:
        for epoch in range(10_000):
            pending = [pool.submit(descriptors, random_smiles(rng)) for _ in range(PER_EPOCH)]
            for future in pending:
                batch.append(future.result())
                computed += 1
                if computed == WORKERS * RETIRE_AFTER:
                    print("ONSET", flush=True)
                if len(batch) == 10:
                    loss = model.fit_batch(batch, passes=80)
                    metrics.write(json.dumps({"epoch": epoch, "computed": computed, "loss": loss}) + "\n")
                    metrics.flush()
                    batch.clear()
            log.info("epoch %d: huber %.4f", epoch, loss)


if __name__ == "__main__":
    signal.alarm(300)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(asctime)s %(message)s")
    run()
