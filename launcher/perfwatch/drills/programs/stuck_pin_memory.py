"""The worker has made its batch, but the thread that pickles it into the queue to the trainer waits for a lock for
ever.
"""

import threading
import time

import stage
import torch
from torch.utils.data import DataLoader, Dataset

args = stage.arguments()
torch.set_num_threads(1)
registry_lock = threading.Lock()


class Packed:
    """A batch with an expensive cache that is registered while it is pickled."""

    def __init__(self, rows, number):
        self.rows, self.number = torch.stack(rows), number

    def __getstate__(self):
        if self.number >= args.steps and (args.strength == "loud" or self.number % 2):
            stage.onset()
            registry_lock.acquire()
            registry_lock.acquire()  # not reentrant
        return {"rows": self.rows.tolist(), "number": self.number}

    def __setstate__(self, state):
        self.rows, self.number = torch.tensor(state["rows"]), state["number"]


class Numbers(Dataset):
    def __len__(self):
        return 400_000

    def __getitem__(self, index):
        return index, torch.rand(16)


def pack(samples):
    return Packed([row for _, row in samples], samples[0][0] // len(samples))


def log_lr(period):
    while True:
        time.sleep(period)
        print("lr=0.001", flush=True)


if args.strength == "masked":
    threading.Thread(target=log_lr, args=(0.4,), daemon=True).start()
net = torch.nn.Sequential(torch.nn.Linear(16, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1))
opt = torch.optim.Adagrad(net.parameters())
for batch in DataLoader(Numbers(), batch_size=32, num_workers=2, collate_fn=pack):
    opt.zero_grad()
    net(batch.rows).sum().backward()
    opt.step()
