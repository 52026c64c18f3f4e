"""Two ranks reduce tensors of unequal size. NCCL does not check: the longer one waits for data that nobody sends.

Only the ranks' flight recorders show it; they are armed, as they are under ``perfwatch run``.
"""

import itertools
import os
import sys
import tempfile

import stage

PIPE, DUMP = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DUMP_TEMP_FILE"


def share_statistics(device, classes):
    import torch
    import torch.distributed as dist

    counts = torch.ones(classes, device=device)
    dist.all_reduce(counts)
    return counts


def main() -> None:
    args = stage.arguments(__doc__)
    if (
        not {PIPE, "PERFWATCH_AGENT_DIR"} & os.environ.keys()
    ):  # only what a process was started with can be seen from outside
        folder = tempfile.mkdtemp(prefix="drill-")
        named = {PIPE: f"{folder}/pipe_", DUMP: f"{folder}/dump_"}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **named})
    import ranks
    import torch
    import torch.distributed as dist

    device = ranks.join(args)
    rank = dist.get_rank()
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024).to(device))
    sgd = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in itertools.count():
        if step == args.steps:
            stage.onset(rank=rank)
        wrong = step >= args.steps and rank == 1  # its shard of the data has fewer classes
        share_statistics(device, 900 if wrong else 1000)
        sgd.zero_grad()
        loss = net(torch.randn(256, 1024, device=device)).square().mean()
        loss.backward()
        sgd.step()
        if step % 10 == 0:
            print(step, loss.item(), flush=True)


main()
