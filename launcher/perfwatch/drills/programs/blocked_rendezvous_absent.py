"""Some ranks that torchrun started, in a world of one more: the last one was to come from another machine and never does."""

import datetime
import os

import stage
import torch
import torch.distributed as dist


def is_last() -> bool:
    """True if all the others whom torchrun has started are here already."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return store.add("arrived", 1) == int(os.environ["WORLD_SIZE"])


def meet() -> None:
    if is_last():
        stage.onset()
    os.environ["WORLD_SIZE"] = str(int(os.environ["WORLD_SIZE"]) + 1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=5))


if __name__ == "__main__":
    stage.arguments(__doc__)
    torch.set_num_threads(1)
    meet()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.randn(8, 10)).sum().backward()
        optimizer.step()
