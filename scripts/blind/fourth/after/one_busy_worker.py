"""FIELD
source: own (elastic deformation in numpy in a single loader worker)
mechanism: one DataLoader worker deforms each image in numpy for a quarter of a second, the small network waits for it
needs: none
ranks: 1
onset: printed
state: slow
cause: starved_by_transforms
blame: __getitem__ (one_busy_worker.py), elastic (one_busy_worker.py)
twin: none
"""

import signal

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


def elastic(image, rng):
    field = rng.standard_normal((2, *image.shape))
    for _ in range(40):
        field = (
            field + np.roll(field, 1, -1) + np.roll(field, -1, -1) + np.roll(field, 1, -2) + np.roll(field, -1, -2)
        ) / 5
    rows, cols = np.meshgrid(*map(np.arange, image.shape), indexing="ij")
    return image[
        (rows + 20 * field[0]).astype(int) % image.shape[0], (cols + 20 * field[1]).astype(int) % image.shape[1]
    ]


class Scans(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        return torch.from_numpy(elastic(rng.standard_normal((256, 256)).astype("float32"), rng))[None]


if __name__ == "__main__":
    signal.alarm(300)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 5, stride=4), torch.nn.ReLU(), torch.nn.Conv2d(4, 1, 5, stride=4))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    loader = DataLoader(Scans(), batch_size=2, num_workers=1, worker_init_fn=lambda _: signal.alarm(300))
    for step, x in enumerate(loader):
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 5:
            print("ONSET", flush=True)
        if step % 10 == 0:
            print(step, loss.item(), flush=True)
