"""FIELD
source: weecology/DeepForest#1407 (multi-gpu ddp fails if any one rank has all empty validation)
mechanism: validation shards rotate per epoch; in one epoch rank 2 has only empty images, skips the metric's compute() and its all_gather and starts the next training epoch
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: mismatched_collective,stalled_collective
blame: none
twin: none
"""
import logging
import signal
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

EMPTY_FROM = 160


class Tiles(Dataset):
    def __init__(self, n, seed, empty_tail=False):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 3, 24, 24, generator=g)
        self.boxes = torch.rand(n, 4, generator=g)
        self.has_tree = torch.ones(n, dtype=torch.bool)
        if empty_tail:
            self.has_tree[EMPTY_FROM:] = False

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        time.sleep(0.005)  # jpeg decoding
        return self.x[i], self.boxes[i], self.has_tree[i]


class IoUMetric:
    def __init__(self):
        self.reset()

    def reset(self):
        self.groundtruth_labels, self.scores = [], []

    def update(self, pred, target):
        self.groundtruth_labels.append(len(target))
        self.scores.append(1 - (pred - target).abs().mean())

    def compute(self):
        local = torch.stack(self.scores).mean().reshape(1)
        out = [torch.zeros_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(out, local)
        return torch.cat(out).mean().item()


class DeepTrees:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
        self.log = logging.getLogger(f"trees.{rank}")
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 12, 3, 2), nn.ReLU(), nn.Conv2d(12, 16, 3, 2), nn.ReLU(),
                            nn.Flatten(), nn.LazyLinear(4), nn.Sigmoid())
        net(torch.zeros(1, 3, 24, 24))
        self.model = DDP(net)
        self.opt = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.train = DataLoader(Tiles(128, rank), batch_size=8, shuffle=True)
        self.val = Tiles(192, 99, empty_tail=True)
        self.iou_metric = IoUMetric()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.model.train()
            for step, (x, y, _) in enumerate(self.train):
                loss = nn.functional.smooth_l1_loss(self.model(x), y)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                if step % 8 == 0 and self.rank == 0:
                    self.log.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
            self.validate(epoch)

    @torch.no_grad()
    def validate(self, epoch):
        # a window of 8 tiles per rank that moves on with each epoch
        lo = (epoch * self.world + self.rank) * 8 % len(self.val)
        self.model.eval()
        self.iou_metric.reset()
        for i in range(lo, min(lo + 8, len(self.val))):
            x, y, tree = self.val[i]
            if tree:
                self.iou_metric.update(self.model.module(x[None]), y[None])
        metrics = {}
        if len(self.iou_metric.groundtruth_labels) > 0:
            metrics["iou"] = self.iou_metric.compute()
        else:
            self.log.info("epoch %d: no trees in the validation shard", epoch)
            print("ONSET", flush=True)
        if self.rank == 0:
            self.log.info("epoch %d %s", epoch, metrics)


def main(rank, world, port):
    signal.alarm(300)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    DeepTrees(rank, world).fit(1000)


if __name__ == "__main__":
    signal.alarm(300)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    mp.spawn(main, (3, free), nprocs=3, daemon=True)
