"""FIELD
source: IntelLabs/academic-budget-bert#26, sandyresearch/parcae#12 (ranks with fewer shards end their epoch early)
mechanism: a tenth shard appears, so rank 0 has four and the others three; ranks 1 and 2 finish the epoch and poll for the
    marker that rank 0 writes at its end, while rank 0 waits for them in all_reduce
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: stalled_collective, waiting_for_file
blame: rank 1, rank 2
twin: none
"""

import multiprocessing
import pathlib
import signal
import socket
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

WORLD, ROWS, BATCH = 3, 1200, 32


def write_shard(folder, number):
    rng = np.random.default_rng(number)
    half = folder / f"shard-{number:03d}.part"
    with half.open("wb") as file:
        np.save(file, rng.poisson(2.0, size=(ROWS, 200)).astype("float32"))
    half.rename(folder / f"shard-{number:03d}.npy")


def batches(files):
    for file in files:
        counts = np.log1p(np.load(file))
        for at in range(0, len(counts), BATCH):
            yield torch.from_numpy(counts[at : at + BATCH])


class CellVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(200, 192), nn.ReLU(), nn.Linear(192, 32))
        self.decode = nn.Sequential(nn.Linear(16, 192), nn.ReLU(), nn.Linear(192, 200))

    def forward(self, x):
        mean, spread = self.encode(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        kl = 0.5 * (mean.square() + spread.exp() - spread - 1).sum(-1).mean()
        return nn.functional.mse_loss(self.decode(z), x) + 1e-3 * kl


def all_reduce_gradients(parameters):
    work = [dist.all_reduce(p.grad, async_op=True) for p in parameters]
    for item in work:
        item.wait()


def wait_for(path):
    while not path.exists():
        time.sleep(0.25)


def rank_main(rank, model, opt, port, folder):
    signal.alarm(300)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    for epoch in range(1000):
        everything = sorted(folder.glob("shard-*.npy"))
        dist.barrier()
        for batch in batches(everything[rank::WORLD]):
            loss = model(batch)
            opt.zero_grad()
            loss.backward()
            all_reduce_gradients(model.parameters())
            opt.step()
            time.sleep(0.025)  # the aligner shares this machine
        marker = folder / f"epoch-{epoch}.done"
        if rank == 0:
            print(f"epoch {epoch}: {len(everything)} shards, loss {loss.item():.3f}", flush=True)
            if epoch == 2:
                write_shard(folder, 9)
            marker.touch()
        elif rank == 1 and len(everything) % WORLD:
            print(f"rank {rank} is through with epoch {epoch}", flush=True)
            print("ONSET", flush=True)
        wait_for(marker)


def main():
    signal.alarm(300)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for number in range(9):
            write_shard(folder, number)
        model = CellVAE()
        opt = torch.optim.Adam(model.parameters(), 1e-3 / WORLD)
        context = multiprocessing.get_context("fork")
        ranks = [context.Process(target=rank_main, args=(r, model, opt, port, folder)) for r in range(WORLD)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()


if __name__ == "__main__":
    main()
