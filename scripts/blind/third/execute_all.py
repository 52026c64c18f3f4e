"""FIELD
source: https://github.com/arthur-ai/arthur-engine/pull/1349
mechanism: tasks of a thread pool submit tasks to the same pool and wait for their results; with as many outer tasks as threads no thread is left for the inner ones
needs: none
ranks: 1
onset: printed
state: hung
cause: deadlocked_locks, unknown
blame: augment_pair (waits for its own pool), prepare_batch (waits for all)
twin: none
"""
import signal
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

signal.alarm(300)
torch.set_num_threads(1)


class Preparer:
    def __init__(self, threads):
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="prep")

    def crop(self, image):
        return F.interpolate(image[None, :, 2:30, 2:30], size=(32, 32), mode="bilinear")[0]

    def augment_pair(self, image):
        left = self.pool.submit(self.crop, image)
        right = self.pool.submit(self.crop, image.flip(-1))
        return torch.stack([left.result(), right.result()])

    def prepare_batch(self, images):
        futures = [self.pool.submit(self.augment_pair, image) for image in images]
        return torch.stack([one.result() for one in futures])


def main():
    preparer = Preparer(threads=8)
    encoder = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, stride=2),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 32),
    )
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    size = 4
    for step in range(10**6):
        if step == 500:
            size = 32
            print("ONSET", flush=True)
        views = preparer.prepare_batch(torch.rand(size, 3, 32, 32))
        a, b = encoder(views[:, 0]), encoder(views[:, 1])
        loss = 1 - F.cosine_similarity(a, b).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 25 == 0:
            print(step, loss.item(), flush=True)


main()
