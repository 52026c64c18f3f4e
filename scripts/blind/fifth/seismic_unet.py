"""FIELD
source: own: rank-0 snapshots every few steps "to be safe", with checksum and fsync, between two barriers (cf. allenai/OLMo-core#428 on the cost of checkpoint barriers)
mechanism: every 5 steps rank 0 serialises, hashes, writes and fsyncs all weights and optimizer state, keeps the last 3; the others wait in the barrier
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: slow
cause: slow_checkpoint,straggling_rank
blame: rank 0
twin: none
"""
import gzip
import hashlib
import io
import os
import signal
import socket
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def block(i, o):
    return nn.Sequential(nn.Conv1d(i, o, 5, padding=2), nn.GroupNorm(4, o), nn.SiLU())


class UNet1d(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.mid, self.up = block(3, 32), block(32, 256), block(288, 32)
        self.deep = nn.Sequential(block(256, 256), block(256, 256))
        self.head = nn.Conv1d(32, 1, 1)

    def forward(self, x):
        a = self.down(x)
        b = self.mid(nn.functional.max_pool1d(a, 4))
        b = nn.functional.interpolate(b + self.deep(b), scale_factor=4)
        return self.head(self.up(torch.cat([a, b], 1)))


class Snapshots:
    def __init__(self, folder, every=5, keep=3):
        self.folder, self.every, self.keep = Path(folder), every, keep

    def __call__(self, step, model, opt):
        if step % self.every:
            return
        dist.barrier()
        if dist.get_rank() == 0:
            self.write(step, {"model": model.state_dict(), "opt": opt.state_dict(), "step": step})
            self.prune()
        dist.barrier()

    def write(self, step, state):
        buf = io.BytesIO()
        torch.save(state, buf)
        data = buf.getvalue()
        path = self.folder / f"snap{step:07d}.pt.gz"
        with open(path, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6) as f:
            f.write(data)
        with open(path, "rb") as f:
            os.fsync(f.fileno())
        path.with_suffix(".sha256").write_text(hashlib.sha256(data).hexdigest())

    def prune(self):
        for old in sorted(self.folder.glob("*.gz"))[:-self.keep]:
            old.unlink()
            old.with_suffix(".sha256").unlink()


def traces(batch=2, length=256):
    t = torch.linspace(0, 20, length)
    while True:
        onset = torch.rand(batch, 1, 1) * 20
        sig = torch.exp(-(t - onset).clamp(min=0)) * torch.sin(6 * t) * (t > onset)
        yield sig + 0.3 * torch.randn(batch, 3, length), (t > onset).float()


def main(rank, world, port, folder):
    signal.alarm(300)
    torch.set_num_threads(1)
    start = time.monotonic()
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DistributedDataParallel(UNet1d())
    opt = torch.optim.AdamW(model.parameters(), 1e-3)
    snap = Snapshots(folder)
    said = rank != 0
    for step, (x, y) in enumerate(traces(), 1):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0 and step % 4 == 0:
            print(f"step {step} pick loss {loss.item():.4f}", flush=True)
        snap(step, model, opt)
        if not said and time.monotonic() - start > 9:
            said = True
            print("ONSET", flush=True)


if __name__ == "__main__":
    signal.alarm(300)
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="snaps") as d:
        mp.spawn(main, (3, port, d), nprocs=3, daemon=True)
