"""Some ranks; the one DataLoader worker of rank 1 decodes slowly, so rank 1 is late to every all_reduce."""

import ranks
import stage
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

PASSES = {"loud": 60, "quiet": 30, "masked": 15}
args = stage.arguments(__doc__)
torch.set_num_threads(1)


class Photos(Dataset):
    def __init__(self, slow):
        self.slow = slow

    def __len__(self):
        return 10**8

    def __getitem__(self, index):
        if self.slow and index == args.steps * 8:
            stage.onset()
        return decode(PASSES[args.strength] if self.slow and index >= args.steps * 8 else 1)


def decode(passes):
    picture = torch.rand(96, 96)
    for _ in range(passes):
        picture = torch.linalg.qr(picture)[0]
    return picture.flatten()


def main():
    device = ranks.join(args)
    slow = dist.get_rank() == 1
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(96 * 96, 64).to(device))
    sgd = torch.optim.SGD(net.parameters(), lr=1e-3)
    for photos in DataLoader(Photos(slow), batch_size=8, num_workers=1):
        sgd.zero_grad()
        net(photos.to(device)).square().mean().backward()
        sgd.step()


if __name__ == "__main__":
    main()
