"""FIELD
source: sgl-project/sglang#38268 (a rank without a pending prefetch returns early and skips the vote that the others are in)
mechanism: before a step the ranks agree by a MIN all-reduce on a control group that the shard is loaded; rank 2
    evicts a pending shard when its cache is over the limit, takes "not pending" for "ready", skips the vote and goes
    on to the all-reduce of the gradients, while ranks 0 and 1 stay in the vote
needs: none
ranks: 1 (it starts its own 3)
onset: printed
state: hung
cause: mismatched_collective, stalled_collective
blame: rank 2
twin: none
"""
import logging
import os
import signal
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORLD, FEATURES, CLASSES = 3, 48, 7


class ShardCache:
    """Shards are read ahead by one thread; at most `limit` bytes may be under way."""

    def __init__(self, rank: int, group: dist.ProcessGroup, limit: int) -> None:
        self.rank, self.group, self.limit = rank, group, limit
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self.pending: dict[int, Future[tuple[torch.Tensor, torch.Tensor]]] = {}

    def _read(self, shard: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(shard * WORLD + self.rank)
        time.sleep(0.01)
        return torch.randn(64, FEATURES, generator=generator), torch.randint(CLASSES, (64,), generator=generator)

    def size_of(self, shard: int) -> int:
        return 64 * FEATURES * 4 + (shard * 700 if self.rank == 2 else 0)

    def prefetch(self, shard: int) -> None:
        if self.size_of(shard) > self.limit:
            logging.warning("rank %d: shard %d is over the limit, it will be read when needed", self.rank, shard)
            print("ONSET", flush=True)
            return
        self.pending[shard] = self.reader.submit(self._read, shard)

    def settled(self, shard: int) -> bool:
        future = self.pending.get(shard)
        if future is None:
            return True
        flag = torch.tensor([int(future.done())])
        dist.all_reduce(flag, dist.ReduceOp.MIN, group=self.group)
        return bool(flag.item())

    def take(self, shard: int) -> tuple[torch.Tensor, torch.Tensor]:
        future = self.pending.pop(shard, None)
        return future.result() if future else self._read(shard)


def worker(rank: int, port: int) -> None:
    signal.alarm(300)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, timeout=timedelta(hours=2))
    control = dist.new_group(list(range(WORLD)), timeout=timedelta(hours=2))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(FEATURES, 256), nn.GELU(), nn.Linear(256, CLASSES)))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    cache = ShardCache(rank, control, limit=64 * FEATURES * 4 + 360 * 700)
    cache.prefetch(0)
    for shard in range(100_000):
        cache.prefetch(shard + 1)
        while not cache.settled(shard):
            time.sleep(0.005)
        inputs, labels = cache.take(shard)
        for _ in range(2):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        time.sleep(0.03)
        if rank == 0 and shard % 50 == 0:
            logging.info("shard %d loss %.4f", shard, loss.item())


def main() -> None:
    signal.alarm(300)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [mp.get_context("fork").Process(target=worker, args=(rank, port)) for rank in range(WORLD)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    main()
