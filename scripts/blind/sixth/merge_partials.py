"""FIELD
source: NVIDIA-NeMo/Automodel#1038, goodfire-ai/spd#540 (rank 0 consolidates the partial checkpoints, the others wait in a barrier)
mechanism: four ranks write their parts of the checkpoints; rank 0 reads them one by one, compresses and appends them to one
    file for some minutes; ranks 1 to 3 wait in the barrier all that time
needs: none
ranks: 1 (it starts its own 4)
onset: printed
state: busy
cause: checkpointing, waiting_on_work, computing_on_host
blame: none
twin: none
"""

import hashlib
import lzma
import multiprocessing
import os
import signal
import socket
import struct
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

WORLD = 4
ROUNDS = 60


class Checkpointer:
    """Each rank keeps its own slice of the history of weights; rank 0 makes one archive of them."""

    def __init__(self, folder, rank):
        self.folder, self.rank = folder, rank
        self.snapshots = 0

    def remember(self, model):
        if self.snapshots < ROUNDS:
            flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
            with open(self.partial(self.rank, self.snapshots), "wb") as file:
                file.write(flat.chunk(WORLD)[self.rank].numpy().tobytes())
            self.snapshots += 1

    def partial(self, rank, number):
        return os.path.join(self.folder, f"{rank}-{number}.bin")

    def save(self):
        dist.barrier()
        if self.rank == 0:
            self.consolidate()
        dist.barrier()

    def consolidate(self):
        with open(os.path.join(self.folder, "run.ckpt"), "wb") as archive:
            for number in range(self.snapshots):
                for rank in range(WORLD):
                    with open(self.partial(rank, number), "rb") as file:
                        raw = file.read()
                    packed = lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)
                    archive.write(struct.pack("<qq", len(raw), len(packed)))
                    archive.write(hashlib.sha256(raw).digest() + packed)
                    os.unlink(self.partial(rank, number))
                archive.flush()
                os.fsync(archive.fileno())


def train(rank, model, opt, port, folder):
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    checkpointer = Checkpointer(folder, rank)
    end = time.monotonic() + 16
    step = 0
    saved = False
    while True:
        x = torch.randn(8, 512)
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= WORLD
        opt.step()
        step += 1
        if step % 4 == 0:
            checkpointer.remember(model)
        late = torch.tensor([float(time.monotonic() > end)])
        dist.all_reduce(late, op=dist.ReduceOp.MAX)
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: {loss.item():.4f}", flush=True)
        if late.item() and not saved:
            saved = True
            if rank == 0:
                print("saving, this takes a while")
                print("ONSET", flush=True)
            checkpointer.save()


def main():
    signal.alarm(300)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    opt = torch.optim.SGD(model.parameters(), 0.05)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=train, args=(rank, model, opt, port, folder)) for rank in range(WORLD)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()


if __name__ == "__main__":
    main()
