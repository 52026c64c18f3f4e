"""Look-alike of a stalled collective: rank 1 compiles its kernels for long, the others have them in their cache.

The ranks compile something of their own before the first step and meet in a barrier.
"""

import os

import ranks
import stage
import surroundings
import torch
import torch.distributed as dist


def warm_up(count):
    for number in range(count):
        layer = torch.nn.TransformerEncoderLayer(64 + 8 * number, 4, 96 + 32 * number, batch_first=True)
        torch.compile(layer, dynamic=False)(torch.randn(4, 16, 64 + 8 * number)).square().mean().backward()


def main():
    args = stage.arguments(__doc__)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(surroundings.scratch_folder())  # nothing compiled earlier may be used
    torch.set_num_threads(1)
    device = ranks.join(args)
    rank = dist.get_rank()
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).to(device))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    if rank == 1:
        stage.onset(rank=rank)
        warm_up(40)
    dist.barrier()
    while True:
        sgd.zero_grad()
        net(torch.randn(64, 256, device=device)).square().mean().backward()
        sgd.step()


if __name__ == "__main__":
    main()
