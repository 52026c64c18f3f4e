"""FIELD
source: own
mechanism: the tokenised corpus of the first stage is packed as .xz in a background thread, and the training thread waits for the result before the second stage; the compressor works all the time and ends
needs: cpu
ranks: 1
onset: printed
state: busy
cause: waiting_on_work, computing_on_host
blame: pack (pack_release.py)
twin: none
"""
import hashlib
import lzma
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)


def tokens(shard, n):
    rng = np.random.default_rng(shard)
    return (rng.zipf(1.25, size=n) % 30000).astype(np.uint16)


def pack(path, shards):
    digest, begun = hashlib.sha256(), time.time()
    with lzma.open(path, "wb", preset=9 | lzma.PRESET_EXTREME) as archive:
        for shard in range(shards):
            block = tokens(shard, 1 << 20).tobytes()
            digest.update(block)
            archive.write(block)
            if time.time() - begun > 400:
                break
            if shard % 20 == 0:
                print(f"packing {shard}/{shards}", flush=True)
    return path.stat().st_size, digest.hexdigest()


class Model(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Embedding(30000, dim)
        self.mix = nn.Sequential(nn.Linear(8 * dim, 256), nn.ReLU(), nn.Linear(256, 512))

    def forward(self, ids):
        return self.mix(self.embed(ids).flatten(1))


def stage(model, opt, seconds, shard):
    stream = torch.from_numpy(tokens(shard, 400000).astype(np.int64))
    started, step = time.time(), 0
    while time.time() - started < seconds:
        at = torch.randint(0, len(stream) - 9, (128,))
        window = stream[at[:, None] + torch.arange(9)]
        loss = nn.functional.cross_entropy(model(window[:, :8]), window[:, 8] % 512)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 50 == 0:
            print(f"shard {shard} step {step} loss {loss.item():.3f}", flush=True)


def main():
    model = Model()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    out = Path(tempfile.mkdtemp(prefix="release_")) / "corpus.xz"
    with ThreadPoolExecutor(max_workers=1) as pool:
        stage(model, opt, 10, 0)
        print("ONSET", flush=True)
        size, digest = pool.submit(pack, out, 280).result()
        print(f"packed {size / 1e6:.0f} MB {digest[:12]}", flush=True)
        out.unlink()
        stage(model, opt, 20, 1)


if __name__ == "__main__":
    main()
