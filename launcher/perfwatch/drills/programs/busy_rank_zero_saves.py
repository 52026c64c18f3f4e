"""Look-alike of mismatched collectives: rank 0 writes a long checkpoint while the others wait in the
barrier.
"""

import os
import tempfile
import time

import ranks
import stage
import torch
import torch.distributed as dist


class ThrottledFile:
    """A remote file system of about 2 MB/s."""

    def __init__(self, path):
        self.file = open(path, "wb")

    def write(self, data):
        view = memoryview(data).cast("B")
        for start in range(0, len(view), 1 << 18):
            self.file.write(view[start : start + (1 << 18)])
            time.sleep(0.12)
        return len(view)

    def flush(self):
        self.file.flush()


def save_checkpoint(state, folder):
    stage.onset(rank=0)
    torch.save(state, ThrottledFile(os.path.join(folder, "last.pt")))


def main(args, folder):
    steps = args.steps
    torch.set_num_threads(1)
    device = ranks.join(args)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(120_000, 128).to(device))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 10**6):
        sgd.zero_grad()
        model(torch.randint(120_000, (16,), device=device)).sum().backward()
        sgd.step()
        if step % steps == 0:
            if dist.get_rank() == 0:
                save_checkpoint(model.state_dict(), folder)
            dist.barrier()


with tempfile.TemporaryDirectory() as scratch:
    main(stage.arguments(), scratch)
