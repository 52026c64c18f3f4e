"""A bit of everything, nothing of it too much: workers, log lines, validations and checkpoints. Healthy."""

import logging

import stage
import surroundings
import torch
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("train")


class Tiles(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, index):
        tile = torch.rand(3, 64, 64)
        return (tile.flip(-1) if index % 2 else tile) - 0.5, index % 5


def evaluate(net, loader):
    net.eval()
    with torch.no_grad():
        hits = sum((net(x).argmax(1) == y).sum().item() for (x, y), _ in zip(loader, range(3), strict=False))
    net.train()
    return hits


def fit():
    args = stage.arguments(__doc__)
    logging.basicConfig(level=logging.INFO)
    torch.set_num_threads(1)
    loader = DataLoader(Tiles(), batch_size=16, num_workers=1, persistent_workers=True)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 24, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(1536, 5),
    )
    optimizer = torch.optim.AdamW(net.parameters())
    step = 0
    with open(surroundings.scratch_folder() / "best.pt", "w+b") as best:
        for epoch in range(1_000_000):
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(net(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step == args.steps:
                    stage.onset()
                if step % 20 == 0:
                    log.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
            log.info("epoch %d accuracy %d", epoch, evaluate(net, DataLoader(Tiles(), batch_size=16)))
            torch.save(net.state_dict(), best.name)


if __name__ == "__main__":
    fit()
