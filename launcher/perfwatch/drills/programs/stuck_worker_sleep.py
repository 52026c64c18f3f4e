"""A DataLoader worker sleeps in ``__getitem__`` for days. quiet: one worker of three; masked: a progress bar keeps
moving.
"""

import itertools
import threading
import time

import stage
import torch
from torch.utils.data import DataLoader, Dataset

options = stage.arguments()
torch.set_num_threads(1)


class Pictures(Dataset):
    def __len__(self):
        return 10_000_000

    def __getitem__(self, i):
        batch = i // 32
        if batch >= options.steps and (options.strength == "loud" or batch % 3 == 1):
            stage.onset()
            time.sleep(10**6)
        return torch.rand(3, 16, 16), i % 7


def progress_bar():
    for n in itertools.count():
        print(f"\repoch 0: {'#' * (n % 40)}", end="", flush=True)
        time.sleep(0.2)


if options.strength == "masked":
    threading.Thread(target=progress_bar, daemon=True, name="tqdm").start()
cnn = torch.nn.Sequential(
    torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 14 * 14, 7)
)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(cnn.parameters())
for images, targets in DataLoader(Pictures(), batch_size=32, num_workers=3):
    optimizer.zero_grad()
    criterion(cnn(images), targets).backward()
    optimizer.step()
