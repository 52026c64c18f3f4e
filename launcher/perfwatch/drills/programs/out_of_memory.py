"""A leak (losses and augmented batches are kept) inside a memory cgroup of 600 MB, until the kernel kills the run."""

import contextlib
import os
import time
from pathlib import Path

import stage
import torch

LIMIT = 600 * 1024 * 1024


def enter_memory_cgroup() -> None:
    lines = [line.split(":") for line in Path("/proc/self/cgroup").read_text().split()]
    own = next((path for _, controllers, path in lines if "memory" in controllers.split(",")), None)
    root = Path("/sys/fs/cgroup/memory" + own) if own else Path("/sys/fs/cgroup")
    group = root / f"leak-{os.getpid()}"
    for left_over in root.glob("leak-*"):
        with contextlib.suppress(OSError):  # in use
            left_over.rmdir()
    group.mkdir()
    stage.outsider(lambda: remove(group), linger_seconds=30)
    (group / ("memory.limit_in_bytes" if own else "memory.max")).write_text(str(LIMIT))
    (group / "cgroup.procs").write_text(str(os.getpid()))


def remove(group: Path) -> None:
    """Remove the group a while after the end, when its counters have been read."""
    time.sleep(1)
    while (group / "cgroup.procs").read_text():
        time.sleep(1)
    time.sleep(10)
    group.rmdir()


def leak(steps: int) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024))
    sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
    history = []
    for step in range(10**6):
        if step == steps:
            stage.onset()
        x = torch.randn(256, 1024)
        loss = net(x).square().mean()
        sgd.zero_grad()
        loss.backward(retain_graph=step >= steps)
        sgd.step()
        history.append((loss, x.repeat(16, 1)) if step >= steps else loss.item())


settings = stage.arguments()
enter_memory_cgroup()
torch.set_num_threads(1)
leak(settings.steps)
