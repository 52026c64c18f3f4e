"""World size 3, but one of the ranks was never started (or died early): init_process_group waits for it for hours."""

import datetime
import os
import socket
import threading
import time

import stage
import torch
import torch.distributed as dist


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return str(probe.getsockname()[1])


def still_here() -> None:
    while True:
        time.sleep(1)
        print("waiting for my friends", flush=True)


def setup() -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", free_port())
    os.environ.update(RANK="0", WORLD_SIZE="3", LOCAL_RANK="0")
    stage.onset()
    dist.init_process_group("gloo", timeout=datetime.timedelta(hours=5))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if stage.arguments().strength == "masked":
        threading.Thread(target=still_here, daemon=True).start()
    setup()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.randn(8, 10)).sum().backward()
        optimizer.step()
