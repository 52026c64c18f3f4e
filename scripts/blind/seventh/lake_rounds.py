"""FIELD
source: own (the usual "the first rank on the machine prepares the cache, the others wait for its lock")
mechanism: three ranks move on to the second survey, whose cache is missing; the one that gets the flock builds it in Python for
    more than two minutes, and the others wait in flock for the lock and will then find the cache
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: busy
cause: waiting_on_work, computing_on_host, starting
blame: none
twin: none
"""
import contextlib
import ctypes
import fcntl
import multiprocessing as mp
import os
import pathlib
import pickle
import random
import signal
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

WORDS = [a + b + c for a in "bdgklmnprst" for b in "aeiou" for c in "lnrst"]


@contextlib.contextmanager
def exclusively(path):
    with open(path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def stems(word):
    """All the prefixes that still carry meaning; slow, and correct."""
    return [word[:n] for n in range(2, len(word) + 1)]


def build(survey, notes, vocabulary):
    """Observers' notes to numbers: a pass to count, a pass to encode."""
    rng, counts, encoded = random.Random(survey), {}, []
    texts = [[rng.choice(WORDS) + rng.choice(WORDS) for _ in range(60)] for _ in range(notes)]
    for text in texts:
        for word in text:
            for stem in stems(word):
                counts[stem] = counts.get(stem, 0) + 1
    ranked = {w: i for i, (w, _) in enumerate(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:vocabulary])}
    for text in texts:
        encoded.append([max((ranked.get(s, 0) for s in stems(w)), default=0) for w in text])
    return encoded


def survey_cache(folder, survey, parts):
    path = folder / f"survey{survey}.pickle"
    with exclusively(folder / f"survey{survey}.lock"):
        if not path.exists():
            if survey:
                print("ONSET", flush=True)
            rows = []
            for part in range(parts):
                rows += build(1000 * survey + part, 2500, 3000)[:400]
            path.with_suffix(".tmp").write_bytes(pickle.dumps(rows))
            os.replace(path.with_suffix(".tmp"), path)
        return torch.tensor(pickle.loads(path.read_bytes()))


class NoteModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3000, 48)
        self.rnn = nn.LSTM(48, 64, batch_first=True)
        self.clear = nn.Linear(64, 3000)

    def forward(self, tokens):
        return self.clear(self.rnn(self.table(tokens))[0][:, -1])


def train(rank, model, optimizer, notes, seconds):
    born, step = time.monotonic(), 0
    while True:
        rows = notes[torch.randint(0, len(notes), (8,))]
        loss = nn.functional.cross_entropy(model(rows[:, :20]), rows[:, 20])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        go = torch.tensor([int(time.monotonic() - born < seconds)])
        dist.broadcast(go, 0)
        if not go.item():
            break
    if rank == 0:
        print(f"{step} steps, loss {loss.item():.3f}", flush=True)


def main(rank, folder):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 3), rank=rank, world_size=3)
    model = nn.parallel.DistributedDataParallel(NoteModel())
    optimizer = torch.optim.Adagrad(model.parameters(), 0.05)
    train(rank, model, optimizer, survey_cache(folder, 0, 1), 16)
    for survey in range(1, 50):
        train(rank, model, optimizer, survey_cache(folder, survey, 85), 30)


def other(rank, folder):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    main(rank, folder)


if __name__ == "__main__":
    signal.alarm(300)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="lake_"))
    for rank in (1, 2):
        mp.get_context("fork").Process(target=other, args=(rank, folder), daemon=True).start()
    main(0, folder)
