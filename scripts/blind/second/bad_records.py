"""FIELD
source: own
mechanism: one record in thirty is damaged; reading it raises, a warning is printed and another record is taken in its place; this costs next to nothing and the training goes on
needs: cpu
ranks: 1
onset: printed
state: healthy
cause: cpu_training, balanced
blame: none
twin: none
"""
import logging
import random
import time
import zlib

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
log = logging.getLogger("records")


class RecordFile:
    def __init__(self, n=1500):
        rng = np.random.default_rng(0)
        self.records = []
        for i in range(n):
            field = rng.normal(size=(1, 12, 12)).astype(np.float32).repeat(4, 1).repeat(4, 2)
            packed = bytearray(zlib.compress(field.tobytes(), 1))
            if i >= 500 and i % 30 == 7:
                packed[len(packed) // 2] ^= 0x5A
            self.records.append(bytes(packed))
        self.rejected = 0

    def read(self, i):
        return np.frombuffer(zlib.decompress(self.records[i]), dtype=np.float32).reshape(1, 48, 48)

    def batch(self, n, upto):
        out = []
        while len(out) < n:
            i = random.randrange(upto)
            try:
                out.append(self.read(i))
            except zlib.error as exc:
                self.rejected += 1
                log.warning("record %d: %s, taking another one", i, exc)
        return torch.from_numpy(np.stack(out))


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1))

    def forward(self, x):
        return self.up(self.down(x))


def main():
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    data, net = RecordFile(), AutoEncoder()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    started, step, upto = time.time(), 0, 500
    while time.time() - started < 600:
        if upto == 500 and time.time() - started > 9:
            upto = len(data.records)
            print("ONSET", flush=True)
        x = data.batch(48, upto)
        loss = nn.functional.mse_loss(net(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} rejected {data.rejected}", flush=True)


if __name__ == "__main__":
    main()
