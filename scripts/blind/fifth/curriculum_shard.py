"""FIELD
source: mosaicml/llm-foundry#716 (the trainer waits for a signal file that another process of the job writes when done)
mechanism: the trainer has used up shard 0 and polls for shard_1.bin; the packer, its child, still deduplicates and
    appends to shard_1.bin.partial, and renames it when it is complete
needs: none
ranks: 1
onset: printed
state: busy
cause: waiting_on_work
blame: none
twin: none
"""
import ctypes
import multiprocessing as mp
import os
import random
import signal
import tempfile
import time
import zlib

import numpy as np
import torch
from torch import nn

VOCAB, LENGTH = 256, 64


def shingle_hashes(doc, seeds):
    grams = {doc[i : i + 5] for i in range(len(doc) - 5)}
    return tuple(min(zlib.crc32(g, s) for g in grams) for s in seeds)


def pack_shards(folder, sizes):
    """MinHash-deduplicate documents and pack them, shard after shard."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    signal.alarm(300)
    rng, seeds, known = random.Random(5), range(64), set()
    for shard, documents in enumerate(sizes):
        final = os.path.join(folder, f"shard_{shard}.bin")
        with open(final + ".partial", "wb") as out:
            kept = 0
            while kept < documents:
                doc = bytes(rng.choice(b"etaoin shrdlu") for _ in range(rng.randint(300, 900)))
                bands = shingle_hashes(doc, seeds)
                keys = {hash((i, bands[i : i + 8])) for i in range(0, 64, 8)}
                if keys & known:
                    continue
                known |= keys
                kept += 1
                out.write(doc[: len(doc) // LENGTH * LENGTH])
                if kept % 8 == 0:
                    out.flush()
        os.replace(final + ".partial", final)


class ShardStream:
    def __init__(self, folder, poll=2.0):
        self.folder, self.poll, self.shard = folder, poll, 0

    def _wait_for(self, path):
        while not os.path.exists(path):
            time.sleep(self.poll)

    def shards(self):
        while True:
            path = os.path.join(self.folder, f"shard_{self.shard}.bin")
            if self.shard == 1:
                print("ONSET", flush=True)
            self._wait_for(path)
            yield np.fromfile(path, np.uint8).reshape(-1, LENGTH)
            self.shard += 1


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 48)
        layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True, dropout=0.0)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(48, VOCAB)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH - 1))

    def forward(self, ids):
        return self.head(self.body(self.embed(ids), mask=self.mask))


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        packer = mp.get_context("fork").Process(target=pack_shards, args=(folder, [30, 40_000]), daemon=True)
        packer.start()
        model = CharModel()
        opt = torch.optim.AdamW(model.parameters(), 1e-3)
        step = 0
        for rows in ShardStream(folder).shards():
            until = time.time() + 8  # the time that a shard lasts
            while time.time() < until:
                ids = torch.from_numpy(rows[np.random.randint(len(rows), size=16)]).long()
                loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                opt.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                step += 1
                if step % 20 == 0:
                    print(f"step={step} loss={loss.item():.3f} packer={'up' if packer.is_alive() else 'gone'}", flush=True)


if __name__ == "__main__":
    main()
