"""A leak (losses kept with their graphs) inside a memory cgroup of 600 MB, until the kernel kills the run."""

import os
import time
from pathlib import Path

import stage
import torch

LIMIT = 600 * 1024 * 1024


def enter_memory_cgroup() -> None:
    """A child of our own group; it is left in place for 30 s after the end, so that its counters can still be read."""
    lines = [line.split(":") for line in Path("/proc/self/cgroup").read_text().split()]
    own = next((path for _, controllers, path in lines if "memory" in controllers.split(",")), None)
    root, limit = (
        (Path("/sys/fs/cgroup/memory" + own), "memory.limit_in_bytes")
        if own
        else (Path("/sys/fs/cgroup"), "memory.max")
    )
    group = root / f"leak-{os.getpid()}"
    group.mkdir()
    remover(group)
    (group / limit).write_text(str(LIMIT))
    (group / "cgroup.procs").write_text(str(os.getpid()))


def remover(group: Path) -> None:
    if os.fork() == 0:
        os.setsid()
        job = os.getppid()
        while os.getppid() == job:
            time.sleep(1)
        time.sleep(30)
        group.rmdir()
        os._exit(0)


def leak(steps: int) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024))
    sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
    history = []
    for step in range(10**6):
        if step == steps:
            stage.onset()
        loss = net(torch.randn(256, 1024)).square().mean()
        sgd.zero_grad()
        loss.backward(retain_graph=step >= steps)
        sgd.step()
        history.append(loss if step >= steps else loss.item())


settings = stage.arguments()
enter_memory_cgroup()
torch.set_num_threads(1)
leak(settings.steps)
