"""FIELD
source: ByteDance-Seed/VeOmni#1176 (a staged checkpoint is copied to a slow mount for minutes, while the other ranks wait)
mechanism: torch.distributed.checkpoint saves fast to a staging folder; then rank 0 copies the shards to the slow destination at a limited bandwidth (about 210 s) and the others wait on a gloo group of their own
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: busy
cause: checkpointing,waiting_on_work
blame: none
twin: none
"""
import datetime
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn


@dataclass
class SaveArgs:
    stage_dir: Path
    output_dir: Path
    every: int = 70
    bwlimit: int = 170_000  # bytes/s that the shared mount grants to a user
    timeout: int = 7200


class RateLimit:
    def __init__(self, rate):
        self.rate, self.start, self.sent = rate, time.monotonic(), 0

    def spent(self, n):
        self.sent += n
        ahead = self.sent / self.rate - (time.monotonic() - self.start)
        if ahead > 0:
            time.sleep(ahead)


def copy_limited(src, dst, limit, chunk=32768):
    with open(src, "rb") as fi, open(dst, "wb") as fo:
        while data := fi.read(chunk):
            fo.write(data)
            fo.flush()
            os.fsync(fo.fileno())
            limit.spent(len(data))


class Checkpointer:
    def __init__(self, args):
        self.args = args
        self.group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=args.timeout))

    def save(self, step, model, opt):
        stage = self.args.stage_dir / f"step{step}"
        state = {"model": model.state_dict(), "exp_avg": {str(i): s["exp_avg"] for i, s in enumerate(opt.state.values())},
                 "exp_avg_sq": {str(i): s["exp_avg_sq"] for i, s in enumerate(opt.state.values())}}
        dcp.save(state, checkpoint_id=stage, process_group=self.group)
        if dist.get_rank() == 0:
            print(f"staged step {step}, promoting to {self.args.output_dir}", flush=True)
            print("ONSET", flush=True)
            self.promote(stage, self.args.output_dir / stage.name)
        dist.barrier(group=self.group)

    def promote(self, stage, target):
        target.mkdir(parents=True)
        limit = RateLimit(self.args.bwlimit)
        for i, f in enumerate(sorted(stage.iterdir())):
            copy_limited(f, target / f.name, limit)
            print(f"  {i + 1}: {f.name} {f.stat().st_size / 1e6:.1f} MB", flush=True)
        shutil.rmtree(stage)


class Mixer(nn.Module):
    def __init__(self, d=512, depth=8):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
                                    for _ in range(depth))

    def forward(self, x):
        for f in self.layers:
            x = x + f(x)
        return x


def train(root):
    dist.init_process_group("gloo")
    args = SaveArgs(Path(root, "nvme"), Path(root, "fuse"))
    torch.manual_seed(0)
    net = Mixer(d=384, depth=5)
    model, ckpt = nn.parallel.DistributedDataParallel(net), Checkpointer(args)
    opt = torch.optim.AdamW(model.parameters(), 2e-4)
    for step in range(1, 100001):
        x = torch.randn(8, 384)
        loss = (model(x) - x.sort(-1).values).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 15 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if step % args.every == 0:
            ckpt.save(step, net, opt)


if __name__ == "__main__":
    signal.alarm(300)
    torch.set_num_threads(1)
    if len(sys.argv) == 2:
        train(sys.argv[1])
        sys.exit()
    with socket.create_server(("127.0.0.1", 0)) as s:
        env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(s.getsockname()[1]), "WORLD_SIZE": "3"}
    with tempfile.TemporaryDirectory(prefix="stage") as tmp:
        ranks = [subprocess.Popen([sys.executable, __file__, tmp], env={**env, "RANK": str(i)}) for i in range(3)]
        print("exit codes", [p.wait() for p in ranks])
