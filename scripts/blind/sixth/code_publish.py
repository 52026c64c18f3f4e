"""FIELD
source: own: two-tower retrieval model that publishes a product-quantised index of its items between epochs
mechanism: after an epoch the trainer saves the item vectors and awaits a child process that learns the codebooks (k-means in numpy) and writes the codes: minutes of one core in the child, silence in the trainer, which sits in its event loop
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work,checkpointing,computing_on_host
blame: none
twin: none
"""
import asyncio
import os
import pathlib
import signal
import sys
import tempfile
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

ITEMS, DIM, PARTS, CODES = 60_000, 64, 16, 256


def kmeans(x, k, iterations, rng):
    centres = x[rng.choice(len(x), k, replace=False)]
    for _ in range(iterations):
        nearest = np.empty(len(x), np.int64)
        for begin in range(0, len(x), 4000):
            part = x[begin:begin + 4000]
            distance = (centres**2).sum(1) - 2 * part @ centres.T
            nearest[begin:begin + 4000] = distance.argmin(1)
        for c in range(k):
            mine = x[nearest == c]
            if len(mine):
                centres[c] = mine.mean(0)
    return centres, nearest


def quantise(source, target, iterations):
    signal.alarm(310)
    vectors = np.load(source)
    rng = np.random.default_rng(0)
    books, codes = [], []
    for part in np.split(vectors, PARTS, axis=1):
        book, code = kmeans(part.copy(), CODES, iterations, rng)
        books.append(book)
        codes.append(code.astype(np.uint8))
    np.savez_compressed(target, books=np.stack(books), codes=np.stack(codes, 1))


async def publish(vectors, folder, epoch, iterations):
    source, target = folder / f"items-{epoch}.npy", folder / f"index-{epoch}.npz"
    np.save(source, vectors)
    child = await asyncio.create_subprocess_exec(
        sys.executable, __file__, str(source), str(target), str(iterations), stdin=asyncio.subprocess.DEVNULL)
    if await child.wait():
        raise RuntimeError("no index")
    print(f"epoch {epoch}: index of {target.stat().st_size >> 10} KiB", flush=True)


async def train(folder):
    import torch
    from torch import nn

    torch.set_num_threads(1)
    users = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, DIM))
    items = nn.Embedding(ITEMS, DIM, sparse=True)
    dense, sparse = torch.optim.Adam(users.parameters(), 1e-3), torch.optim.SparseAdam(items.parameters(), 1e-2)
    taste = torch.randn(32, 50)
    for epoch in range(100):
        until, step = time.monotonic() + (8 if epoch < 2 else 15), 0
        while time.monotonic() < until:
            u = torch.randn(128, 32)
            liked = (u @ taste).argmax(1) * (ITEMS // 50) + torch.randint(0, ITEMS // 50, (128,))
            loss = nn.functional.cross_entropy(users(u) @ items(liked).T, torch.arange(128))
            for opt in (dense, sparse):
                opt.zero_grad()
            loss.backward()
            for opt in (dense, sparse):
                opt.step()
            step += 1
            if step % 100 == 0:
                await asyncio.sleep(0)
        print(f"epoch {epoch}: {step} steps, loss {loss.item():.3f}", flush=True)
        if epoch >= 2:
            print("ONSET", flush=True)
        await publish(items.weight.detach().numpy(), folder, epoch, 1 if epoch < 2 else 400)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        quantise(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        signal.alarm(300)
        with tempfile.TemporaryDirectory() as place:
            asyncio.run(train(pathlib.Path(place)))
