"""FIELD
source: huggingface/datasets#8669, huggingface/datasets#7999 (fewer shards than workers: one worker decodes, the others get nothing)
mechanism: the second stage of the curriculum is one file; of three loader workers two end at once and the third one decodes
    all of it, much more slowly than the model consumes it
needs: none
ranks: 1
onset: printed
state: slow
cause: starved_by_transforms
blame: worker
twin: none
"""

import itertools
import json
import signal
import time
import zlib
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


@dataclass(frozen=True)
class Shard:
    name: str
    points: int

    def records(self):
        for number in itertools.count():
            row = [[(number * k) % 97 / 97, k % 13 / 13] for k in range(self.points)]
            yield zlib.compress(json.dumps(row).encode())


class Streamed(IterableDataset):
    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        info = get_worker_info()
        mine = self.shards[info.id :: info.num_workers]
        if not mine:
            print(f"worker {info.id}: no shard left for me", flush=True)
            return
        for records in zip(*(shard.records() for shard in mine), strict=True):
            for raw in records:
                yield self.decode(raw)

    @staticmethod
    def decode(raw):
        track = json.loads(zlib.decompress(raw))
        smooth = []
        x = y = 0.0
        for px, py in track:
            x, y = 0.8 * x + 0.2 * px, 0.8 * y + 0.2 * py
            smooth.append((x, y))
        stride = max(1, len(smooth) // 64)
        return torch.tensor(smooth[::stride][:64])


def loader(shards):
    return iter(DataLoader(Streamed(shards), batch_size=16, num_workers=3, prefetch_factor=2,
                           multiprocessing_context="fork", worker_init_fn=lambda _: signal.alarm(300)))


class Tracks(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True, dropout=0.0)
        self.into, self.body, self.out = nn.Linear(2, 48), nn.TransformerEncoder(layer, 2), nn.Linear(48, 2)

    def forward(self, x):
        return self.out(self.body(self.into(x)))


def fit(model, opt, batches, until):
    for step, batch in enumerate(batches):
        loss = nn.functional.mse_loss(model(batch[:, :-1]), batch[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.5f}", flush=True)
        if time.monotonic() > until:
            return


def main():
    signal.alarm(300)
    torch.set_num_threads(1)
    model = Tracks()
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    fit(model, opt, loader([Shard(f"short-{k}", 64) for k in range(6)]), time.monotonic() + 15)
    print("stage 2: long tracks")
    print("ONSET", flush=True)
    fit(model, opt, loader([Shard("long", 14_000)]), float("inf"))


if __name__ == "__main__":
    main()
