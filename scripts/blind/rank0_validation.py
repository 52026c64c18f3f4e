"""FIELD
source: pytorch/pytorch#54059 (validation on one process only, the others wait at dist.barrier())
mechanism: rank 0 runs the full validation set alone for minutes while rank 1 waits at the barrier
needs: cpu
ranks: 2
onset: printed
state: busy
cause: evaluating, waiting_on_work
blame: none
twin: none
"""
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_num_threads(1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.head = nn.Linear(32 * 8 * 8, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(x.flatten(1))


class Images(torch.utils.data.IterableDataset):
    def __init__(self, seconds):
        self.seconds = seconds

    def __iter__(self):
        began = time.monotonic()
        while time.monotonic() - began < self.seconds:
            yield torch.randn(3, 32, 32), int(torch.randint(0, 10, ()))


def validate(net, seconds):
    net.eval()
    right = total = 0
    confusion = torch.zeros(10, 10, dtype=torch.long)
    with torch.no_grad():
        for images, labels in torch.utils.data.DataLoader(Images(seconds), batch_size=100):
            views = [net(images), net(images.flip(3)), net(images.roll(2, 2)), net(images.roll(-2, 2))]
            guess = torch.stack(views).softmax(-1).mean(0).argmax(1)
            confusion.index_put_((labels, guess), torch.ones(len(labels), dtype=torch.long), accumulate=True)
            right += int((guess == labels).sum())
            total += len(labels)
    net.train()
    return right / max(total, 1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    net = DDP(Classifier())
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for epoch, seconds in enumerate([1, 1, 390, 1]):
        for _ in range(80):
            loss = F.cross_entropy(net(torch.randn(32, 3, 32, 32)), torch.randint(0, 10, (32,)))
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            if seconds > 60:
                print("ONSET", flush=True)
            accuracy = validate(net.module, seconds)
            print(f"epoch {epoch} loss {loss.item():.3f} acc {accuracy:.3f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
